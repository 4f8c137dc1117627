"""Evaluate a workload's program in float64: one node, or all layers for whole sequences.

The evaluator reads only the weights from the arenas and, if its caller asks for it, the KV cache after the run. Inputs
are `verify.ops.Graded`. Each column has a request, a position and a copy of the weights. The results are expected
outputs with bounds on the error of a correct device. Whole sequences are evaluated layer by layer with a causal mask,
in blocks of columns in ascending order. Keys and values of earlier columns therefore exist when a later column needs
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

import numpy as np

from launchopt.command import Op
from launchopt.devices.arenas import Arenas, to_float32
from launchopt.streams.chains.attention import Attention
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.placement import NO_LAYER, Row
from launchopt.streams.chains.program import HEAD, INPUT, Node
from launchopt.streams.chains.tensor import Split
from launchopt.types import Array
from launchopt.verify import ops as vo
from launchopt.verify.chains.caches import Cache, LeftCache, SequenceCache
from launchopt.verify.chains.columns import Columns
from launchopt.verify.ops import Graded, exact
from launchopt.verify.sums import gemm_in_parts

TOGETHER_BYTES = 64 << 20  # scores of the requests that are evaluated together, of which some copies are alive
COPIES_ALIVE = 6  # arrays as large as an output in memory at once: values, variances and bounds of it and its input


class Evaluator:
    """Evaluates nodes of a stream's program with the weights in its arenas.

    xp: the arenas' array module. left: the KV caches in memory; None without attention. split: how several GPUs split
    the stream's program.
    """

    def __init__(
        self, stream: ChainStream, arenas: Arenas, left: LeftCache | None = None, split: Split | None = None
    ) -> None:
        self._stream, self._arenas, self.xp, self._split = stream, arenas, arenas.xp, split
        kind = next(i for i, kind in enumerate(stream.kinds) if kind.ends_token)
        # Rows of one kind of step. They serve to find weights, which all kinds share.
        self._rows = {(row.layer, row.name): row for row in stream.rows(kind)}
        self.left = LeftCache(stream, arenas) if left is None and stream.attention is not None else left

    def weight(self, row: Row, replica: int) -> Array:
        """Return the weight of a row, float64 [m, k], or [1, m] for a vector."""
        operand = row.operands[0]
        rows, cols = (row.m, row.k) if row.op is Op.GEMM else (1, operand.arena.cols)
        slot = row.a.slot + replica * row.move
        if operand.arena.packing:
            return self._arenas.matrices(operand.arena, [slot])[0]
        taken = self._arenas.view(operand, rows, cols)[slot]
        return to_float32(taken, self._stream.dtype).astype(np.float64)

    def node(self, row: Row, b: Graded, a: Graded | None, at: Columns, cache: Cache | None) -> Graded:
        """Return the expected output of a row for the columns `at`, from its inputs.

        cache: source of keys and values; only ops of attention need it.
        """
        xp, dtype, op = self.xp, self._stream.dtype, row.op
        if op in (Op.GEMM, Op.BIAS, Op.SCALE, Op.NORM):
            return self._weighted(row, b, at)
        if op is Op.RELU:
            return vo.relu(xp, b)
        if op is Op.SILU_MUL:
            return vo.silu_mul(xp, b, dtype)
        if op is Op.ADD:
            assert a is not None
            return vo.add(a, b, dtype)
        attention = self._stream.attention
        assert attention is not None
        if op is Op.ROPE:
            if attention.qk_norm:
                b = self._weighted(row, b, at)
            heads = attention.q_heads + attention.kv_heads
            return vo.rope(xp, b, at.positions, heads, attention.head_dim, attention.theta, dtype)
        if op is Op.KV_WRITE:
            return b.part((slice(None), slice(-2 * attention.kv_width, None)))
        assert cache is not None
        return self._attended(row, b, at, cache, attention)

    def _weighted(self, row: Row, b: Graded, at: Columns) -> Graded:
        """Evaluate columns in groups that use one copy of the weights."""
        replicas = np.unique(at.replicas)
        if len(replicas) == 1:
            return self._with_weight(row, b, int(replicas[0]))
        value, variance, storing = (self.xp.empty((len(at), row.m)) for _ in range(3))
        for replica in replicas.tolist():
            own = self.xp.asarray(np.flatnonzero(at.replicas == replica))
            result = self._with_weight(row, b.part(own), replica)
            value[own], variance[own], storing[own] = result.value, result.variance, result.storing
        return Graded(value, variance, storing=storing)

    def _with_weight(self, row: Row, b: Graded, replica: int) -> Graded:
        dtype, weight, epsilon = self._stream.dtype, self.weight(row, replica), self._stream.norm_epsilon
        if row.op is Op.GEMM:
            if self._split is not None and row.name != HEAD and self._split.is_partial(row.name):
                return gemm_in_parts(self.xp, b, weight, dtype, self._split.tensor, self._split.rounds_sums)
            return vo.gemm(b, weight, dtype, int(bool(row.operands[0].arena.packing)))
        if row.op is Op.NORM:
            return vo.norm(self.xp, b, weight, dtype, epsilon)
        if row.op is Op.ROPE:  # only its norms have a weight
            attention = self._stream.attention
            assert attention is not None
            return vo.head_norm(self.xp, b, weight, (attention.q_heads, attention.kv_heads), dtype, epsilon)
        return (vo.scale if row.op is Op.SCALE else vo.bias)(b, weight, dtype)

    def _attended(self, row: Row, b: Graded, at: Columns, cache: Cache, attention: Attention) -> Graded:
        """Evaluate QK, SOFTMAX or AV, of many requests at a time where they are at the same positions.

        Scores and probabilities have `ctx` positions per head. Positions that a column does not attend to get an
        infinite variance, so that they are not compared.
        """
        xp, dtype, heads, dim = self.xp, self._stream.dtype, attention.q_heads, attention.head_dim
        value, variance = xp.zeros((len(at), row.m)), xp.full((len(at), row.m), xp.inf)
        differing, storing = xp.zeros((len(at), row.m)), xp.zeros((len(at), row.m))
        for requests, own in at.in_step(lambda columns: TOGETHER_BYTES // (8 * columns * heads * attention.ctx)):
            several = len(requests)
            positions = at.positions[own][: len(at.positions[own]) // several]
            count, columns = int(positions.max()) + 1, len(positions)
            seen = xp.asarray(np.arange(count) <= positions[:, None])
            given = b.part(own)
            if row.op is Op.QK:
                keys, _ = cache.kept(requests, row.layer, count)
                shape = (several, columns, heads, dim)
                q = (
                    x[:, : heads * dim].reshape(shape).transpose(1, 0, 2, 3).reshape(columns, several * heads, dim)
                    for x in (given.value, given.variance)
                )
                result = vo.scores(xp, Graded(*q), keys, dtype)
            else:
                masked = _by_head(xp, given, (several, columns, heads, attention.ctx), seen)
                if row.op is Op.AV:
                    _, values = cache.kept(requests, row.layer, count)
                    result = vo.weighed(xp, masked, values, seen, dtype, several)
                    for whole, part in ((value, result.value), (variance, result.variance), (storing, result.storing)):
                        whole[own] = part.reshape(columns, several, -1).transpose(1, 0, 2).reshape(len(whole[own]), -1)
                    continue
                result = vo.softmax(xp, masked, seen, dtype)
            parts = (
                (value, result.value, 0.0),
                (variance, result.variance, xp.inf),
                (differing, result.differing, 0.0),
                (storing, result.storing, 0.0),
            )
            for whole, part, unseen in parts:
                of_request = xp.where(seen, part, unseen).reshape(several, heads, columns, count)
                wide = whole[own].reshape(several, columns, heads, attention.ctx)
                wide[..., :count] = of_request.transpose(0, 2, 1, 3)
        return Graded(value, variance, None if row.op is Op.AV else differing, storing)

    def columns_a_block(self, chunk_bytes: int) -> int:
        """Return the number of columns for which all outputs of a layer fit into `chunk_bytes`."""
        features = sum(node.m + node.k for node in self._stream.program.layer)
        return max(1, chunk_bytes // (8 * COPIES_ALIVE * features))

    def tokens(
        self,
        inputs: Array,
        at: Columns,
        chunk_bytes: int,
        note: Callable[[int, Columns, Graded], None],
        done: Callable[[float], None],
    ) -> Graded:
        """Return the output of the last layer for columns with these inputs.

        inputs: float64 [columns, hidden]. With attention, columns are those of whole requests. note: see
        `SequenceCache`. done: is told how many columns were computed, a layer of one as its share of all layers.
        """
        xp, attention = self.xp, self._stream.attention
        cache = None if attention is None else SequenceCache(attention, xp, note)
        most = self.columns_a_block(chunk_bytes)
        values = exact(xp, inputs)
        for layer in range(self._stream.layers):
            parts = []
            for start in range(0, len(at), most):
                block = slice(start, start + most)
                parts.append(self._layer(layer, values.part(block), at.part(block), cache))
                done(len(at.requests[block]) / self._stream.layers)
            values = Graded(*(xp.concatenate([getattr(x, name) for x in parts]) for name in ("value", "variance")))
        return values

    def logits(self, finals: Graded) -> Graded:
        """Return the logits, the output of the LM head for `finals`. The head's weight has only one copy."""
        return self._with_weight(self._rows[NO_LAYER, HEAD], finals, replica=0)

    def _layer(self, layer: int, given: Graded, at: Columns, cache: SequenceCache | None) -> Graded:
        """Return the output of a layer for a block of columns."""
        program, nodes = self._stream.program, self._stream.program.layer
        read = [(*program.sources(node), node.a) for node in nodes]
        last_use = {name: i for i, names in enumerate(read) for name in names}
        found: dict[str, Graded] = {INPUT: given}
        for i, node in enumerate(nodes):
            b = vo.joined(self.xp, [found[name] for name in program.sources(node)])
            if node.op is Op.KV_WRITE:
                assert cache is not None
                cache.write(layer, at, b)
            else:
                found[node.name] = self.node(self._rows[layer, node.name], b, _a(found, node), at, cache)
            for name in read[i]:
                if name and last_use[name] == i:
                    found.pop(name, None)
        return found[nodes[-1].name]


def _a(found: Mapping[str, Graded], node: Node) -> Graded | None:
    return found[node.a] if node.op is Op.ADD and node.a else None


def _by_head(xp: ModuleType, given: Graded, shape: tuple[int, int, int, int], seen: Array) -> Graded:
    """Return scores or probabilities of requests, [requests * heads, columns, positions], and 0 where none is seen.

    Positions that a column does not attend to may never have been written. shape: requests, columns of each, heads,
    positions of a head in `given`. seen: bool [columns, positions].
    """
    requests, columns, heads, _ = shape
    count = seen.shape[1]
    found = []
    for each in (given.value, given.variance, given.differing):
        if each is not None:
            by_request = each.reshape(shape)[..., :count].transpose(0, 2, 1, 3)
            each = xp.where(seen, by_request.reshape(requests * heads, columns, count), 0.0)
        found.append(each)
    return Graded(*found)

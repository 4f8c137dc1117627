"""One launch on the CPU: NumPy calls that compute a stack of commands of one shape, for any op.

`CpuLaunch.views` has, for each shape, views of every slot of A, B and C. A caller stacks the slots of its commands, and
`run` computes C. NumPy's BLAS has no half precision: each launch converts fp16 and bf16 to fp32, and rounds the result
back. Each launch also computes the values of the quantised weights that it reads, one weight after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from launchopt.command import COLLECTIVES, EXPERT_OPS, HALF_BITS, Dtype, Op, RecordWord, ShapeKey
from launchopt.devices.arenas import Arenas, SeqState, from_float32, to_float32
from launchopt.devices.cpu import expert_ops
from launchopt.devices.cpu.ops import STATEFUL, Sequences, apply
from launchopt.devices.peers.host import HostPeers
from launchopt.streams.chains.attention import Attention
from launchopt.streams.chains.chain import Stream, chain_of
from launchopt.streams.operands import Operand
from launchopt.types import Array
from launchopt.weights.quantiser import dequantised, rounded

VECTOR_A = frozenset({Op.BIAS, Op.SCALE, Op.NORM})  # ops whose A is one vector


class CpuLaunch:
    """Computes commands of a workload."""

    def __init__(self, stream: Stream, arenas: Arenas, peers: HostPeers | None = None) -> None:
        self.stream, self._dtype, self._arenas, self._shapes = stream, stream.dtype, arenas, stream.shapes
        self._attention: Attention | None = None
        self._peers = peers
        self.state: SeqState | None = None
        if stream.attention is not None:
            self._attention = stream.attention
            chain = chain_of(stream)
            self.state = SeqState(np, stream.attention, stream.requests, chain.seed, chain.prefixes)
        self.views = [self._views_of(stream, shape) for shape in stream.shapes]

    def reset(self) -> None:
        """Begin a run: set every request to its first token."""
        if self.state is not None:
            self.state.reset()

    def run(self, shape_index: int, a: Array, b: Array, c: Array, words: NDArray[np.uint64]) -> None:
        """Compute one launch. a, b, c: stacks [commands, ...]. words: the records of the commands."""
        shape = self._shapes[shape_index]
        if shape.op is Op.GEMM:
            self.multiply(shape_index, a, b, c)
            return
        if shape.op in COLLECTIVES:
            self.exchange(shape.op, [(b, c)])
            return
        if shape.op in EXPERT_OPS:
            expert_ops.apply(shape, a, b, c)
            return
        sequences = None
        if shape.op in STATEFUL:
            assert self._attention is not None
            assert self.state is not None
            requests = (words[:, RecordWord.SLOT_C_REQUEST] >> HALF_BITS).tolist()
            sequences = Sequences(requests, self._attention, self.state)
        apply(shape.op, a, b, c, self._dtype, sequences, self.stream.norm_epsilon)

    def exchange(self, op: Op, operands: Sequence[tuple[Array, Array]]) -> None:
        """Compute the all-reduce, or the gather, of some commands as one: their (B, C)."""
        assert self._peers is not None
        self._peers.exchange(op, operands)

    def multiply(self, shape_index: int, a: Array, b: Array, c: Array) -> None:
        """Compute c[i] = b[i] @ a[i].T for stacks in storage type."""
        dtype = self._dtype
        if self._shapes[shape_index].packing and len(a) > 1:
            for i in range(len(a)):
                self.multiply(shape_index, a[i : i + 1], b[i : i + 1], c[i : i + 1])
        elif dtype is Dtype.fp32:
            np.matmul(b, self.weights(shape_index, a).transpose(0, 2, 1), out=c)
        else:
            wide = np.matmul(to_float32(b, dtype), self.weights(shape_index, a).transpose(0, 2, 1))
            c[:] = from_float32(wide, dtype)

    def multiply_quantised(self, shape_index: int, a: Array, b: Array, c: Array) -> None:
        """Compute c[i] = q(b[i]) @ a[i].T, where q quantises inputs as the weights of the shape are."""
        packing = self._shapes[shape_index].packing
        given = rounded(np, to_float32(b, self._dtype), packing)
        c[:] = from_float32(np.matmul(given, self.weights(shape_index, a).transpose(0, 2, 1)), self._dtype)

    def weights(self, shape_index: int, a: Array) -> Array:
        """Return a stack of weights of a shape as fp32, [n, m, k]. The weights of fp32 are returned as they are."""
        shape = self._shapes[shape_index]
        if shape.packing:
            return dequantised(np, a[:, 0], shape.m, shape.k, shape.packing)
        return a if self._dtype is Dtype.fp32 else to_float32(a, self._dtype)

    def warm_up(self) -> None:
        """Compute one GEMM of each shape, so that BLAS starts its threads and loads its code."""
        for index, (shape, (a, b, c)) in enumerate(zip(self._shapes, self.views, strict=True)):
            if shape.op is not Op.GEMM:
                continue
            with np.errstate(invalid="ignore", over="ignore"):  # B may be an output, which holds anything
                # Into a new array, since slot 0 of C may hold inputs.
                self.multiply(index, a[:1], b[:1], np.empty_like(c[:1]))

    def _views_of(self, stream: Stream, shape: ShapeKey) -> tuple[Array, Array, Array]:
        """Return views of every slot of A, B and C. An operand that the op lacks is a placeholder of the same rank."""
        a, b, c = stream.operands(shape)
        view, op = self._arenas.view, shape.op
        if op in EXPERT_OPS:
            return expert_ops.views(self._arenas, shape, (a, b, c))
        if op is Op.SLOT_MAP:
            slots = self._indices(c, shape.n)
            return slots, slots, slots
        inputs = view(b, shape.n, shape.k)
        if op is Op.GEMM:
            weights = view(a, shape.m, shape.k)
        elif op in VECTOR_A or a.arena.role == "gain":
            weights = view(a, 1, a.arena.cols)
        elif op is Op.ADD:
            weights = view(a, shape.n, shape.m)
        elif op is Op.KV_WRITE:
            weights = self._indices(a, shape.n)
        elif op in (Op.QK, Op.AV):
            weights = self._pools(a)
        else:
            weights = inputs
        return weights, inputs, self._pools(c) if op is Op.KV_WRITE else view(c, shape.n, shape.m)

    def _indices(self, operand: Operand, count: int) -> Array:
        """Return every slot as int32 [slots, count]."""
        array = self._arenas.arrays[operand.arena].reshape(-1).view(np.int32)
        slots = 1 + (array.nbytes - count * array.itemsize) // operand.slot_bytes
        return np.lib.stride_tricks.as_strided(array, (slots, count), (operand.slot_bytes, array.itemsize))

    def _pools(self, operand: Operand) -> Array:
        """Return each layer's cache, [layers, pages, 2, page_tokens, kv_heads, head_dim]."""
        attention, arena = self._attention, operand.arena
        assert attention is not None
        rows = self._arenas.view(operand, arena.rows, arena.cols)
        sizes = attention.page_tokens, attention.kv_heads, attention.head_dim
        return rows.reshape(len(rows), attention.pages_total, 2, *sizes)


def stack(view: Array, slot: int, move: int, count: int) -> Array:
    """Return a view of `count` slots from `slot` on, at a distance of `move` slots."""
    if move == 0:  # as_strided, because a broadcast array cannot be written to
        return np.lib.stride_tricks.as_strided(view[slot], (count, *view.shape[1:]), (0, *view.strides[1:]))
    return view[slot : slot + move * (count - 1) + 1 : move]


def gather(view: Array, slots: Array, out: Array) -> None:
    """Copy some slots of a view to `out`. np.take first copies a view that is not contiguous, all of it."""
    if view.flags.c_contiguous:
        np.take(view, slots, axis=0, out=out, mode="clip")  # the default mode copies to `out` by way of another array
    else:
        out[:] = view[slots]

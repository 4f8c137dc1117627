"""Commands of a stream, executed one after another with NumPy. A correct run leaves the same outputs.

`Interpreter` holds the arenas and the state of sequences, and executes any record that a driver issues. `Run` executes
all steps of all requests and feeds results back; a test can plant faults. An op computes in fp32 and stores in the
stream's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from launchopt.command import COLLECTIVES, Op, Records, ShapeKey, as_words
from launchopt.devices.arenas import Arenas, from_float32, to_float32
from launchopt.devices.cpu.split import CpuSplit
from launchopt.devices.feedback.cpu import CpuSteps
from launchopt.devices.feedback.flights import Flights
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.chains.placement import UNIT_BYTES
from launchopt.verify.chains.tokens import verify_chain
from launchopt.verify.commands import CheckSettings, Verification
from support.steps.no_driver import NO_DRIVER
from support.steps.stream_steps import records_of, steps_of

SEED = 8  # seed of weights with which successive tokens differ, so that a stale input shows
NONE = Sampling(SamplingKind.none)


def shape_of(stream: ChainStream, record: Any) -> ShapeKey:
    """Return the shape of a record."""
    word = int(record["dtype"])
    m, n, k = (int(record[name]) for name in "mnk")
    return ShapeKey(m, n, k, stream.dtype, Op(int(record["op"])), word >> 4)


class Interpreter:
    """Arenas with random inputs and poisoned outputs, and the positions of all requests.

    split: a rank of a split model, which has the arenas.
    """

    def __init__(self, stream: ChainStream, seed: int = SEED, split: CpuSplit | None = None) -> None:
        self.stream, self.split = stream, split
        self.arenas = Arenas(np, stream.arenas, stream.fills) if split is None else split.arenas
        self.arenas.fill(seed)
        self.arenas.poison()
        self.flat = self.arenas.arrays[stream.activations].reshape(-1)
        self.start, self.next = (stream.table[:, ChainColumn.CACHED].copy() for _ in range(2))
        self.table = stream.page_table if stream.attention else None
        self._views: dict[ShapeKey, Any] = {}

    def operands(self, record: Any) -> tuple[Any, Any, Any]:
        """Return views of a command's A, B and C, in storage type; a cache has shape [pages, 2, tokens, heads, dim]."""
        shape = shape_of(self.stream, record)
        if shape not in self._views:
            self._views[shape] = [self._view(shape, role) for role in "abc"]
        a, b, c = (view[record[f"slot_{role}"]] for view, role in zip(self._views[shape], "abc", strict=True))
        return a, b, c

    def _view(self, shape: ShapeKey, role: str) -> Any:
        operand = self.stream.operands(shape)["abc".index(role)]
        if operand.arena.role == "kv":
            attention = self.stream.attention
            assert attention is not None
            pool = (attention.pages_total, 2, attention.page_tokens, attention.kv_heads, attention.head_dim)
            return self.arenas.arrays[operand.arena][:, : math.prod(pool)].reshape(-1, *pool)
        if (shape.op, role) in ((Op.SLOT_MAP, "c"), (Op.KV_WRITE, "a")):  # int32, packed: each row begins at a unit
            words = self.flat.view(np.int32).reshape(-1, UNIT_BYTES // 4)
            return _Packed(words, shape.n)
        rows = {"a": shape.m if shape.op is Op.GEMM else 1, "b": shape.n, "c": shape.n}[role]
        cols = {"a": shape.k if shape.op is Op.GEMM else shape.m, "b": shape.k, "c": shape.m}[role]
        if shape.op is Op.ADD and role == "a":
            rows = shape.n
        if role == "a" and operand.arena.role in ("bias", "gain"):
            cols = operand.arena.cols
        if (shape.op, role) == (Op.SLOT_MAP, "b"):
            cols = 1
        return self.arenas.view(operand, rows, cols)

    def execute(self, record: Any) -> None:
        """Execute one command."""
        dtype, op = self.stream.dtype, Op(int(record["op"]))
        a, b, c = self.operands(record)
        if op is Op.SLOT_MAP:
            self._map_slots(record, c)
        elif op is Op.KV_WRITE:
            self._write(a, b, c)
        elif op in COLLECTIVES:
            assert self.split is not None
            self.split.peers.exchange(op, [(b, c)])
        else:
            wide = to_float32(b, dtype)
            if op in (Op.QK, Op.SOFTMAX):
                self._scores(op, record, a, wide, c)
            else:
                c[:] = from_float32(self._compute(op, record, a, wide), dtype)

    def _compute(self, op: Op, record: Any, a: Any, b: Any) -> NDArray[np.float32]:
        if op is Op.RELU:
            return np.maximum(b, np.float32(0))
        if op is Op.SILU_MUL:
            gate, up = np.split(b, 2, axis=1)
            return cast(NDArray[np.float32], gate / (1 + np.exp(-gate)) * up)
        if op is Op.ROPE:
            return self._rotate(record, a, b)
        if op is Op.AV:
            return self._weigh(record, a, b)
        weight = to_float32(a, self.stream.dtype)
        if op is Op.GEMM:
            return cast(NDArray[np.float32], b @ weight.T)
        if op is Op.NORM:
            mean = (b**2).mean(axis=1, keepdims=True, dtype=np.float32)
            return cast(NDArray[np.float32], b / np.sqrt(mean + np.float32(self.stream.norm_epsilon)) * weight)
        return cast(NDArray[np.float32], b * weight if op is Op.SCALE else b + weight)

    def _map_slots(self, record: Any, c: Any) -> None:
        request, n, attention = int(record["request"]), int(record["n"]), self.stream.attention
        assert attention is not None
        assert self.table is not None
        self.start[request] = self.next[request]
        self.next[request] += n
        page, within = np.divmod(self.positions(record), attention.page_tokens)
        c[:] = self.table[request, page] * attention.page_tokens + within

    def positions(self, record: Any) -> NDArray[np.int64]:
        """Return the positions of a step's columns."""
        return cast(NDArray[np.int64], self.start[int(record["request"])] + np.arange(int(record["n"])))

    def _write(self, slots: Any, b: Any, cache: Any) -> None:
        attention = self.stream.attention
        assert attention is not None
        page, within = np.divmod(slots, attention.page_tokens)
        kv = b[:, -2 * attention.kv_width :].reshape(len(b), 2, attention.kv_heads, attention.head_dim)
        cache[page, :, within] = kv

    def kept(self, request: int, cache: Any, count: int) -> tuple[Any, Any]:
        """Return the keys and the values of the first `count` positions: float32 [count, kv_heads, head_dim] each."""
        attention = self.stream.attention
        assert attention is not None
        assert self.table is not None
        page, within = np.divmod(np.arange(count), attention.page_tokens)
        kv = to_float32(cache[self.table[request, page], :, within], self.stream.dtype)
        return kv[:, 0], kv[:, 1]

    def _rotate(self, record: Any, gains: Any, b: Any) -> NDArray[np.float32]:
        attention, dtype = self.stream.attention, self.stream.dtype
        assert attention is not None
        half = attention.head_dim // 2
        angles = self.positions(record)[:, None] * attention.theta ** (-2 * np.arange(half) / attention.head_dim)
        cos, sin = (f(angles).astype(np.float32)[:, None] for f in (np.cos, np.sin))
        heads = b.copy().reshape(len(b), -1, attention.head_dim)
        turned = heads[:, : attention.q_heads + attention.kv_heads]
        if attention.qk_norm:
            of_q, of_k = to_float32(gains, dtype).reshape(2, attention.head_dim)
            for own, gain in ((heads[:, : attention.q_heads], of_q), (turned[:, attention.q_heads :], of_k)):
                mean = (own**2).mean(axis=2, keepdims=True, dtype=np.float32)
                own[:] = to_float32(
                    from_float32(own / np.sqrt(mean + np.float32(self.stream.norm_epsilon)) * gain, dtype), dtype
                )
        x1, x2 = turned[..., :half].copy(), turned[..., half:].copy()
        turned[..., :half], turned[..., half:] = x1 * cos - x2 * sin, x2 * cos + x1 * sin
        return cast(NDArray[np.float32], heads.reshape(b.shape))

    def _scores(self, op: Op, record: Any, cache: Any, b: Any, c: Any) -> None:
        """Compute the scores of the positions that a column attends to. Other positions do not change."""
        attention = self.stream.attention
        assert attention is not None
        out = c.reshape(len(b), attention.q_heads, attention.ctx)
        for j, position in enumerate(self.positions(record)):
            seen = int(position) + 1
            if op is Op.QK:
                q = b[j, : attention.q_heads * attention.head_dim].reshape(attention.kv_heads, -1, attention.head_dim)
                keys, _ = self.kept(int(record["request"]), cache, seen)
                scores = np.einsum("hgd,thd->hgt", q, keys) / np.float32(math.sqrt(attention.head_dim))
            else:
                given = b[j].reshape(attention.q_heads, -1)[:, :seen]
                powers = np.exp(given - given.max(axis=1, keepdims=True))
                scores = powers / powers.sum(axis=1, keepdims=True)
            out[j, :, :seen] = from_float32(scores.reshape(attention.q_heads, seen), self.stream.dtype)

    def _weigh(self, record: Any, cache: Any, b: Any) -> NDArray[np.float32]:
        attention = self.stream.attention
        assert attention is not None
        rows = []
        for j, position in enumerate(self.positions(record)):
            seen = int(position) + 1
            p = b[j].reshape(attention.kv_heads, -1, attention.ctx)[..., :seen]
            _, values = self.kept(int(record["request"]), cache, seen)
            rows.append(np.einsum("hgt,thd->hgd", p, values).reshape(-1))
        return np.array(rows, np.float32)


class _Packed:
    """Lists of `n` int32 words. Each list begins at a unit, whose number is its slot."""

    def __init__(self, words: Any, n: int) -> None:
        self._words, self._n = words.reshape(-1), n

    def __getitem__(self, slot: Any) -> Any:
        first = int(slot) * (UNIT_BYTES // 4)
        return self._words[first : first + self._n]


Change = Callable[["Run", int, int, Records], Records]


def unchanged(run: Run, request: int, step: int, records: Records) -> Records:
    """Return the records unchanged: no fault."""
    return records


class Run(Interpreter):
    """Executes every step of every request, one command after another.

    change: returns the records to execute in place of a step's records. stale: (request, step) whose result is not fed
    back. early: a request that does not wait for the steps that compute its cached tokens.
    """

    def __init__(
        self,
        stream: ChainStream,
        sampling: Sampling = NONE,
        change: Change = unchanged,
        stale: tuple[int, int] | None = None,
        seed: int = SEED,
        split: CpuSplit | None = None,
        early: int | None = None,
    ) -> None:
        super().__init__(stream, seed, split)
        self.sampling = sampling
        self._steps = CpuSteps(stream, self.arenas, sampling)
        self._flights = Flights(stream, NO_DRIVER, self._steps.done)  # no driver to notify
        count = np.array([len(steps_of(stream, request)) for request in range(stream.requests)])
        ended = np.zeros_like(count)
        while np.any(ended < count):  # one step of each request, then the next, as in batches
            donors, needed = stream.table[:, ChainColumn.DONOR], stream.table[:, ChainColumn.DONOR_STEPS]
            may_run = (ended < count) & ((donors < 0) | (ended[donors] >= needed))
            if early is not None:
                may_run[early] = ended[early] < count[early]
            for request in sorted(np.flatnonzero(may_run).tolist(), key=lambda each: each != early):
                step = int(ended[request])
                records = self.records(request, step)
                for record in change(self, request, step, records.copy()):
                    self.execute(record)
                self._feed_back(records[-1:], is_stale=stale == (request, step))
                ended[request] += 1
        self.ids: NDArray[np.int64] = (
            self._steps.done[: stream.tokens].astype(np.uint32).view(np.int32).astype(np.int64)
        )

    def records(self, request: int, step: int) -> Records:
        """Return the records that the driver issues for a step."""
        return records_of(self.stream, request, step)

    def _feed_back(self, record: Records, is_stale: bool) -> None:
        start = int(self.stream.table[int(record["request"][0]), ChainColumn.LANE]) * self.stream.activations.cols
        given = self.flat[start : start + self.stream.hidden]
        before = given.copy()
        self._steps.feed_back(self._flights, self._flights.collect(as_words(record)))
        if is_stale:
            given[:] = before

    def verify(self, columns: int = 16, seed: int = 0) -> Verification:
        """Return the result of the check."""
        shares = None if self.split is None else self.split.shares
        settings = CheckSettings(columns, seed)
        return verify_chain(self.stream, self.arenas, self.sampling, self.ids, settings, shares=shares)

    def set(self, array: Any, at: Any, value: float) -> None:
        """Set one element, in storage type."""
        array[at] = from_float32(np.array([value], np.float32), self.stream.dtype)[0]

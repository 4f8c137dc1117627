"""The attention of one decode step in one launch, on the host or on a GPU, checked in float64 (step_attention.cu)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype
from launchopt.devices.arenas import STORAGE, SeqState, from_float32, to_float32
from launchopt.devices.cuda import step_attention
from launchopt.devices.cuda.step_attention import Addresses, Parts
from launchopt.kernels import source
from launchopt.streams.chains.attention import Attention, AttentionShape
from launchopt.types import Table
from launchopt.verify import ops as vo
from launchopt.verify.ops import Graded, exact
from support.cuda_on_host import built, launch
from support.steps.placed import aligned_copy
from support.steps.programs import NORM_EPSILON

CALL = (
    "char** p = (char**)arguments; "
    "step_attention(p[0], p[1], p[2], ((i64*)arguments)[3], *(StepAttention*)((i64*)arguments + 4))"
)
ROPE, ALONE = Parts(rope=True), Parts()
OPERANDS = 4  # words of the arguments before the struct


def poisoned(dtype: Dtype, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of NaNs, aligned like memory of a GPU."""
    flat = aligned_copy(np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8))
    return flat.view(STORAGE[dtype]).reshape(shape)


def on_host(step: Step) -> None:
    """Launch on the host, where threads run one after another."""
    library = built(step_attention.NAME, CALL, step.races, **step.defines)
    words, threads = step.words(lambda array: int(array.ctypes.data)), 32 * step.defines["BLOCK_WARPS"]
    at_once = min(int(np.prod(step.grid)), 4)
    launch(library, step.grid, threads, 0, words.ctypes.data, step.seed, at_once=at_once)


def on_gpu(step: Step) -> None:
    """Launch on a GPU, twice, on copies of the step's arrays; copy cache, results and counters back."""
    import cupy

    copies: dict[int, Any] = {}

    def address(array: Any) -> int:
        copies[id(array)] = cupy.asarray(array)
        return int(copies[id(array)].data.ptr)

    options = ("-std=c++17", *(f"-D{key}={value}" for key, value in step.defines.items()))
    kernel = cupy.RawModule(code=source(step_attention.NAME), options=options).get_function(step_attention.NAME)
    words = step.words(address)
    struct = words[OPERANDS:].view(np.dtype(f"V{words[OPERANDS:].nbytes}"))
    for _ in range(2):  # the second launch finds the counters as the first one leaves them
        kernel(step.grid, (32 * step.defines["BLOCK_WARPS"],), (*words[:OPERANDS], struct))
    cupy.cuda.Device().synchronize()
    for array in (step.pool, step.out, step.arrived):
        array[...] = copies[id(array)].get()


@dataclass
class Step:
    """The attention of one decode step: its cache, rows of q, k and v, positions, and the launch.

    run: launches on the host (`on_host`) or on a GPU (`on_gpu`).
    """

    dtype: Dtype
    heads: tuple[int, int, int]  # kv heads, queries per kv head, features
    ctx: int
    page: int | None
    starts: list[int]  # position of each request's new token
    parts: Parts = ROPE
    run: Callable[[Step], None] = on_host
    splits: int = 1
    least: int = 1
    races: bool = False
    seed: int = 0
    qk_norm: bool = False
    warps: int = step_attention.WARPS
    first: int = 0  # first request of the launch

    def __post_init__(self) -> None:
        kv_heads, group, dim = self.heads
        shape = AttentionShape(kv_heads * group, kv_heads, dim, self.ctx, self.page, qk_norm=self.qk_norm)
        self.attention = attention = Attention.of(shape, len(self.starts))
        self.state = SeqState(np, attention, len(self.starts), seed=3)
        self.state.positions[0] = self.starts
        generator = np.random.default_rng(self.ctx)
        pool = (attention.pages_total, 2, attention.page_tokens, kv_heads, dim)
        self.pool = poisoned(self.dtype, pool)
        known = [start + (not self.parts.rope) for start in self.starts]
        for request, count in enumerate(known):
            for token in range(min(count, self.ctx)):
                values = generator.standard_normal((2, kv_heads, dim)).astype(np.float32)
                self.pool[*self.place(request, token)] = from_float32(values, self.dtype)
        width = shape.qkv_width
        self.rows, self.out = (poisoned(self.dtype, (len(self.starts), size)) for size in (width, shape.q_width))
        self.rows[:] = from_float32(generator.standard_normal(self.rows.shape).astype(np.float32), self.dtype)
        gains = 1 + 0.5 * generator.uniform(-1, 1, (2, dim)).astype(np.float32)
        self.gains = poisoned(self.dtype, (2, dim))
        self.gains[:] = from_float32(gains, self.dtype)
        self.turns = step_attention.turns_of(attention)
        items, most = len(self.starts) * kv_heads, len(self.starts) * kv_heads * self.splits
        self.mixed, self.weights = (
            np.full((most, group, dim), np.nan, np.float32),
            np.full((most, group, 2), np.nan, "f4"),
        )
        self.arrived = np.zeros(items, np.uint32)

    def place(self, request: int, token: int) -> Any:
        page, within = divmod(token, self.attention.page_tokens)
        return int(self.state.table[request, page]), slice(None), within

    def words(self, address: Callable[[Any], int]) -> Table:
        """Return the arguments of the launch. address: returns the address of one of the step's arrays."""
        state, size = self.state, self.dtype.itemsize
        held = (self.turns, self.gains, self.mixed, self.weights, self.arrived)
        of_state = address(state.positions), address(state.table), state.requests
        strides = self.rows.shape[1] * size, self.out.shape[1] * size
        at = Addresses(*of_state, *map(address, held))
        words = step_attention.words_of(self.attention, self.splits, self.least, strides, at)
        operands = [address(self.pool), *(address(x) + self.first * x[0].nbytes for x in (self.rows, self.out))]
        return np.concatenate([np.array([*operands, self.first], np.int64), words])

    @property
    def defines(self) -> dict[str, int | str]:
        """The macros of the kernel."""
        return {
            "DTYPE": int(self.dtype),
            "NORM_EPSILON": f"{NORM_EPSILON}f",
            **step_attention.defines_of(self.attention, self.dtype, self.parts, self.warps),
        }

    @property
    def grid(self) -> tuple[int, int, int]:
        """The grid of the launch, for one request more than exist."""
        return self.splits, self.heads[0], len(self.starts) - self.first + 1

    def wide(self, array: NDArray[Any]) -> NDArray[np.float64]:
        return to_float32(array, self.dtype).astype(np.float64)

    def expected(self, request: int) -> tuple[Graded, Graded]:
        """Return the rotated row, and the result of attention over the keys and values that are in the cache."""
        kv_heads, _, dim = self.heads
        attention, start = self.attention, self.starts[request]
        row = exact(np, self.wide(self.rows[request : request + 1]))
        if self.parts.rope and self.qk_norm:
            gains, heads = self.wide(self.gains).reshape(1, -1), (attention.q_heads, kv_heads)
            row = vo.head_norm(np, row, gains, heads, self.dtype, NORM_EPSILON)
        if self.parts.rope:
            row = vo.rope(np, row, np.array([start]), attention.q_heads + kv_heads, dim, attention.theta, self.dtype)
        count = min(start + 1, self.ctx)
        kept = np.stack([self.wide(self.pool[self.place(request, token)]) for token in range(count)])
        q = Graded(*(x[:, : attention.q_heads * dim].reshape(1, -1, dim) for x in (row.value, row.variance)))
        seen = np.ones((1, count), bool)
        scores = vo.scores(np, q, exact(np, kept[:, 0]), self.dtype)
        soft = vo.softmax(np, scores, seen, self.dtype)
        return row, vo.weighed(np, soft, exact(np, kept[:, 1]), seen, self.dtype)

    def check(self) -> None:
        before = self.pool.copy()
        self.run(self)
        differ = before.view(np.uint8) != self.pool.view(np.uint8)
        changed = np.argwhere(differ.any(axis=(1, 3, 4)))
        stored = []
        for request in range(self.first, len(self.starts)):
            if self.starts[request] >= self.ctx:  # no run has such a token; nothing of it may be stored in the cache
                continue
            row, result = self.expected(request)
            off = np.abs(self.wide(self.out[request])[None] - result.value)
            assert (off <= vo.allowed(np, result)).all(), (request, float((off / vo.allowed(np, result)).max()))
            if self.parts.rope:
                page, _, within = self.place(request, self.starts[request])
                stored.append([page, within])
                width = 2 * self.attention.kv_width
                off = np.abs(self.wide(self.pool[page, :, within]).reshape(-1) - row.value[0, -width:])
                assert (off <= vo.allowed(np, row)[0, -width:]).all()
        assert sorted(changed.tolist()) == sorted(stored)
        assert (self.out[: self.first].view(np.uint8) == 0xFF).all()
        assert not self.arrived.any()

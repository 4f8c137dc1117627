"""kernels/step_attention.cu on the host: contexts around the limits of tiles and splits, heads, pages, new tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cuda_on_host import built, can_build, can_find_races, launch
from support.steps.placed import aligned_copy

from launchopt.command import Dtype
from launchopt.devices.arenas import STORAGE, SeqState, from_float32, to_float32
from launchopt.devices.cuda import step_attention
from launchopt.devices.cuda.step_attention import Addresses, Parts
from launchopt.streams.attention import Attention, AttentionShape
from launchopt.verify import ops as vo
from launchopt.verify.ops import Graded, exact

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")


def poisoned(dtype: Dtype, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of NaNs, aligned like memory of a GPU."""
    return (
        aligned_copy(np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8)).view(STORAGE[dtype]).reshape(shape)
    )


CALL = (
    "char** p = (char**)arguments; "
    "step_attention(p[0], p[1], p[2], ((i64*)arguments)[3], *(StepAttention*)((i64*)arguments + 4))"
)
ROPE, ALONE = Parts(rope=True), Parts()


@dataclass
class Step:
    """The attention of one decode step: its cache, rows of q, k and v, positions, and the launch."""

    dtype: Dtype
    heads: tuple[int, int, int]  # kv heads, queries per kv head, features
    ctx: int
    page: int | None
    starts: list[int]  # position of each request's new token
    parts: Parts = ROPE
    splits: int = 1
    least: int = 1
    races: bool = False
    seed: int = 0
    qk_norm: bool = False
    first: int = 0  # first request of the launch
    memory: dict[str, Any] = field(default_factory=dict)

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

    def run(self) -> None:
        size = self.dtype.itemsize
        state, held = self.state, (self.turns, self.gains, self.mixed, self.weights, self.arrived)
        of_state = state.positions.ctypes.data, state.table.ctypes.data, state.requests
        at = Addresses(*of_state, *(array.ctypes.data for array in held))
        strides = self.rows.shape[1] * size, self.out.shape[1] * size
        words = step_attention.words_of(self.attention, self.splits, self.least, strides, at)
        defines = step_attention.defines_of(self.attention, self.dtype, self.parts)
        library = built(step_attention.NAME, CALL, self.races, DTYPE=int(self.dtype), **defines)
        operands = [self.pool.ctypes.data, self.rows[self.first :].ctypes.data, self.out[self.first :].ctypes.data]
        arguments = np.concatenate([np.array([*operands, self.first], np.int64), words])
        grid = (self.splits, self.heads[0], len(self.starts) - self.first + 1)  # one request more than exist
        blocks = int(np.prod(grid))
        launch(library, grid, 32 * defines["BLOCK_WARPS"], 0, arguments.ctypes.data, self.seed, at_once=min(blocks, 4))

    def wide(self, array: NDArray[Any]) -> NDArray[np.float64]:
        return to_float32(array, self.dtype).astype(np.float64)

    def expected(self, request: int) -> tuple[Graded, Graded]:
        """Return the rotated row, and the result of attention over the keys and values that are in the cache."""
        kv_heads, _, dim = self.heads
        attention, start = self.attention, self.starts[request]
        row = exact(np, self.wide(self.rows[request : request + 1]))
        if self.parts.rope and self.qk_norm:
            row = vo.head_norm(np, row, self.wide(self.gains).reshape(1, -1), (attention.q_heads, kv_heads), self.dtype)
        if self.parts.rope:
            heads = attention.q_heads + kv_heads
            row = vo.rope(np, row, np.array([start]), heads, dim, attention.theta, self.dtype)
        count = min(start + 1, self.ctx)
        kept = np.stack([self.wide(self.pool[self.place(request, token)]) for token in range(count)])
        q = Graded(*(x[:, : attention.q_heads * dim].reshape(1, -1, dim) for x in (row.value, row.variance)))
        seen = np.ones((1, count), bool)
        scores = vo.scores(np, q, exact(np, kept[:, 0]), self.dtype)
        soft = vo.softmax(np, scores, seen, self.dtype)
        return row, vo.weighed(np, soft, exact(np, kept[:, 1]), seen, self.dtype)

    def check(self) -> None:
        before = self.pool.copy()
        self.run()
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


# (dtype; kv heads, queries per kv head, features; ctx; page; positions; parts; splits; least tokens of a split)
STEPS: list[tuple[Any, ...]] = [
    (Dtype.bf16, (1, 4, 128), 64, None, [0, 1, 15, 63], ROPE, 1, 1),
    (Dtype.bf16, (2, 4, 64), 300, 16, [255, 256, 31], ROPE, 1, 1),
    (Dtype.bf16, (2, 4, 128), 300, 16, [299, 128, 0], ROPE, 4, 16),
    (Dtype.bf16, (1, 8, 64), 300, 5, [299, 128, 7], ROPE, 3, 32),
    (Dtype.bf16, (1, 3, 128), 300, 5, [200], ALONE, 3, 1),
    (Dtype.fp16, (2, 1, 64), 290, 32, [289, 31, 32, 33], ALONE, 2, 64),
    (Dtype.fp16, (1, 2, 128), 150, None, [149, 150, 200], ROPE, 2, 32),  # tokens beyond ctx are not stored
    (Dtype.fp16, (1, 2, 128), 150, None, [149, 150], ALONE, 2, 32),
    (Dtype.fp32, (2, 4, 128), 200, 16, [199, 64, 0], ROPE, 4, 16),
    (Dtype.fp32, (1, 8, 64), 200, None, [199, 15, 16], ROPE, 1, 1),
    (Dtype.fp32, (1, 1, 64), 200, 3, [150], ALONE, 2, 16),
]


@pytest.mark.parametrize("pdl", [False, True], ids=["alone", "pdl"])
@pytest.mark.parametrize("given", STEPS, ids=str)
def test_a_step(given: tuple[Any, ...], pdl: bool) -> None:
    dtype, heads, ctx, page, starts, parts, splits, least = given
    Step(dtype, heads, ctx, page, starts, replace(parts, pdl=pdl), splits, least).check()


@pytest.mark.parametrize(
    ("dtype", "heads"),
    [(Dtype.bf16, (2, 2, 128)), (Dtype.fp16, (1, 4, 64)), (Dtype.fp32, (1, 8, 128)), (Dtype.fp32, (1, 2, 64))],
    ids=str,
)
def test_heads_of_queries_and_keys_are_normed(dtype: Dtype, heads: tuple[int, int, int]) -> None:
    Step(dtype, heads, 64, 16, [3, 40, 63], qk_norm=True).check()


def test_a_launch_for_later_requests() -> None:
    Step(Dtype.bf16, (1, 4, 64), 64, 16, [3, 40, 63], first=1).check()


@pytest.mark.parametrize("dtype", [Dtype.bf16, Dtype.fp32], ids=lambda dtype: dtype.name)
def test_results_do_not_depend_on_the_order_of_splits(dtype: Dtype) -> None:
    found = []
    for seed in range(3):
        step = Step(dtype, (1, 4, 64), 200, 16, [199], splits=4, least=32, seed=seed)
        step.run()
        step.run()
        found.append(step.out.tobytes())
    assert len(set(found)) == 1


@pytest.mark.skipif(not can_find_races(), reason="needs a newer g++")
@pytest.mark.parametrize(
    "given",
    [(Dtype.bf16, (1, 4, 64), 70, 16, [69, 31], ROPE, 3, 16), (Dtype.fp32, (1, 2, 64), 40, None, [39], ALONE, 2, 16)],
    ids=str,
)
def test_threads_do_not_race(given: tuple[Any, ...]) -> None:
    dtype, heads, ctx, page, starts, parts, splits, least = given
    Step(dtype, heads, ctx, page, starts, replace(parts, pdl=True), splits, least, races=True).check()

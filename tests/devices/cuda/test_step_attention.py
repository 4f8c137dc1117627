"""One launch for the attention of a decode step: contexts around the limits of tiles and splits, heads, pages, norms.

On a GPU, and on the host (cuda_on_host).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cuda_on_host import can_build, can_find_races
from support.steps.attention_step import ALONE, ROPE, Step, on_gpu, on_host

from launchopt.command import Dtype
from launchopt.devices.cuda import step_attention
from launchopt.devices.cuda.step_attention import MULTIPROCESSORS, splits_of, sums_shape
from launchopt.streams.chains.attention import Attention, AttentionShape

gpu = pytest.param(on_gpu, marks=pytest.mark.gpu, id="gpu")
host = pytest.param(on_host, marks=pytest.mark.skipif(not can_build(), reason="needs g++"), id="host")
on_each = pytest.mark.parametrize("where", [gpu, host])
on_gpu_only = pytest.mark.parametrize("where", [gpu])

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


@on_each
@pytest.mark.parametrize("pdl", [False, True], ids=["alone", "pdl"])
@pytest.mark.parametrize("given", STEPS, ids=str)
def test_a_step(where: Any, given: tuple[Any, ...], pdl: bool) -> None:
    dtype, heads, ctx, page, starts, parts, splits, least = given
    Step(dtype, heads, ctx, page, starts, replace(parts, pdl=pdl), where, splits, least).check()


@on_gpu_only
@pytest.mark.parametrize("parts", [ROPE, ALONE], ids=str)
@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("page", [None, 16])
def test_long_contexts(where: Any, dtype: Dtype, parts: Any, page: int | None) -> None:
    heads, attention = (2, 4, 128), shape(8, 2, 128, 4000)
    splits, least = splits_of(attention, dtype, 3), step_attention.least_tokens(attention, dtype)
    assert splits > 8
    Step(dtype, heads, attention.ctx, page, [3999, 2500, 17], parts, where, splits, least).check()


@pytest.mark.parametrize(
    ("dtype", "heads"),
    [(Dtype.bf16, (2, 2, 128)), (Dtype.fp16, (1, 4, 64)), (Dtype.fp32, (1, 8, 128)), (Dtype.fp32, (1, 2, 64))],
    ids=str,
)
@on_each
def test_heads_of_queries_and_keys_are_normed(where: Any, dtype: Dtype, heads: tuple[int, int, int]) -> None:
    Step(dtype, heads, 64, 16, [3, 40, 63], ROPE, where, qk_norm=True).check()


@on_each
@pytest.mark.parametrize("heads", [(1, 8, 128), (1, 4, 64)], ids=str)
def test_blocks_of_fewer_warps(where: Any, heads: tuple[int, int, int]) -> None:
    step = Step(Dtype.bf16, heads, 300, 16, [299, 40, 128], ROPE, where, warps=step_attention.FEWER_WARPS)
    step.check()


@on_each
def test_a_launch_for_later_requests(where: Any) -> None:
    Step(Dtype.bf16, (1, 4, 64), 64, 16, [3, 40, 63], ROPE, where, first=1).check()


@pytest.mark.skipif(not can_build(), reason="needs g++")
@pytest.mark.parametrize("dtype", [Dtype.bf16, Dtype.fp32], ids=lambda dtype: dtype.name)
def test_results_do_not_depend_on_the_order_of_splits(dtype: Dtype) -> None:
    found = []
    for seed in range(3):
        step = Step(dtype, (1, 4, 64), 200, 16, [199], splits=4, least=32, seed=seed)
        on_host(step)
        on_host(step)
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
    Step(dtype, heads, ctx, page, starts, replace(parts, pdl=True), on_host, splits, least, races=True).check()


# -- The division of the tokens


def shape(q_heads: int, kv_heads: int, head_dim: int, ctx: int, qk_norm: bool = False) -> Attention:
    return Attention.of(AttentionShape(q_heads, kv_heads, head_dim, ctx, qk_norm=qk_norm), 64)


@pytest.mark.parametrize("requests", [1, 3, 16, 17, 64])
def test_blocks_share_tokens_until_each_multiprocessor_has_one(requests: int) -> None:
    long, short = shape(32, 8, 128, 8192), shape(32, 8, 128, 100)
    splits, items = splits_of(long, Dtype.bf16, requests), 8 * requests
    assert splits == 1 or items * splits <= MULTIPROCESSORS < items * (splits + 1)
    assert splits_of(short, Dtype.bf16, requests) == 1
    most_items, most_splits, width = sums_shape(long, requests)
    assert (most_items, width) == (items, 4 * 128)
    assert splits == 1 or items * splits <= most_splits


def test_blocks_have_fewer_warps_if_not_all_fit_on_the_gpu() -> None:
    attention = shape(32, 8, 128, 100)
    assert [step_attention.warps_of(attention, Dtype.bf16, requests) for requests in (1, 33, 34)] == [8, 8, 4]
    assert step_attention.warps_of(attention, Dtype.fp32, 64) == 8


def test_shapes_that_the_kernel_declines() -> None:
    assert step_attention.refusal(shape(32, 8, 128, 10)) is None
    assert step_attention.refusal(shape(8, 8, 64, 10)) is None
    assert "head_dim=80" in str(step_attention.refusal(shape(8, 8, 80, 10)))
    assert "9 query heads per kv head" in str(step_attention.refusal(shape(9, 1, 64, 10)))


def test_angles_are_exact_at_far_positions() -> None:
    far = shape(1, 1, 64, 40_000)
    turns, theta = step_attention.turns_of(far), far.theta
    angles = np.array([[math.remainder(p * theta ** (-i / 32), 2 * math.pi) for i in range(32)] for p in (7, 39_999)])
    assert np.abs(turns[[7, 39_999], :32] - np.cos(angles)).max() < 1e-7
    assert np.abs(turns[[7, 39_999], 32:] - np.sin(angles)).max() < 1e-7

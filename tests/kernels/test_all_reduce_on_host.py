"""kernels/all_reduce.cu on the host (cuda_on_host): ranks are processes, which see each other's memory as GPUs do."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.pool import Pool

import numpy as np
import pytest
from support.cuda_on_host import can_build
from support.processes.all_reduce_ranks import RANKS, Case, add
from support.steps.split_runs import team_of

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.peers.launches import all_reduce_launch
from launchopt.kernels.shared import ALL_REDUCE_BLOCKS, ALL_REDUCE_THREADS, AllReduceAccount

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")
PATIENCE_S = 120
CASES = [
    Case(Dtype.bf16, m=64, n=1, commands=1, row=128, rounds=6),
    Case(Dtype.fp16, m=40, n=3, commands=2, row=48, rounds=4),  # vectors end within rows
    Case(Dtype.fp32, m=33, n=2, commands=3, row=35, rounds=4, pdl=True),  # rows are not aligned
    Case(Dtype.bf16, m=2048, n=1, commands=5, row=2048, rounds=3),  # several blocks
    Case(Dtype.bf16, m=4096, n=4, commands=5, row=4096, rounds=2),  # more than is pushed
    Case(Dtype.bf16, m=4096, n=4, commands=5, row=4096, rounds=4, fewer=1),  # read and pushed in turn
    Case(Dtype.bf16, m=2048, n=1, commands=2, row=2048, rounds=4, op=Op.ALL_GATHER),
    Case(Dtype.fp16, m=44, n=2, commands=3, row=48, rounds=4, op=Op.ALL_GATHER, pdl=True),  # parts are not aligned
    Case(Dtype.fp32, m=4096, n=3, commands=4, row=4096, rounds=4, fewer=1, op=Op.ALL_GATHER),  # read and pushed in turn
]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pool]:
    with get_context("spawn").Pool(RANKS) as pool:
        yield pool


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.op.name} {case.dtype.name} {case.commands}x{case.n}x{case.m}"
)
def test_all_ranks_get_the_sum_or_the_parts_in_the_order_of_ranks_again_and_again(case: Case, ranks: Pool) -> None:
    with team_of(RANKS, case.memory_bytes) as (_, members):
        found = ranks.map_async(add, [(case, member) for member in members], chunksize=1).get(PATIENCE_S)
    for number in range(case.rounds):
        parts = [case.part(rank, number) for rank in range(RANKS)]
        total = np.zeros(parts[0].shape, np.float32)
        for part in parts:
            total += to_float32(part, case.dtype)
        is_sum = case.op is Op.ALL_REDUCE
        expected = from_float32(total, case.dtype) if is_sum else np.concatenate(parts, axis=-1)
        for results, _ in found:
            assert np.array_equal(results[number], expected)
    for _, account in found:
        calls, total_ns, wait_ns, gave_up = account.tolist()
        assert (calls, gave_up) == (case.rounds if is_sum else 0, 0)
        assert len(account) == len(AllReduceAccount)
        assert wait_ns <= total_ns


@pytest.mark.parametrize(("m", "size", "blocks", "threads"), [(64, 1, 1, 32), (4096, 1, 1, 512), (4096, 64, 64, 512)])
def test_all_blocks_of_a_launch_can_run_at_once(m: int, size: int, blocks: int, threads: int) -> None:
    made = all_reduce_launch(ShapeKey(m, 1, m, Dtype.bf16, Op.ALL_REDUCE), size, (0, m, m), (0, 0, 0), 0)
    assert (made.grid, made.block) == ((blocks, 1, 1), (threads, 1, 1))
    assert blocks <= ALL_REDUCE_BLOCKS
    assert threads <= ALL_REDUCE_THREADS

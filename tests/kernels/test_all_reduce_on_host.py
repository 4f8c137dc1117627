"""kernels/all_reduce.cu on the host (cuda_on_host): ranks are processes, which see each other's memory as GPUs do."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.pool import Pool

import numpy as np
import pytest
from support.cuda_on_host import can_build
from support.processes.all_reduce_ranks import MOST, POISON, Case, add, add_to_residual, residuals
from support.steps.programs import NORM_EPSILON
from support.steps.split_runs import team_of

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.devices.cpu.ops import norm
from launchopt.devices.peers.launches import all_reduce_launch
from launchopt.kernels.shared_peers import ALL_REDUCE_BLOCKS, ALL_REDUCE_THREADS, AllReduceAccount

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
    Case(Dtype.bf16, m=2048, n=1, commands=5, row=2048, rounds=3, ranks=4),
    Case(Dtype.bf16, m=8192, n=1, commands=16, row=8192, rounds=3, fewer=1, ranks=4),  # read and pushed in turn
    Case(Dtype.bf16, m=1024, n=1, commands=2, row=1024, rounds=4, ranks=8),
    Case(Dtype.bf16, m=8192, n=1, commands=9, row=8192, rounds=2, fewer=1, ranks=8),  # read and pushed in turn
    Case(Dtype.bf16, m=96, n=1, commands=2, row=96, rounds=4, op=Op.ALL_GATHER, ranks=8),
]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pool]:
    with get_context("spawn").Pool(MOST) as pool:
        yield pool


@pytest.mark.parametrize(
    "case",
    CASES,
    ids=lambda case: f"{case.op.name} {case.dtype.name} {case.commands}x{case.n}x{case.m} of {case.ranks}",
)
def test_all_ranks_get_the_sum_or_the_parts_in_the_order_of_ranks_again_and_again(case: Case, ranks: Pool) -> None:
    with team_of(case.ranks, case.memory_bytes) as (_, members):
        found = ranks.map_async(add, [(case, member) for member in members], chunksize=1).get(PATIENCE_S)
    for number in range(case.rounds):
        parts = [case.part(rank, number) for rank in range(case.ranks)]
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


FUSED = [
    Case(Dtype.bf16, m=64, n=1, commands=1, row=128, rounds=5),
    Case(Dtype.fp16, m=4096, n=1, commands=3, row=4096, rounds=3, pdl=True),
    Case(Dtype.fp32, m=33, n=2, commands=3, row=35, rounds=4),  # rows are not aligned
    Case(Dtype.bf16, m=4104, n=1, commands=2, row=4112, rounds=3),  # a row is more than a block pushes
    Case(Dtype.bf16, m=64, n=2, commands=40, row=64, rounds=3, pdl=True),  # more columns than blocks
    Case(Dtype.bf16, m=4096, n=1, commands=2, row=4096, rounds=3, ranks=4),
    Case(Dtype.bf16, m=4096, n=1, commands=2, row=4096, rounds=3, ranks=8),
]


@pytest.mark.parametrize("norms", [False, True], ids=["add", "add and norm"])
@pytest.mark.parametrize("case", FUSED, ids=str)
def test_all_ranks_add_the_sum_to_the_residual_and_norm_it(case: Case, norms: bool, ranks: Pool) -> None:
    with team_of(case.ranks, case.memory_bytes) as (_, members):
        given = [(case, norms, member) for member in members]
        found = ranks.map_async(add_to_residual, given, chunksize=1).get(PATIENCE_S)
    *residual, gain = (to_float32(each, case.dtype) for each in residuals(case))
    total = np.zeros((case.commands, case.n, case.m), np.float32)
    for rank in range(case.ranks):
        total += to_float32(case.part(rank, case.rounds - 1), case.dtype)
    sums = from_float32(np.stack(residual).reshape(total.shape) + total, case.dtype)
    for out, account in found:
        assert np.array_equal(out[0, ..., : case.m], sums)
        if norms:
            expected = norm(to_float32(sums, case.dtype), gain, NORM_EPSILON)
            got = to_float32(out[1, ..., : case.m], case.dtype)
            np.testing.assert_allclose(got, expected, rtol=2 * case.dtype.unit_roundoff + 1e-5, atol=1e-7)
        assert (out[..., case.m :] == POISON).all(), "written beside the rows"
        assert norms or (out[1] == POISON).all()
        assert account.tolist()[0] == case.rounds
    assert len({out.tobytes() for out, _ in found}) == 1, "all ranks have the same bits"


@pytest.mark.parametrize(("m", "size", "blocks", "threads"), [(64, 1, 1, 32), (4096, 1, 1, 512), (4096, 64, 64, 512)])
def test_all_blocks_of_a_launch_can_run_at_once(m: int, size: int, blocks: int, threads: int) -> None:
    made = all_reduce_launch(ShapeKey(m, 1, m, Dtype.bf16, Op.ALL_REDUCE), size, (0, m, m), (0, 0, 0), 0)
    assert (made.grid, made.block) == ((blocks, 1, 1), (threads, 1, 1))
    assert blocks <= ALL_REDUCE_BLOCKS
    assert threads <= ALL_REDUCE_THREADS

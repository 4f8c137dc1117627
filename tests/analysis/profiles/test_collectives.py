"""The wait of each GPU in collectives, and the transfer, follow from the begins and ends of their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results.kineto_events import call, kernel, written

from launchopt.analysis.profiles.collectives import Collectives, TimedGpu, collectives, timed_gpus
from launchopt.traces.kineto import read_kineto

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def gpu(name: str, arrivals_us: Sequence[float], ends_us: Sequence[float]) -> TimedGpu:
    starts, ends = ((np.array(values) * 1000).astype(np.int64) for values in (arrivals_us, ends_us))
    return TimedGpu(name, starts, ends)


def test_a_wait_ends_when_the_last_gpu_arrives_and_the_transfer_begins() -> None:
    first = gpu("first", [10, 100, 200], [20, 115, 230])
    second = gpu("second", [16, 105, 190], [20, 115, 230])
    (found,) = collectives([[first], [second]])
    assert isinstance(found, Collectives)
    assert found.count == 3
    assert (found.skew_p50_us, found.transfer_p50_us) == (6.0, 10.0)
    assert (found.clock_error_us, found.is_clock_set) == (
        12.0,
        False,
    )  # bounds of the first one: -10 to 4; 2 for rounding
    one, two = found.gpus
    assert (one.gpu, one.wait_p50_us, one.last_share) == ("first", 5.0, pytest.approx(1 / 3))
    assert (two.gpu, two.wait_p50_us, two.last_share) == ("second", 0.0, pytest.approx(2 / 3))


@given(st.integers(-(10**15), 10**15), st.lists(st.integers(0, 5000), min_size=2, max_size=30))
def test_a_clock_that_is_off_changes_no_wait_by_more_than_the_error_says(offset_ns: int, late_ns: list[int]) -> None:
    """Collectives of 20 us, to which the second GPU comes late by some ns."""
    begins = np.arange(len(late_ns)) * 1_000_000
    late, ends = np.array(late_ns), begins + 20_000
    first, second = TimedGpu("a", begins, ends), TimedGpu("b", begins + late + offset_ns, ends + offset_ns)
    (found,) = collectives([[first], [second]])
    assert isinstance(found, Collectives)
    waited = float(np.percentile(late, 50)) / 1e3
    assert abs(found.gpus[0].wait_p50_us - waited) <= found.clock_error_us + 1e-3
    if found.is_clock_set:
        assert found.clock_error_us <= 22
    else:
        assert abs(offset_ns) <= 22_000


def test_gpus_with_other_counts_or_collectives_of_other_times_are_not_matched() -> None:
    first = gpu("first", [10, 100], [20, 110])
    (counts,) = collectives([[first], [gpu("second", [10], [20])]])
    assert counts == "2 on first, 1 on second"
    (times,) = collectives([[first], [gpu("second", [10, 150], [20, 160])]])
    assert times == "some end on first before they begin on another one, or the reverse, whatever the clocks"


def test_the_gpus_of_one_trace_work_together_as_do_those_of_all_traces_with_one() -> None:
    pair = [gpu("a", [10], [20]), gpu("b", [11], [20])]
    alone = [gpu("c", [10], [20])]
    assert len(collectives([pair, alone])) == 1
    assert len(collectives([pair, alone, pair, alone, []])) == 3
    assert collectives([alone]) == collectives([]) == []


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        (NCCL, True),
        ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)", True),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", True),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)", True),
        ("one_shot_all_reduce_kernel", True),
        ("REDUCE_ADD_NORM", True),
        ("ncclDevKernel_SendRecv", False),
        ("void at::native::reduce_kernel<512, 1>", False),
        ("gemm", False),
    ],
)
def test_names_of_kernels_say_what_a_collective_is(name: str, is_one: bool, tmp_path: Path) -> None:
    events: list[Any] = [call(0, 1, 1), kernel(2, 3, 1, name=name), kernel(9, 1, 2)]
    found = timed_gpus("trace", read_kineto(written(tmp_path, events)))
    assert [each.name for each in found] == (["GPU 0 of trace"] if is_one else [])
    if is_one:
        assert (found[0].starts_ns.tolist(), found[0].ends_ns.tolist()) == ([2000], [5000])

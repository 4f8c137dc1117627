"""A run whose clocks contradict each other, or whose rates cannot be, fails; the sentence says by how much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results.six_commands import EVENTS, HOST, ZERO, six_commands
from support.steps.launching import launch

from launchopt.recording.impossible import CEILINGS, MOST_CHANGE, Limits, above_ceiling, clock_faults, settle
from launchopt.recording.recorder import Recorder
from launchopt.recording.summary import Timing
from launchopt.timing.activity import Activity, Ceilings, Span

NO_SAMPLES = np.empty((0, 2), np.int64)


def one_launch(start_ns: int, end_ns: int) -> Recorder:
    recorder = Recorder(1)
    launch(recorder, [0], flush_ns=ZERO + start_ns, start_ns=ZERO + start_ns, end_ns=ZERO + end_ns, zero_ns=ZERO)
    return recorder


@pytest.mark.parametrize("timing", [EVENTS, HOST], ids=["events", "host"])
def test_clocks_that_agree_have_no_fault(timing: Timing) -> None:
    assert clock_faults(six_commands(), timing) == []


def test_a_span_that_ends_before_its_last_launch_ends() -> None:
    timing = replace(HOST, span=replace(HOST.span, end_ns=ZERO + 3_000))
    assert clock_faults(six_commands(), timing) == ["clocks: the last launch ended 0.600 us after the run"]


def test_launches_of_no_time_and_of_less() -> None:
    assert clock_faults(one_launch(5, 5), HOST) == ["clocks: 1 launches took no time"]
    assert clock_faults(one_launch(5, 4), HOST) == ["clocks: 1 launches ended before they started"]


def test_a_call_to_a_gpu_may_be_shorter_than_a_tick_of_the_clock() -> None:
    assert clock_faults(one_launch(5, 5), EVENTS) == []


def sampled(span_ns: int, *samples: tuple[int, int], end_ns: int = 10_000_000) -> list[str]:
    times = np.array(samples, np.int64) + ZERO
    return clock_faults(one_launch(5, 6), Timing(ZERO, Span(ZERO + end_ns, span_ns, times, clock_error_ns=50_000)))


def test_samples_lie_within_the_span() -> None:
    assert sampled(1_000_000, (100, 900), (400_000, 1_000_000)) == []
    late = sampled(1_000_000, (100_000, 200_000), (1_500_000, 1_600_000))
    assert late == ["clocks: sampled launches last 500 us longer than the GPU span"]
    assert sampled(9_000_000, (9_000_000, 10_040_000)) == [], "within the error of the clocks' offset"
    after = sampled(9_000_000, (9_000_000, 10_100_000))
    assert after == ["clocks: the last sampled launch ended 100 us after the run"]


def test_samples_of_no_time_are_a_fault_where_the_clock_is_fine_enough() -> None:
    assert sampled(1_000_000, (100, 900), (500, 500)) == ["clocks: 1 sampled launches took no time on the GPU"]
    minute_ns = 60 * 10**9
    assert sampled(minute_ns, (100, 900), (minute_ns, minute_ns), end_ns=2 * minute_ns) == []


def test_a_gpu_span_is_no_longer_than_the_run() -> None:
    assert sampled(10_060_000, (100, 900)) == ["clocks: the GPU span is longer than the run, 10.000 ms"]


def traced(*times: tuple[int, int]) -> list[str]:
    rows = np.array([[0, 0, i, ZERO + start, ZERO + end, 7, 0] for i, (start, end) in enumerate(times)], np.int64)
    activity = Activity(rows, np.empty((0, 4), np.int64), ["k"], [], dropped=0, clock_error_ns=1_000)
    return clock_faults(one_launch(5, 6), Timing(ZERO, Span(ZERO + 100_000, 90_000, NO_SAMPLES), activity))


def test_kernels_take_time_and_end_with_the_run() -> None:
    assert traced((10, 20), (30, 102_000)) == []
    assert traced((10, 10)) == ["clocks: 1 kernels took no time on the GPU"]
    assert traced((10, 110_000)) == ["clocks: the last kernel ended 10 us after the run"]


MEASURED = Ceilings(copy_gb_per_s=4_000, read_gb_per_s=4_500, peak_tflops=50)
GPU = Limits(MEASURED, "cuda")


def flagged(gb_per_s: float, tflops: float, residency: str | None = None, least: int = 0) -> tuple[str | None, bool]:
    row = {"achieved_gb_per_s": gb_per_s, "achieved_tflops": tflops, "least_memory_bytes": least, "bytes_moved": 100}
    return above_ceiling(row, GPU._replace(residency=residency))


@pytest.mark.parametrize("residency", [None, "cache: hot"])
def test_rates_below_the_ceilings_or_within_their_error_are_fine(residency: str | None) -> None:
    assert flagged(4_499, 49, residency) == (None, False)
    assert flagged(4_500 * 1.019, 50 * 1.019, residency) == (None, False)


def test_a_rate_that_the_cache_explains_is_flagged() -> None:
    assert flagged(9_000, 10, "cache: hot") == ("9,000 GB/s is above the measured 4,500 GB/s: cache: hot", False)


def test_a_rate_that_nothing_explains_is_an_error() -> None:
    assert flagged(4_600, 10) == ("4,600 GB/s is above the measured 4,500 GB/s, and nothing explains it", True)


@pytest.mark.parametrize("residency", [None, "cache: hot"])
def test_more_than_the_peak_is_an_error_in_any_cache(residency: str | None) -> None:
    assert flagged(1, 52, residency) == ("52 TFLOP/s is above the measured peak of 50", True)


@pytest.mark.parametrize("residency", [None, "requests of one batch share weights"])
def test_bytes_that_no_cache_holds_and_that_came_too_fast_are_an_error(
    residency: str | None,
) -> None:
    assert not flagged(90_000, 10, "cache: hot", least=5)[1]
    why = "4,950 GB/s from memory is above the measured 4,500 GB/s: no cache holds these bytes, and nothing explains it"
    assert flagged(9_000, 10, residency, least=55) == (why, True)


def test_a_cpu_whose_memory_others_use_may_be_a_little_faster_than_it_was_measured() -> None:
    row = {"achieved_gb_per_s": 6_700, "achieved_tflops": 1, "least_memory_bytes": 100, "bytes_moved": 100}
    cpu = Limits(MEASURED, "cpu", "caches")
    assert not above_ceiling(row, cpu)[1]
    assert above_ceiling(row | {"achieved_gb_per_s": 6_800}, cpu)[1]
    assert not above_ceiling(row | {"achieved_gb_per_s": 6_800}, cpu._replace(change=0.1))[1]


@given(
    share=st.floats(0, 1),
    rate=st.floats(0, 1),
    flops=st.floats(0, 1),
    device=st.sampled_from(["cpu", "cuda"]),
    residency=st.sampled_from([None, "cache: hot"]),
)
def test_a_run_within_the_ceilings_never_fails(
    share: float, rate: float, flops: float, device: str, residency: str | None
) -> None:
    moved = 10**9
    row = {"bytes_moved": moved, "least_memory_bytes": int(share * moved), "achieved_tflops": flops * 50}
    row["achieved_gb_per_s"] = rate * 4_500
    assert above_ceiling(row, Limits(MEASURED, device, residency)) == (None, False)


def test_ceilings_that_changed_leave_no_number_to_compare_with() -> None:
    row = {"copy_gb_per_s": 4.0, "read_gb_per_s": 5.0, "peak_tflops": 1.0, "status": "ok", "above_ceiling": "9 GB/s is"}
    steady, changed, failed = row.copy(), row.copy(), row | {"status": "failed: impossible rate"}
    settle(steady, MOST_CHANGE)
    assert steady == row | {"ceilings_change": MOST_CHANGE}
    settle(changed, 0.31)
    assert changed == {"status": "ok", "above_ceiling": None, "ceilings_change": 0.31, **dict.fromkeys(CEILINGS)}
    settle(failed, 0.31)
    assert failed["above_ceiling"] == "9 GB/s is"

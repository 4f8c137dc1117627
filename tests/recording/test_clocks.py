"""A run whose clocks contradict each other fails, and the sentence says which launches and by how much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.results.six_commands import EVENTS, HOST, ZERO, six_commands
from support.steps.launching import launch

from launchopt.recording.clocks import clock_faults
from launchopt.recording.recorder import Recorder
from launchopt.recording.summary import Timing
from launchopt.timing.activity import Activity, Span

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

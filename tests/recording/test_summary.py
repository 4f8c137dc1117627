"""The summary of a run whose every number is known, and the rates that are flagged."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.results.six_commands import (
    ACTIVITY,
    EVENTS,
    FLUSHES,
    HOST,
    STREAM,
    ZERO,
    about,
    distribution_of,
    six_commands,
)
from support.steps.launching import launch

from launchopt.recording.launch_rows import Strategy
from launchopt.recording.recorder import Recorder
from launchopt.recording.results import SUMMARY
from launchopt.recording.summary import BURST_LAUNCHES, Timing, completion, measured
from launchopt.recording.summary_columns import derived
from launchopt.timing.activity import Span


@pytest.fixture
def recorder() -> Recorder:
    return six_commands()


def test_measured_with_events(recorder: Recorder) -> None:
    row, histograms = measured(recorder, FLUSHES, EVENTS, STREAM)
    waits_ns = [1_100, 1_090, 1_080, 2_070, 2_060, 3_050]
    latencies_ns = [5_900 - 30, 5_900 - 40]
    assert row == {
        "commands": 6,
        "launch_calls": 6,
        "kernels": 3,
        "kernels_dropped": 0,
        "launch_delay_p50_us": pytest.approx(1.0),
        "launch_delay_p99_us": pytest.approx(1.98),
        "launch_delays_clipped": 1,
        "batches": 3,
        "wall_ms": 0.008,
        "gpu_span_ms": 0.004,
        "gpu_busy_ms": 0.003,
        "host_submit_ns_per_launch": 300.0,
        "submits": 3,
        "host_submit_burst_ns": 300.0,
        "commands_per_s": 6 / 8e-6,
        "latency_samples": 2,
        **distribution_of("latency", latencies_ns),
        **distribution_of("queue_wait", waits_ns),
        **distribution_of("batch_wait", [0] * 6),  # no time was recorded at which they became eligible
        "packed_bytes": 240,
        "gemms": 6,
        "bytes_moved": 6 * 2 * (4 * 5 + 3 * 5 + 3 * 4),
        "weight_bytes": 6 * 2 * 4 * 5,
        "achieved_gb_per_s": pytest.approx(6 * 94 / 4_000),  # bytes a ns
        "achieved_tflops": pytest.approx(6 * 120 / 4_000 / 1e3),  # 2 * 4 * 3 * 5 flops each
        "flush_full": 1,
        "flush_deadline": 1,
        "flush_idle": 0,
        "flush_drain": 1,
        "flush_stall": 0,
    }
    assert row.keys() <= set(SUMMARY.names)
    counts = {name: histogram.count for name, histogram in histograms.items()}
    assert counts == {"latency": 2, "queue_wait": 6, "batch_wait": 6, "batch_size": 3}
    assert histograms["batch_size"].rows() == [(1, 1, 1), (2, 2, 1), (3, 3, 1)]


def test_measured_without_events_goes_by_the_hosts_clock(recorder: Recorder) -> None:
    row, _ = measured(recorder, FLUSHES, HOST, STREAM)
    assert row["gpu_span_ms"] is None
    assert not {"gpu_busy_ms", "kernels"} & row.keys()
    assert row["latency_samples"] == 6
    latencies_us = [1.2, 1.19, 1.18, 2.37, 2.36, 3.55]
    assert row["latency_p50_us"] == about(np.percentile(latencies_us, 50))
    assert row["latency_p90_us"] == about(np.percentile(latencies_us, 90))
    assert row["latency_p99_us"] == about(np.percentile(latencies_us, 99))
    assert row["latency_max_us"] == 3.55
    assert row["achieved_gb_per_s"] == pytest.approx(6 * 94 / 8_000)


def test_where_a_tracer_lost_records_it_says_no_more_than_how_many(recorder: Recorder) -> None:
    row, _ = measured(recorder, FLUSHES, replace(EVENTS, activity=replace(ACTIVITY, dropped=7)), STREAM)
    found = {name for name in row if name.startswith(("kernels", "gpu_busy", "launch_delay"))}
    assert (found, row["kernels_dropped"]) == ({"kernels_dropped"}, 7)


def test_nothing_sampled_is_null_and_not_zero(recorder: Recorder) -> None:
    recorder.mark_sample(0, -1)
    none = Timing(ZERO, replace(EVENTS.span, samples=np.empty((0, 2), np.int64)))
    row, histograms = measured(recorder, FLUSHES, none, STREAM)
    assert {row[column] for column in distribution_of("latency", [1])} == {None}
    assert (row["latency_samples"], histograms["latency"].rows()) == (0, [])


def test_a_run_without_a_launch_has_a_row_all_the_same() -> None:
    row, histograms = measured(Recorder(6), [0] * 5, EVENTS, STREAM)
    assert (row["commands"], row["batches"], derived(row)["batch_size_mean"]) == (0, 0, None)
    assert (row["host_submit_ns_per_launch"], row["queue_wait_p50_us"]) == (None, None)
    assert (row["batch_wait_p999_us"], row["queue_wait_max_us"]) == (None, None)
    assert [histogram.rows() for histogram in histograms.values()] == [[]] * 4


def test_burst_is_of_the_first_launches_alone() -> None:
    recorder = Recorder(BURST_LAUNCHES + 500)
    for i in range(BURST_LAUNCHES + 500):
        launch(recorder, [i], start_ns=0, end_ns=10 if i < BURST_LAUNCHES else 1000)
    row, _ = measured(recorder, FLUSHES, HOST, STREAM)
    assert row["host_submit_burst_ns"] == 10
    assert row["host_submit_ns_per_launch"] == pytest.approx((BURST_LAUNCHES * 10 + 500_000) / (BURST_LAUNCHES + 500))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(1, 12))
def test_statistics_are_those_of_plain_numpy(seed: int, count: int, most: int) -> None:
    """Over a recording that was spooled; as many chunks as it takes."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, most + 1, count)
    recorder = Recorder(int(sizes.sum()), most, least_rows=2)
    flush = ZERO + np.cumsum(random.integers(1, 10**5, count)) + 10 * int(sizes.sum())
    submit_ns = random.integers(1, 10**4, count)
    sampled, packed = random.random(count) < 0.3, random.integers(0, 2, count) * 240
    posted = random.random(count) < 0.3
    device = np.stack([flush, flush + random.integers(1, 10**7, count)], axis=1)[sampled]
    first = 0
    eligible = np.repeat(flush, sizes) - random.integers(0, 10**5, int(sizes.sum()))
    for i, size in enumerate(sizes.tolist()):
        recorder.spool()
        times = {"flush_ns": flush[i], "start_ns": flush[i], "end_ns": flush[i] + submit_ns[i], "zero_ns": ZERO}
        own = eligible[first : first + size].tolist()
        launch(
            recorder,
            range(first, first + size),
            batch=i,
            eligible_ns=own,
            strategy=Strategy.resident if posted[i] else Strategy.single,
            **{name: int(value) for name, value in times.items()},
        )
        if sampled[i]:
            recorder.mark_sample(i, int(sampled[:i].sum()))
        recorder.mark_packed(int(packed[i]), 0)
        first += size
    timing = replace(EVENTS, span=replace(EVENTS.span, samples=device))
    row, histograms = measured(recorder, FLUSHES, timing, STREAM)
    enqueue = ZERO + 10 * np.arange(first)
    ends, of_launch = np.zeros(count, np.int64), np.repeat(np.arange(count), sizes)
    ends[sampled] = device[:, 1]
    timed = sampled[of_launch]
    within = np.arange(first) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # commands before it in its row
    posts_ns = np.where(posted, submit_ns, 0)[of_launch] * within // sizes[of_launch]
    expected = {"queue_wait": flush[of_launch] + posts_ns - enqueue, "latency": (ends[of_launch] - enqueue)[timed]}
    expected["batch_wait"] = flush[of_launch] - eligible
    for name, values in expected.items():
        assert histograms[name].count == len(values)
        if len(values):
            assert {column: row[column] for column in distribution_of(name, values)} == distribution_of(name, values)
    of_size = Counter(sizes[~posted].tolist()) + Counter({1: int(sizes[posted].sum())})
    submits = np.where(posted, sizes, 1)
    assert histograms["batch_size"].rows() == [(size, size, of_size[size]) for size in sorted(of_size)]
    exact = ("commands", "launch_calls", "latency_samples", "packed_bytes", "host_submit_ns_per_launch")
    assert [row[name] for name in exact] == [
        first,
        count - posted.sum(),
        timed.sum(),
        packed.sum(),
        submit_ns.sum() / submits.sum(),
    ]
    assert row["host_submit_burst_ns"] == np.median((submit_ns / submits)[:BURST_LAUNCHES])
    assert recorder.faults() == []


@pytest.mark.parametrize("most_launches", [1, 2, 3, 100])
def test_a_batch_of_several_launches_counts_once_in_whatever_chunks(
    most_launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(12)
    batches = [[2], [1, 1, 1, 1], [1, 2], [3]]  # launches of each batch, by size
    seq = 0
    for number, launches in enumerate(batches):
        for size in launches:
            launch(recorder, range(seq, seq + size), batch=number)
            seq += size
    assert seq == 12
    chunks = Recorder.chunks
    monkeypatch.setattr(Recorder, "chunks", lambda self: chunks(self, most_launches))
    row, histograms = measured(recorder, [4, 0, 0, 0, 0], HOST, STREAM)
    assert histograms["batch_size"].rows() == [(2, 2, 1), (3, 3, 2), (4, 4, 1)]
    assert (row["batches"], derived(row)["batch_size_mean"]) == (4, 3.0)


COUNT = 4000  # launches of a command each, one every 10 ns; each takes the device longer by SLOWER than that
SLOWER = 1.2


def behind(every: int, took: float = SLOWER) -> tuple[Recorder, Timing]:
    """A device that works on launches in turn, `took` times 10 ns each. Every `every`-th launch is timed; 0: none."""
    recorder, samples = Recorder(COUNT), []
    for number in range(COUNT):
        began = ZERO + 10 * number
        launch(recorder, [number], flush_ns=began, start_ns=began + 1, end_ns=began + 2, zero_ns=ZERO)
        if every and number % every == 0:
            recorder.mark_sample(number, len(samples))
            start = ZERO + max(10 * number + 2, round(10 * took * number))
            samples.append((start, start + round(10 * took)))
    end = ZERO + max(10 * COUNT, round(10 * took * COUNT)) + 20
    return recorder, Timing(ZERO, Span(end, end - ZERO, np.array(samples, np.int64).reshape(-1, 2)))


@pytest.mark.parametrize("every", [1, 16, 200])
def test_a_device_that_falls_behind_is_overloaded_however_few_launches_are_timed(every: int) -> None:
    found = completion(*behind(every), held=1, wait_ns=0)
    assert found["overloaded"] is True
    assert found["completed_rate_per_s"] == pytest.approx(1e8 / SLOWER, rel=0.07)


@pytest.mark.parametrize("every", [1, 16, 200])
def test_a_device_that_keeps_up_is_not_overloaded_however_few_launches_are_timed(every: int) -> None:
    found = completion(*behind(every, took=0.8), held=1, wait_ns=0)
    assert found == {"completed_rate_per_s": pytest.approx(1e8, rel=0.02), "overloaded": False}


def test_without_a_timed_launch_a_device_is_not_said_to_keep_up() -> None:
    assert completion(*behind(every=0), held=1, wait_ns=0)["overloaded"] is None


def test_on_the_cpu_the_end_of_the_call_is_the_end_of_the_work() -> None:
    recorder, timing = behind(every=0)
    host = Timing(ZERO, Span(timing.span.end_ns, None, np.empty((0, 2), np.int64)))
    assert completion(recorder, host, held=1, wait_ns=0)["overloaded"] is False

"""The columns of a run whose every number is known, and the rates that are flagged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.steps.launching import launch, recorded

from launchopt.command import Dtype
from launchopt.recording import summary
from launchopt.recording.launch_rows import Strategy
from launchopt.recording.recorder import Recorder
from launchopt.recording.results import COMMANDS, LAUNCHES, SUMMARY
from launchopt.recording.summary import BURST_LAUNCHES, Timing, above_ceiling, measured
from launchopt.recording.summary_columns import derived
from launchopt.statistics.histogram import RELATIVE_ERROR
from launchopt.timing.activity import Activity, Ceilings, Span
from launchopt.workloads.gemv import gemv

ZERO = 1_000_000  # the start barrier; commands are enqueued 0, 10, ... 50 ns after it
STREAM = gemv(4, 3, 5, 6, Dtype.fp16, 2)
FLUSHES = [1, 1, 0, 1, 0]  # in the order of FlushReason
SAMPLES = np.array([[2_300, 5_900]]) + ZERO
# Two calls: the first's kernels begin 2 us after it returned, the second's only one while it was under way.
ACTIVITY = Activity(
    np.array(
        [[0, 0, c, s, e, 7, 0] for c, s, e in ((1, 4_000, 5_000), (1, 4_500, 6_000), (2, 6_500, 7_500))], np.int64
    ),
    np.array([[0, 1, 1_000, 2_000], [0, 2, 6_000, 7_000]]),
    ["k"],
    ["cuLaunchKernelEx"],
    dropped=0,
    clock_error_ns=5,
)
EVENTS = Timing(ZERO, Span(ZERO + 8_000, 4_000, SAMPLES), ACTIVITY)
HOST = Timing(ZERO, Span(ZERO + 8_000, None, np.empty((0, 2), np.int64)))


def about(value: float) -> Any:
    """To what a histogram promises."""
    return pytest.approx(value, rel=RELATIVE_ERROR)


def distribution_of(name: str, values_ns: Sequence[int] | NDArray[np.int64]) -> dict[str, Any]:
    """What the columns of a distribution must be: percentiles to within a bucket, the largest exactly."""
    percentiles = {"p50": 50, "p90": 90, "p99": 99, "p999": 99.9}
    columns = {f"{name}_{key}_us": about(np.percentile(values_ns, of) / 1e3) for key, of in percentiles.items()}
    return columns | {f"{name}_max_us": max(values_ns) / 1e3}


@pytest.fixture
def recorder() -> Recorder:
    """Six commands in three launch calls; the second was timed on the device, the third packed."""
    recorder = Recorder(6)
    for seqs, flush, start, end in [
        ([0, 1, 2], 1_000, 1_100, 1_200),
        ([4, 3], 2_000, 2_100, 2_400),
        ([5], 3_000, 3_100, 3_600),
    ]:
        launch(recorder, seqs, flush_ns=ZERO + flush, start_ns=ZERO + start, end_ns=ZERO + end, zero_ns=ZERO)
        if seqs == [4, 3]:
            recorder.mark_sample(1, 0)
    recorder.mark_packed(240, 3)
    return recorder


def test_measured_with_events(recorder: Recorder) -> None:
    row, histograms = measured(recorder, FLUSHES, EVENTS, STREAM)
    waits_ns = [1_000, 990, 980, 1_970, 1_960, 2_950]
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
        "host_submit_burst_ns": 300.0,
        "commands_per_s": 6 / 8e-6,
        "latency_samples": 2,
        **distribution_of("latency", latencies_ns),
        **distribution_of("queue_wait", waits_ns),
        **distribution_of("batch_wait", [0] * 6),  # nothing noted when they became eligible
        "packed_bytes": 240,
        "bytes_moved": 6 * 2 * (4 * 5 + 3 * 5 + 3 * 4),
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
    told = {name for name in row if name.startswith(("kernels", "gpu_busy", "launch_delay"))}
    assert (told, row["kernels_dropped"]) == ({"kernels_dropped"}, 7)


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
        recorder.make_room()
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
    expected = {"queue_wait": flush[of_launch] - enqueue, "latency": (ends[of_launch] - enqueue)[timed]}
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


def test_waits_in_the_batcher_count_from_when_a_command_became_eligible() -> None:
    """However long before that it was enqueued; 0 is none noted."""
    recorder = Recorder(4)
    eligible_ns = [ZERO + 900, 0, ZERO + 400, ZERO + 1_000]
    launch(recorder, [0, 1, 2, 3], flush_ns=ZERO + 1_000, start_ns=ZERO, zero_ns=ZERO - 5_000, eligible_ns=eligible_ns)
    row, histograms = measured(recorder, [1, 0, 0, 0, 0], HOST, STREAM)
    assert {name: row[name] for name in row if name.startswith("batch_wait")} == distribution_of(
        "batch_wait", [100, 0, 600, 0]
    )
    assert row["queue_wait_max_us"] == 6.0
    assert histograms["batch_wait"].max == 600
    columns = command_lists(recorder)
    assert columns["eligible_ns"] == [900, 1_000, 400, 1_000]


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


def as_lists(columns: dict[str, Any], schema: pa.Schema) -> dict[str, list[Any]]:
    assert set(schema.names) - {"run_id", "mode", "repeat"} == columns.keys()
    return {name: pa.array(values, schema.field(name).type).to_pylist() for name, values in columns.items()}


def test_launch_columns(recorder: Recorder) -> None:
    assert as_lists(summary.launch_columns(0, recorded(recorder).launches, EVENTS, STREAM.shapes), LAUNCHES) == {
        "launch": [0, 1, 2],
        "batch": [0, 1, 2],
        "m": [4] * 3,
        "n": [3] * 3,
        "k": [5] * 3,
        "dtype": ["fp16"] * 3,
        "batch_size": [3, 2, 1],
        "strategy": ["strided"] * 3,
        "flush_reason": ["idle"] * 3,
        "flush_ns": [1_000, 2_000, 3_000],
        "submit_start_ns": [1_100, 2_100, 3_100],
        "submit_end_ns": [1_200, 2_400, 3_600],
        "device_start_ns": [None, 2_300, None],
        "device_end_ns": [None, 5_900, None],
        "packed_bytes": [0, 0, 240],
    }


def command_lists(recorder: Recorder) -> dict[str, list[Any]]:
    return as_lists(summary.command_columns(recorded(recorder), EVENTS, STREAM.shapes), COMMANDS)


def test_command_columns_are_in_the_order_of_execution(recorder: Recorder) -> None:
    assert command_lists(recorder) == {
        "seq": [0, 1, 2, 4, 3, 5],
        "request": [2**32 - 1 - seq for seq in (0, 1, 2, 4, 3, 5)],
        "step": [0, 1, 2, 4, 3, 5],
        "m": [4] * 6,
        "n": [3] * 6,
        "k": [5] * 6,
        "launch": [0, 0, 0, 1, 1, 2],
        "enqueue_ns": [0, 10, 20, 40, 30, 50],
        "eligible_ns": [1_000] * 3 + [2_000] * 2 + [3_000],  # nothing held them: as they were flushed
        "flush_ns": [1_000] * 3 + [2_000] * 2 + [3_000],
        "submit_start_ns": [1_100] * 3 + [2_100] * 2 + [3_100],
        "device_start_ns": [None] * 3 + [2_300] * 2 + [None],
        "device_end_ns": [None] * 3 + [5_900] * 2 + [None],
    }


def test_columns_of_a_later_chunk_go_on_counting_launches(recorder: Recorder) -> None:
    chunks = list(recorder.chunks(most_launches=2))
    assert [len(chunk.launches) for chunk in chunks] == [2, 1]
    last = summary.command_columns(chunks[1], EVENTS, STREAM.shapes)
    assert (last["launch"].tolist(), last["seq"].tolist()) == ([2], [5])
    assert summary.launch_columns(2, chunks[1].launches, EVENTS, STREAM.shapes)["launch"].tolist() == [2]


@pytest.mark.parametrize("launched", [[], [0, 1, 3]])
def test_commands_that_never_ran_have_no_row(launched: list[int]) -> None:
    recorder = Recorder(6)
    if launched:
        launch(recorder, launched, flush_ns=ZERO + 7, start_ns=ZERO + 8, zero_ns=ZERO)
    columns = command_lists(recorder)
    assert columns["seq"] == launched
    assert columns["device_end_ns"] == [None] * len(launched)


CEILINGS = Ceilings(copy_gb_per_s=4_000, read_gb_per_s=4_500, peak_tflops=50)


def flagged(gb_per_s: float, tflops: float, residency: str | None = None) -> tuple[str | None, bool]:
    return above_ceiling({"achieved_gb_per_s": gb_per_s, "achieved_tflops": tflops}, CEILINGS, residency)


@pytest.mark.parametrize("residency", [None, "cache: hot"])
def test_rates_below_the_ceilings_or_within_their_error_are_fine(residency: str | None) -> None:
    assert flagged(4_499, 49, residency) == (None, False)
    assert flagged(4_500 * 1.019, 50 * 1.019, residency) == (None, False)


def test_a_rate_that_the_cache_explains_is_flagged() -> None:
    assert flagged(9_000, 10, "cache: hot") == ("9000 GB/s is above the measured 4500 GB/s: cache: hot", False)


def test_a_rate_that_nothing_explains_is_an_error() -> None:
    assert flagged(4_600, 10) == ("4600 GB/s is above the measured 4500 GB/s, and nothing explains it", True)


@pytest.mark.parametrize("residency", [None, "cache: hot"])
def test_more_than_the_peak_is_an_error_in_any_cache(residency: str | None) -> None:
    assert flagged(1, 52, residency) == ("52 TFLOP/s is above the measured peak of 50", True)

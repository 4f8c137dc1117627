"""Compute the columns of summary.parquet, launches.parquet and commands.parquet from the recorded rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from launchopt.batching.batch import FlushReason
from launchopt.command import HALF_BITS, LOW_HALF, Op, ShapeKey
from launchopt.producing.overload import of_commands
from launchopt.recording.columns import PERCENTILES, Columns, Row
from launchopt.recording.launch_rows import POSTED, CommandColumn, LaunchColumn, Strategy
from launchopt.recording.spool import Rows
from launchopt.statistics.histogram import LogHistogram
from launchopt.streams.chains.chain import Stream
from launchopt.timing.activity import Activity, Span

if TYPE_CHECKING:  # the parent of a run imports this module, and must not load Numba
    from launchopt.recording.recorder import Chunk, Recorder

BURST_LAUNCHES = 200  # launches in `host_submit_burst_ns`, the first ones: fewer than the GPU's launch queue holds


@dataclass(frozen=True, slots=True)
class Timing:
    """The clock readings of one run, CLOCK_MONOTONIC ns."""

    start_ns: int  # time of the start barrier
    span: Span  # end of the run, and times on the device
    activity: Activity | None = None  # CUPTI's records; None: the run was not traced


def _device_times(launches: Rows, span: Span) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return start and end of each launch on the device, ns, and whether they are known; each [launches].

    On the CPU they are the start and the end of the call.
    """
    if span.span_ns is None:
        return (
            launches[:, LaunchColumn.SUBMIT_START_NS],
            launches[:, LaunchColumn.SUBMIT_END_NS],
            np.ones(len(launches), bool),
        )
    known = launches[:, LaunchColumn.SAMPLE] >= 0
    start, end = np.zeros((2, len(launches)), np.int64)
    start[known], end[known] = span.samples[launches[known, LaunchColumn.SAMPLE]].T
    return start, end, known


class _Sums:
    """The sums of one pass over the recorded rows. They are exact; percentiles come from histograms."""

    def __init__(self) -> None:
        self.histograms = {name: LogHistogram() for name in ("latency", "queue_wait", "batch_wait", "batch_size")}
        self._open_batch = (-1, 0)  # number and size so far of the last batch, which may have further launches
        self.submit_ns, self.packed_bytes = 0, 0
        self.submits = 0  # launch calls and posted commands
        self.burst_ns = np.empty(0)  # CPU time of each of the first launches, ns

    def add(self, chunk: Chunk, span: Span) -> None:
        launches, of_launch, enqueue_ns = (
            chunk.launches,
            chunk.of_launch,
            chunk.commands[:, CommandColumn.ENQUEUE_NS],
        )
        flush_ns = launches[of_launch, LaunchColumn.FLUSH_NS]
        self.histograms["queue_wait"].add(launched_ns(chunk) - enqueue_ns)
        self.histograms["batch_wait"].add(flush_ns - eligible_ns(chunk))
        # Each posted command counts as a submit and as a batch, although several share a row.
        submits = np.where(launches[:, LaunchColumn.STRATEGY] == POSTED, launches[:, LaunchColumn.SIZE], 1)
        self.histograms["batch_size"].add(np.ones(int(submits[submits > 1].sum()), np.int64))
        self._batches(launches[submits == 1])
        _, end, known = _device_times(launches, span)
        timed = known[of_launch]
        self.histograms["latency"].add(end[of_launch[timed]] - enqueue_ns[timed])
        submit_ns = launches[:, LaunchColumn.SUBMIT_END_NS] - launches[:, LaunchColumn.SUBMIT_START_NS]
        self.submit_ns += int(submit_ns.sum())
        self.submits += int(submits.sum())
        burst = slice(BURST_LAUNCHES - len(self.burst_ns))
        self.burst_ns = np.concatenate([self.burst_ns, submit_ns[burst] / submits[burst]])
        self.packed_bytes += int(launches[:, LaunchColumn.PACKED_BYTES].sum())

    def _batches(self, launches: Rows) -> None:
        numbers, index = np.unique(launches[:, LaunchColumn.BATCH], return_inverse=True)
        sizes = np.bincount(index, launches[:, LaunchColumn.SIZE]).astype(np.int64)
        if len(numbers) and numbers[0] == self._open_batch[0]:
            sizes[0] += self._open_batch[1]
        else:
            self.close()
        if len(numbers):
            self._open_batch = (int(numbers[-1]), int(sizes[-1]))
            self.histograms["batch_size"].add(sizes[:-1])

    def close(self) -> None:
        """Count the last batch: it has no further launches."""
        if self._open_batch[1]:
            self.histograms["batch_size"].add(np.array([self._open_batch[1]]))
        self._open_batch = (-1, 0)


def completion(recorder: Recorder, timing: Timing, held: int, wait_ns: int) -> Row:
    """Return the columns of an open loop of independent commands.

    held: commands that the buckets can hold. wait_ns: how long they wait for others. A command is done at its end on
    the device. If its launch was not timed, it is done when the call has returned and the last timed launch before it
    has ended, and the last launch when the run has. That is the earliest possible time, so the device may have fallen
    behind by more than it seems: `overloaded` is null, and not false, if no launch was timed.
    """
    arrived, done, ended_ns, is_timed = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0, False
    for chunk in recorder.chunks():
        _, end_ns, known = _device_times(chunk.launches, timing.span)
        reached_ns = np.maximum.accumulate(np.maximum(end_ns, ended_ns))
        end_ns = np.where(known, end_ns, np.maximum(reached_ns, chunk.launches[:, LaunchColumn.SUBMIT_END_NS]))
        ended_ns, is_timed = int(reached_ns[-1]), is_timed or bool(known.any())
        if chunk.first_launch + len(chunk.launches) == recorder.launch_count and not known[-1]:
            end_ns[-1] = timing.span.end_ns
        arrived.append(chunk.commands[:, CommandColumn.ENQUEUE_NS] - timing.start_ns)
        done.append(end_ns[chunk.of_launch] - timing.start_ns)
    rate, overloaded = of_commands(np.concatenate(arrived), np.concatenate(done), held, wait_ns)
    return {"completed_rate_per_s": rate, "overloaded": overloaded if overloaded or is_timed else None}


def eligible_ns(chunk: Chunk) -> NDArray[np.int64]:
    """Return the time at which each command became eligible, ns: the time of its flush if nothing delayed it."""
    recorded, flush_ns = (
        chunk.commands[:, CommandColumn.ELIGIBLE_NS],
        chunk.launches[chunk.of_launch, LaunchColumn.FLUSH_NS],
    )
    return np.where(recorded == 0, flush_ns, recorded)


def launched_ns(chunk: Chunk) -> NDArray[np.int64]:
    """Return the time at which each command's own launch call began, ns.

    Commands that were posted to a resident kernel one by one share a row. They are taken to be evenly spaced in it.
    """
    rows, of_launch = chunk.launches, chunk.of_launch
    began_ns: NDArray[np.int64] = rows[of_launch, LaunchColumn.SUBMIT_START_NS]
    posted = np.flatnonzero(rows[of_launch, LaunchColumn.STRATEGY] == POSTED)
    if len(posted):
        own = of_launch[posted]
        sizes = rows[:, LaunchColumn.SIZE]
        place = posted - (np.cumsum(sizes) - sizes)[own]
        length_ns = rows[own, LaunchColumn.SUBMIT_END_NS] - began_ns[posted]
        began_ns[posted] += length_ns * place // sizes[own]
    return began_ns


def distribution(name: str, unit: str, histogram: LogHistogram) -> dict[str, float | None]:
    """Return the columns NAME_p50_UNIT to NAME_max_UNIT of a histogram of ns."""
    scale = {"us": 1e3, "ms": 1e6}[unit]
    most = histogram.max
    row: dict[str, float | None] = {}
    for column, percent in PERCENTILES.items():
        value = histogram.percentile(percent)
        row[f"{name}_{column}_{unit}"] = None if value is None or most is None else min(value, most) / scale
    row[f"{name}_max_{unit}"] = None if most is None else most / scale
    return row


def measured(
    recorder: Recorder, flushes: Sequence[int], timing: Timing, stream: Stream
) -> tuple[Row, dict[str, LogHistogram]]:
    """Return the columns of a summary row that follow from the recorded rows, and the histograms of their times."""
    sums = _Sums()
    for chunk in recorder.chunks():
        sums.add(chunk, timing.span)
    sums.close()
    histograms = sums.histograms
    commands, launches = recorder.command_count, recorder.launch_count
    wall_ns = timing.span.end_ns - timing.start_ns
    work_ns = timing.span.span_ns or wall_ns
    batches = sum(flushes)
    row: Row = {
        "commands": commands,
        "launch_calls": recorder.launch_calls,
        "batches": batches,
        "wall_ms": wall_ns / 1e6,
        "gpu_span_ms": None if timing.span.span_ns is None else timing.span.span_ns / 1e6,
        "host_submit_ns_per_launch": sums.submit_ns / sums.submits if sums.submits else None,
        "submits": sums.submits,
        "host_submit_burst_ns": float(np.median(sums.burst_ns)) if launches else None,
        "commands_per_s": commands / wall_ns * 1e9,
        "latency_samples": histograms["latency"].count,
        "packed_bytes": sums.packed_bytes,
        "bytes_moved": stream.bytes_moved,
        "weight_bytes": sum(shape.weight_bytes * count for shape, count in stream.counts.items()),
        "gemms": sum(count for shape, count in stream.counts.items() if shape.op is Op.GEMM),
        "achieved_gb_per_s": stream.bytes_moved / work_ns,
        "achieved_tflops": stream.flops / work_ns / 1e3,
        **{f"flush_{reason.name}": flushes[reason] for reason in FlushReason},
        **(_traced(timing.activity) if timing.activity else {}),
    }
    for name in ("latency", "queue_wait", "batch_wait"):
        row |= distribution(name, "us", histograms[name])
    return row, histograms


def _traced(activity: Activity) -> Row:
    """Return CUPTI's columns. If records were lost, return only their number: the other values would be too low."""
    row: Row = {"kernels_dropped": activity.dropped}
    if activity.dropped:
        return row
    delays_ns = activity.delays_ns()
    row |= {"kernels": activity.kernels, "gpu_busy_ms": activity.busy_ns / 1e6}
    if len(delays_ns):
        p50, p99 = np.percentile(np.maximum(0, delays_ns), [50, 99]) / 1e3
        row |= {"launch_delay_p50_us": float(p50), "launch_delay_p99_us": float(p99)}
    return row | {"launch_delays_clipped": int(np.count_nonzero(delays_ns < 0))}


def differences(counts: Mapping[str, int]) -> list[str]:
    """Return one sentence for each pair of successive counts that differ.

    counts: the number of commands at each station of their way, by a participle such as "pushed".
    """
    found = []
    for (before, had), (after, has) in pairwise(counts.items()):
        if had != has:
            how = f"{had - has} lost" if had > has else f"{has - had} too many"
            found.append(f"{had} commands {before}, {has} {after}: {how}")
    return found


def launch_columns(
    first: int, launches: Rows, timing: Timing, shapes: Sequence[ShapeKey], gpu: int | None = None
) -> Columns:
    """Return the columns of launches.parquet except those that name the run.

    first: number of the first launch call. gpu: of a run on several.
    """
    start, end, known = _device_times(launches, timing.span)
    zero = timing.start_ns
    return {
        "gpu": pa.repeat(pa.scalar(gpu, pa.int32()), len(launches)),
        "launch": first + np.arange(len(launches)),
        "batch": launches[:, LaunchColumn.BATCH],
        **_shape_columns(launches[:, LaunchColumn.SHAPE], shapes),
        "op": _named(launches[:, LaunchColumn.SHAPE], [shape.op.name.lower() for shape in shapes]),
        "dtype": _named(np.zeros(len(launches), np.int64), [shapes[0].dtype.name]),
        "batch_size": launches[:, LaunchColumn.SIZE],
        "strategy": _named(launches[:, LaunchColumn.STRATEGY], [x.name for x in Strategy]),
        "flush_reason": _named(launches[:, LaunchColumn.REASON], [x.name for x in FlushReason]),
        "flush_ns": launches[:, LaunchColumn.FLUSH_NS] - zero,
        "submit_start_ns": launches[:, LaunchColumn.SUBMIT_START_NS] - zero,
        "submit_end_ns": launches[:, LaunchColumn.SUBMIT_END_NS] - zero,
        "device_start_ns": pa.array(start - zero, mask=~known),
        "device_end_ns": pa.array(end - zero, mask=~known),
        "packed_bytes": launches[:, LaunchColumn.PACKED_BYTES],
    }


def command_columns(chunk: Chunk, timing: Timing, shapes: Sequence[ShapeKey]) -> Columns:
    """Return the columns of commands.parquet except those that name the run."""
    launches, commands, of_launch, zero = chunk.launches, chunk.commands, chunk.of_launch, timing.start_ns
    start, end, known = _device_times(launches, timing.span)
    request_step = commands[:, CommandColumn.REQUEST_STEP].view(np.uint64)
    return {
        "seq": commands[:, CommandColumn.SEQ],
        "request": (request_step >> HALF_BITS).astype(np.int64),
        "step": (request_step & LOW_HALF).astype(np.int64),
        **_shape_columns(launches[of_launch, LaunchColumn.SHAPE], shapes),
        "launch": chunk.first_launch + of_launch,
        "enqueue_ns": commands[:, CommandColumn.ENQUEUE_NS] - zero,
        "eligible_ns": eligible_ns(chunk) - zero,
        "flush_ns": launches[of_launch, LaunchColumn.FLUSH_NS] - zero,
        "submit_start_ns": launches[of_launch, LaunchColumn.SUBMIT_START_NS] - zero,
        "device_start_ns": pa.array(start[of_launch] - zero, mask=~known[of_launch]),
        "device_end_ns": pa.array(end[of_launch] - zero, mask=~known[of_launch]),
    }


def _shape_columns(shape_of: NDArray[np.int64], shapes: Sequence[ShapeKey]) -> Columns:
    """Return columns m, n and k; null if a launch had several shapes (SEVERAL, -1: the last row of `table`)."""
    table = np.array([*((shape.m, shape.n, shape.k) for shape in shapes), (0, 0, 0)], np.int64)
    return {name: pa.array(table[shape_of, column], mask=shape_of < 0) for column, name in enumerate("mnk")}


def _named(codes: NDArray[np.int64], names: Sequence[str]) -> pa.Array:
    """Return the name of each code; null for a negative code."""
    indices = pa.array(codes, pa.int32(), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, names).cast(pa.string())

"""From what was recorded to the columns of summary.parquet, launches.parquet and commands.parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from launchopt import recorder as rec
from launchopt.batcher import FlushReason
from launchopt.command import Records, ShapeKey
from launchopt.devices.base import Ceilings, Span
from launchopt.recorder import Recorder, Strategy
from launchopt.workloads.stream import GemmStream

BURST_LAUNCHES = 200  # fewer than the GPU's launch queue holds
ABOVE_CEILING_SLACK = 1.02  # a ceiling is itself measured to about 2%


@dataclass(frozen=True, slots=True)
class Timing:
    """One run's clock readings; CLOCK_MONOTONIC ns."""

    start_ns: int
    span: Span
    kernels: int | None = None
    busy_ns: int | None = None


def _percentiles_us(values_ns: NDArray[np.int64]) -> tuple[float | None, float | None]:
    if not len(values_ns):
        return None, None
    p50, p99 = np.percentile(values_ns, [50, 99]) / 1e3
    return float(p50), float(p99)


def _device_times(launches: NDArray[np.int64], span: Span) -> tuple[NDArray[np.int64], NDArray[np.int64], Any]:
    """Device start and end of each launch, and which are known. The CPU's calls end when they return."""
    if span.span_ns is None:
        return launches[:, rec.SUBMIT_START_NS], launches[:, rec.SUBMIT_END_NS], np.ones(len(launches), bool)
    known = launches[:, rec.SAMPLE] >= 0
    start, end = np.zeros((2, len(launches)), np.int64)
    start[known], end[known] = span.samples[launches[known, rec.SAMPLE]].T
    return start, end, known


def measured(recorder: Recorder, flushes: Sequence[int], timing: Timing, stream: GemmStream) -> dict[str, Any]:
    """The columns of a summary row that this run's recording gives."""
    launches, commands = recorder.done()
    ran = commands[commands[:, rec.LAUNCH] >= 0]
    of_launch = ran[:, rec.LAUNCH]
    wait_p50, wait_p99 = _percentiles_us(launches[of_launch, rec.FLUSH_NS] - ran[:, rec.ENQUEUE_NS])
    _, end, known = _device_times(launches, timing.span)
    timed = known[of_launch]
    latency_p50, latency_p99 = _percentiles_us(end[of_launch[timed]] - ran[timed, rec.ENQUEUE_NS])
    submit_ns = launches[:, rec.SUBMIT_END_NS] - launches[:, rec.SUBMIT_START_NS]
    wall_ns = timing.span.end_ns - timing.start_ns
    work_ns = timing.span.span_ns or wall_ns
    batches = sum(flushes)
    return {
        "commands": len(ran),
        "launch_calls": recorder.launch_calls,
        "kernels": timing.kernels,
        "batches": batches,
        "batch_size_mean": len(ran) / batches if batches else None,
        "wall_ms": wall_ns / 1e6,
        "gpu_span_ms": None if timing.span.span_ns is None else timing.span.span_ns / 1e6,
        "gpu_busy_ms": None if timing.busy_ns is None else timing.busy_ns / 1e6,
        "host_submit_ns_per_launch": float(submit_ns.mean()) if len(submit_ns) else None,
        "host_submit_burst_ns": float(np.median(submit_ns[:BURST_LAUNCHES])) if len(submit_ns) else None,
        "commands_per_s": len(ran) / wall_ns * 1e9,
        "latency_p50_us": latency_p50,
        "latency_p99_us": latency_p99,
        "latency_samples": int(timed.sum()),
        "queue_wait_p50_us": wait_p50,
        "queue_wait_p99_us": wait_p99,
        "packed_bytes": int(launches[:, rec.PACKED_BYTES].sum()),
        "bytes_moved": stream.bytes_moved,
        "achieved_gb_per_s": stream.bytes_moved / work_ns,
        "achieved_tflops": stream.flops / work_ns / 1e3,
        **{f"flush_{reason.name}": flushes[reason] for reason in FlushReason},
    }


def above_ceiling(row: dict[str, Any], ceilings: Ceilings, residency: str | None) -> tuple[str | None, bool]:
    """(why a rate is above what this device can do, whether that is an error). (None, False) where none is.

    `residency` says why inputs may have come from a cache; without it there is no honest way to such a rate.
    """
    if row["achieved_tflops"] > ceilings.peak_tflops * ABOVE_CEILING_SLACK:
        return (
            f"{row['achieved_tflops']:.1f} TFLOP/s is above the measured peak of {ceilings.peak_tflops:.1f}",
            True,
        )
    rate, most = row["achieved_gb_per_s"], max(ceilings.read_gb_per_s, ceilings.copy_gb_per_s)
    if rate <= most * ABOVE_CEILING_SLACK:
        return None, False
    text = f"{rate:.0f} GB/s is above the measured {most:.0f} GB/s"
    return (f"{text}: {residency}", False) if residency else (f"{text}, and nothing explains it", True)


def launch_columns(recorder: Recorder, timing: Timing, shapes: Sequence[ShapeKey]) -> dict[str, Any]:
    """Columns of launches.parquet, less those that name the run."""
    launches, _ = recorder.done()
    start, end, known = _device_times(launches, timing.span)
    shape_of = launches[:, rec.SHAPE]
    zero = timing.start_ns
    return {
        "launch": np.arange(len(launches)),
        "batch": launches[:, rec.BATCH],
        **_shape_columns(shape_of, shapes),
        "dtype": _named(np.zeros(len(launches), np.int64), [shapes[0].dtype.name]),
        "batch_size": launches[:, rec.SIZE],
        "strategy": _named(launches[:, rec.STRATEGY], [x.name for x in Strategy]),
        "flush_reason": _named(launches[:, rec.REASON], [x.name for x in FlushReason]),
        "flush_ns": launches[:, rec.FLUSH_NS] - zero,
        "submit_start_ns": launches[:, rec.SUBMIT_START_NS] - zero,
        "submit_end_ns": launches[:, rec.SUBMIT_END_NS] - zero,
        "device_start_ns": pa.array(start - zero, mask=~known),
        "device_end_ns": pa.array(end - zero, mask=~known),
        "packed_bytes": launches[:, rec.PACKED_BYTES],
    }


def command_columns(
    recorder: Recorder, timing: Timing, shapes: Sequence[ShapeKey], blocks: Sequence[Records]
) -> dict[str, Any]:
    """Columns of commands.parquet, less those that name the run. `blocks`: the stream's records in order."""
    launches, commands = recorder.done()
    _, end, known = _device_times(launches, timing.span)
    ran, zero = commands[:, rec.LAUNCH] >= 0, timing.start_ns
    of_launch = commands[ran, rec.LAUNCH]
    timed = ran.copy()
    timed[ran] = known[of_launch]
    names = ("seq", "request", "step", "m", "n", "k")
    return {
        **{name: np.concatenate([block[name] for block in blocks]).astype(np.int64) for name in names},
        "launch": _where(ran, of_launch),
        "enqueue_ns": _where(ran, commands[ran, rec.ENQUEUE_NS] - zero),
        "flush_ns": _where(ran, launches[of_launch, rec.FLUSH_NS] - zero),
        "submit_start_ns": _where(ran, launches[of_launch, rec.SUBMIT_START_NS] - zero),
        "device_end_ns": _where(timed, end[commands[timed, rec.LAUNCH]] - zero),
    }


def _where(known: NDArray[np.bool_], values: NDArray[np.int64]) -> Any:
    """A column that holds `values` where `known`, and is null elsewhere."""
    column = np.zeros(len(known), np.int64)
    column[known] = values
    return pa.array(column, mask=~known)


def _shape_columns(shape_of: NDArray[np.int64], shapes: Sequence[ShapeKey]) -> dict[str, Any]:
    table = np.array([(shape.m, shape.n, shape.k) for shape in shapes], np.int64)
    return {name: table[shape_of, column] for column, name in enumerate("mnk")}


def _named(codes: NDArray[np.int64], names: Sequence[str]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), names).cast(pa.string())

"""Measurements that cannot be: launches outside the span of the run, launches that took no time, rates above a ceiling.

A span that misses a launch is too short, and every rate computed from it is too high.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from launchopt.recording.columns import Row
from launchopt.recording.launch_rows import LaunchColumn
from launchopt.recording.summary import Timing
from launchopt.timing.activity import Ceilings

if TYPE_CHECKING:  # the parent of a run must not load Numba
    from launchopt.recording.recorder import Recorder

EVENT_NS = 2_000  # accuracy of the time between two CUDA events
FINE_NS = 100  # a sample of length 0 is a fault if its clock distinguishes shorter times than this
FLOAT32_STEPS = 2**23  # CUDA gives the time between two events as a float32
# A measured ceiling of a GPU is accurate to about 2%. Other processes and tenants share a CPU's memory: its ceilings,
# measured by turns with a run, differ by more.
ABOVE_PEAK_SLACK, ABOVE_BANDWIDTH_SLACK = 1.02, {"cuda": 1.02, "cpu": 1.5}


def clock_faults(recorder: Recorder, timing: Timing) -> list[str]:
    """Return one sentence per fault of a run's clocks; none if they agree with each other."""
    span, on_cpu = timing.span, timing.span.span_ns is None
    last_ns, backward, empty = timing.start_ns, 0, 0
    for _, rows in recorder.launch_chunks():
        start_ns, end_ns = rows[:, LaunchColumn.SUBMIT_START_NS], rows[:, LaunchColumn.SUBMIT_END_NS]
        last_ns = max(last_ns, int(end_ns.max()))
        backward += int((end_ns < start_ns).sum())
        empty += int((end_ns == start_ns).sum()) if on_cpu else 0
    found = []
    if backward:
        found.append(f"clocks: {backward} launches ended before they started")
    if empty:
        found.append(f"clocks: {empty} launches took no time")
    if last_ns > span.end_ns:
        found.append(f"clocks: the last launch ended {(last_ns - span.end_ns) / 1e3:.3f} us after the run")
    return [*found, *_device_faults(timing)]


def _device_faults(timing: Timing) -> list[str]:
    """Return the faults of the times that the device gave: of sampled launches, and of CUPTI's records."""
    span, found = timing.span, []
    error_ns = EVENT_NS + (span.clock_error_ns or 0)
    if span.span_ns is not None and span.span_ns > span.end_ns - timing.start_ns + error_ns:
        found.append(f"clocks: the GPU span is longer than the run, {(span.end_ns - timing.start_ns) / 1e6:.3f} ms")
    if span.span_ns is not None and len(span.samples):
        starts_ns, ends_ns = span.samples.T
        step_ns = int(ends_ns.max() - timing.start_ns) // FLOAT32_STEPS
        if wrong := int((ends_ns < starts_ns).sum() + (step_ns < FINE_NS) * (ends_ns == starts_ns).sum()):
            found.append(f"clocks: {wrong} sampled launches took no time on the GPU")
        beyond_ns = int(ends_ns.max() - starts_ns.min()) - span.span_ns
        if beyond_ns > EVENT_NS + step_ns:
            found.append(f"clocks: sampled launches last {beyond_ns / 1e3:.0f} us longer than the GPU span")
        if (late_ns := int(ends_ns.max()) - span.end_ns) > error_ns + step_ns:
            found.append(f"clocks: the last sampled launch ended {late_ns / 1e3:.0f} us after the run")
    if timing.activity and len(timing.activity.kernel_times()):
        starts_ns, ends_ns = timing.activity.kernel_times().T
        if wrong := int((ends_ns <= starts_ns).sum()):
            found.append(f"clocks: {wrong} kernels took no time on the GPU")
        if (late_ns := int(ends_ns.max()) - span.end_ns) > EVENT_NS + timing.activity.clock_error_ns:
            found.append(f"clocks: the last kernel ended {late_ns / 1e3:.0f} us after the run")
    return found


MOST_CHANGE = 0.05  # of a ceiling over a job; beyond it nothing is compared with the ceilings
CEILINGS = ("copy_gb_per_s", "read_gb_per_s", "peak_tflops")


class Limits(NamedTuple):
    """The ceilings that a rate is compared with, and how much they changed during the job.

    device: "cpu" or "cuda". residency: the reason why inputs may have come from a cache, or None.
    """

    ceilings: Ceilings
    device: str
    residency: str | None = None
    change: float = 0.0  # 0.3: the largest of the measured ceilings is 30% above the smallest


def above_ceiling(row: Row, limits: Limits) -> tuple[str | None, bool]:
    """Return, as text, the rate that is above its ceiling, and whether that is an error; (None, False) if none is.

    It is an error for a compute rate, for bytes that no cache can hold (`least_memory_bytes`), and for the bytes of all
    operands if nothing explains why they may have come from a cache. A ceiling or a rate of 0 or None is unknown.
    """
    tflops, rate = row["achieved_tflops"] or 0.0, row["achieved_gb_per_s"] or 0.0
    peak, slack = limits.ceilings.peak_tflops, 1 + limits.change
    if peak and tflops > peak * ABOVE_PEAK_SLACK * slack:
        return f"{tflops:,.3g} TFLOP/s is above the measured peak of {peak:,.3g}", True
    most = max(limits.ceilings.read_gb_per_s, limits.ceilings.copy_gb_per_s)
    from_memory = rate * (row["least_memory_bytes"] or 0) / (row["bytes_moved"] or 1)
    if most and from_memory > most * ABOVE_BANDWIDTH_SLACK[limits.device] * slack:
        text = f"{from_memory:,.0f} GB/s from memory is above the measured {most:,.0f} GB/s"
        return f"{text}: no cache holds these bytes, and nothing explains it", True
    if not most or rate <= most * ABOVE_PEAK_SLACK * slack:
        return None, False
    text = f"{rate:,.0f} GB/s is above the measured {most:,.0f} GB/s"
    return (f"{text}: {limits.residency}", False) if limits.residency else (f"{text}, and nothing explains it", True)


def settle(row: Row, change: float) -> None:
    """Add to a row how far the ceilings changed over its job. If too far, remove them, and what follows from them."""
    row["ceilings_change"] = change
    if change > MOST_CHANGE:
        remove_ceilings(row)


def remove_ceilings(row: Row) -> None:
    """Remove the ceilings from a row, and what follows from them."""
    row |= dict.fromkeys(CEILINGS)
    row["above_ceiling"] = row["above_ceiling"] if row["status"] != "ok" else None

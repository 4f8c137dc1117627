"""Faults of a run's clocks: launches outside the span of the run, and launches that took no time.

A span that misses a launch is too short, and every rate computed from it is too high.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from launchopt.recording.launch_rows import LaunchColumn
from launchopt.recording.summary import Timing

if TYPE_CHECKING:  # the parent of a run must not load Numba
    from launchopt.recording.recorder import Recorder

EVENT_NS = 2_000  # accuracy of the time between two CUDA events
FINE_NS = 100  # a sample of length 0 is a fault if its clock distinguishes shorter times than this
FLOAT32_STEPS = 2**23  # CUDA gives the time between two events as a float32


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

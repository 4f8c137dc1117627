"""The last lines of `launchopt trace`: what takes the idle time of the GPU, what bounds it, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from launchopt.analysis.profiles.launch_stats import LaunchStats
from launchopt.traces.events import Format
from runner.profiles.trace_input import STDIN

HALF = 0.5  # share from which a part bounds the whole, as in `launchopt verdict`
BUSY = "Not launch-bound: the GPU is busy most of the time."
LAUNCH_BOUND = "Launch-bound: a captured graph, or fewer and fused launches, shortens this."
HOST_BOUND = (
    "Host-bound: the host prepares launches, in operators (dispatch) and between them (Python), more slowly than the "
    "GPU runs them. A captured graph, or fewer and fused launches, shortens this, but not a wait for data."
)
WAITS = "Not launch-bound: launched work waits for other streams, copies or GPUs most of the idle time."


def conclusion(path: Path, stats: LaunchStats) -> Iterator[str]:
    """Yield the causes of the idle time, the one that bounds the GPU, and a command; nothing without launches.

    A cause bounds the GPU if the GPU idles at least half of the time, and the cause takes at least half of that.
    """
    time = stats.gpu_time
    if time is None or not time.window_ms or not stats.kernels_launched + stats.whole_graphs:
        return
    idle = f"GPU idle {time.idle_ms / time.window_ms:.0%} of the time"
    if not time.idle_ms:
        yield f"{idle}. {BUSY}"
        return
    nothing, in_call = time.idle_not_launched_ms / time.idle_ms, time.idle_in_call_ms / time.idle_ms
    inner = None if stats.idle_in_operators_ms is None else stats.idle_in_operators_ms / time.idle_ms
    within = "" if inner is None else f" ({inner:.0%} within operators)"
    rest = f"within a launch call {in_call:.0%}, launched, not begun {time.idle_launched_ms / time.idle_ms:.0%}"
    yield f"{idle}. Of the idle time: nothing launched {nothing:.0%}{within}, {rest}"
    if time.idle_ms < HALF * time.window_ms:
        yield BUSY
    elif nothing + in_call < HALF:
        yield WAITS
    else:
        yield LAUNCH_BOUND if in_call >= HALF else HOST_BOUND
        if stats.format == Format.JSON.value and path != STDIN:
            yield f"next: launchopt advise --trace {shlex.quote(str(path))}"

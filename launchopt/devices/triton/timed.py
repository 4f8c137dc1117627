"""Time launches of a kernel as a CUDA graph, so that the speed of the host does not matter."""

from __future__ import annotations

from collections.abc import Callable

import cupy

from launchopt.cupy_types import CudaStream
from launchopt.errors import RunError

REPEATS = 3  # timings; the fastest counts


def ns_a_launch(stream: CudaStream, launch: Callable[[int], None], turns: int, what: object) -> float:
    """Return the GPU ns per launch of `launch(0)` to `launch(turns - 1)`, in the fastest of REPEATS timings.

    what: names the launch in an error.
    """
    launch(0)
    stream.synchronize()
    stream.begin_capture()
    try:
        for turn in range(turns):
            launch(turn)
    finally:
        graph = stream.end_capture()
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    times_ms = []
    for _ in range(1 + REPEATS):
        begin.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        times_ms.append(cupy.cuda.get_elapsed_time(begin, end))
    fastest_ms = float(min(times_ms[1:]))
    if fastest_ms <= 0:
        raise RunError(f"timing {what} on the GPU gave {fastest_ms} ms")
    return fastest_ms * 1e6 / turns

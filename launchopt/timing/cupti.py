"""Kernels that ran on the GPU, counted and timed by CUPTI: the only source of `kernels` and `gpu_busy_ms`.

Tracing costs several microseconds a launch, so a traced run's other times are not headline times. One tracer at
a time: CUPTI refuses to share with nsys.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.errors import DeviceError

BUFFER_BYTES = 8 << 20


def require() -> None:
    """DeviceError where cupti-python is not installed."""
    if find_spec("cupti") is None:
        raise DeviceError("timing=cupti: cupti-python not installed: install launchopt[cuda13]")


def busy_ns(intervals: NDArray[np.int64]) -> int:
    """Length of the union of [start, end) intervals; shape [count, 2], any order, ns."""
    if not len(intervals):
        return 0
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ordered[:, 1])
    starts = np.maximum(ordered[1:, 0], ends[:-1])
    return int(ordered[0, 1] - ordered[0, 0] + np.maximum(0, ordered[1:, 1] - starts).sum())


class KernelTracer:
    """Collects kernel records between `start` and `stop`."""

    def __init__(self) -> None:
        require()
        from cupti import cupti

        self._cupti = cupti
        self._intervals: list[tuple[int, int]] = []
        cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._completed)

    def _completed(self, activities: Any) -> None:
        # Called on CUPTI's thread when a buffer is full: copy two numbers, keep nothing of CUPTI's.
        self._intervals += [(activity.start, activity.end) for activity in activities]

    def start(self) -> None:
        """Forget, then record. Nothing may be running on the GPU."""
        self._cupti.activity_flush_all(1)
        self._intervals.clear()
        self._cupti.activity_enable(self._cupti.ActivityKind.CONCURRENT_KERNEL)

    def stop(self) -> tuple[int, int]:
        """After the last result: kernels that ran, and the ns during which at least one did."""
        self._cupti.activity_flush_all(1)
        self._cupti.activity_disable(self._cupti.ActivityKind.CONCURRENT_KERNEL)
        intervals = np.array(self._intervals, np.int64).reshape(-1, 2)
        return len(intervals), busy_ns(intervals)


@cache
def tracer() -> KernelTracer:
    """This process's tracer: CUPTI takes one set of callbacks, once."""
    return KernelTracer()

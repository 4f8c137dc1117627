"""What a device did during a run: the span of the work, and each activity of a GPU with the API call that started it.

A tracer gives an activity and its call the same correlation id. Times are CLOCK_MONOTONIC, ns. No CUDA is used here.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

NONE = -1  # no such call or launch


class ActivityKind(enum.IntEnum):
    """What a GPU did. The names are texts of kernels.parquet."""

    kernel = 0
    memcpy = 1
    memset = 2


class ActivityColumn(enum.IntEnum):
    """Columns of the table of activities."""

    KIND = 0  # ActivityKind
    NAME = 1  # index of Activity.names
    CORRELATION = 2
    START_NS = 3
    END_NS = 4
    STREAM = 5
    GRAPH = 6  # 0: outside of a graph


class CallColumn(enum.IntEnum):
    """Columns of the table of API calls."""

    NAME = 0  # index of Activity.apis
    CORRELATION = 1
    START_NS = 2
    END_NS = 3


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Rates measured on a device just before the runs."""

    copy_gb_per_s: float  # bytes read plus bytes written
    read_gb_per_s: float
    peak_tflops: float


@dataclass(frozen=True, slots=True)
class Span:
    """When the work of one run began and ended on the device, in ns."""

    end_ns: int  # CLOCK_MONOTONIC when the host knew of the last result
    span_ns: int | None  # between the events around the run, on the work's stream; None without events
    samples: NDArray[np.int64]  # [samples, 2]: start and end of each sampled submission, CLOCK_MONOTONIC
    clock_error_ns: int | None = None  # common offset that all samples may have


def busy_ns(intervals: Rows) -> int:
    """Return the length in ns of the union of [start, end) intervals, [count, 2] in any order."""
    if not len(intervals):
        return 0
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ordered[:, 1])
    starts = np.maximum(ordered[1:, 0], ends[:-1])
    return int(ordered[0, 1] - ordered[0, 0] + np.maximum(0, ordered[1:, 1] - starts).sum())


@dataclass(frozen=True, slots=True)
class Activity:
    """What a tracer saw of one run."""

    activities: Rows  # [activities, len(ActivityColumn)], by start
    calls: Rows  # [calls, len(CallColumn)]: the outermost call of each activity's correlation id, by correlation id
    names: Sequence[str]
    apis: Sequence[str]
    dropped: int  # records lost; above 0, every count is a lower bound
    clock_error_ns: int  # common offset that all times may have

    @property
    def kernels(self) -> int:
        """Number of kernels that ran."""
        return int(np.count_nonzero(self._is_kernel()))

    @property
    def busy_ns(self) -> int:
        """Time during which at least one kernel ran."""
        return busy_ns(self.kernel_times())

    def kernel_times(self) -> Rows:
        """Return start and end of each kernel in ns, [kernels, 2], by start."""
        return self.activities[self._is_kernel()][:, [ActivityColumn.START_NS, ActivityColumn.END_NS]]

    def call_of(self) -> Rows:
        """Return the row of `calls` that started each activity, or NONE."""
        return _positions(self.calls[:, CallColumn.CORRELATION], self.activities[:, ActivityColumn.CORRELATION])

    def delays_ns(self) -> Rows:
        """Return, for each call, the start of its first kernel minus the call's end: below 0 if it began earlier."""
        is_kernel = self._is_kernel()
        call, start = self.call_of()[is_kernel], self.activities[is_kernel, ActivityColumn.START_NS]
        known, first = np.unique(call[call != NONE], return_index=True)  # rows are by start: the first is the earliest
        delays: Rows = start[call != NONE][first] - self.calls[known, CallColumn.END_NS]
        return delays

    def _is_kernel(self) -> NDArray[np.bool_]:
        is_kernel: NDArray[np.bool_] = self.activities[:, ActivityColumn.KIND] == ActivityKind.kernel
        return is_kernel


def outermost(calls: Rows) -> Rows:
    """Keep one call per correlation id: a runtime call contains a driver call with the same id."""
    starts_ns, ends_ns = calls[:, CallColumn.START_NS], calls[:, CallColumn.END_NS]
    ordered = calls[np.lexsort((-ends_ns, starts_ns, calls[:, CallColumn.CORRELATION]))]
    _, first = np.unique(ordered[:, CallColumn.CORRELATION], return_index=True)
    return ordered[first]


def _positions(ids: Rows, wanted: Rows) -> Rows:
    """Return where in the sorted `ids` each of `wanted` is, or NONE."""
    if not len(ids):
        return np.full(len(wanted), NONE)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[at] == wanted, at, NONE)

"""Records of a device's work in a run: its span, and each activity of a GPU with the API call that started it.

A tracer gives an activity and its call the same correlation id. Times are ns of CLOCK_MONOTONIC. This module needs no
CUDA.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

NONE = -1  # index of a call that was not recorded


class ActivityKind(enum.IntEnum):
    """The kinds of GPU activities. The names are values in kernels.parquet."""

    kernel = 0
    memcpy = 1
    memset = 2


class ActivityColumn(enum.IntEnum):
    """Columns of the table of activities."""

    KIND = 0  # ActivityKind
    NAME = 1  # index into Activity.names
    CORRELATION = 2  # id that the activity shares with the API call that started it
    START_NS = 3
    END_NS = 4
    STREAM = 5  # CUPTI's number of the CUDA stream
    GRAPH = 6  # CUPTI's number of the CUDA graph; 0: the activity is not part of a graph


class CallColumn(enum.IntEnum):
    """Columns of the table of API calls."""

    NAME = 0  # index into Activity.apis
    CORRELATION = 1  # id that the call shares with the activities it started
    START_NS = 2
    END_NS = 3


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Peak rates of a device's memory."""

    copy_gb_per_s: float  # bytes read plus bytes written
    read_gb_per_s: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Peak rates, measured on a device just before the runs."""

    copy_gb_per_s: float
    read_gb_per_s: float
    peak_tflops: float

    @property
    def bandwidths(self) -> Bandwidths:
        """The two rates of memory."""
        return Bandwidths(self.copy_gb_per_s, self.read_gb_per_s)


@dataclass(frozen=True, slots=True)
class Span:
    """The time of one run on the device, in ns."""

    end_ns: int  # CLOCK_MONOTONIC just after the host saw the last result
    span_ns: int | None  # time between the events around the run, on the main CUDA stream; None without events
    samples: NDArray[np.int64]  # [samples, 2]: start and end of each sampled launch call, CLOCK_MONOTONIC
    clock_error_ns: int | None = None  # largest error of the offset from the GPU's clock, the same for all samples


def busy_ns(intervals: Rows) -> int:
    """Return the length in ns of the union of intervals [start, end), given as [count, 2] in any order."""
    if not len(intervals):
        return 0
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ordered[:, 1])
    starts = np.maximum(ordered[1:, 0], ends[:-1])
    return int(ordered[0, 1] - ordered[0, 0] + np.maximum(0, ordered[1:, 1] - starts).sum())


@dataclass(frozen=True, slots=True)
class Activity:
    """A tracer's records of one run."""

    activities: Rows  # [activities, ActivityColumn], sorted by start
    calls: Rows  # [calls, CallColumn]: the outermost call of each correlation id of an activity, sorted by that id
    names: Sequence[str]  # names of activities
    apis: Sequence[str]  # names of API functions
    dropped: int  # number of lost records; above 0, every count here is a lower bound
    clock_error_ns: int  # largest error of the offset from the tracer's clock, the same for all times

    @property
    def kernels(self) -> int:
        """Number of kernels that ran."""
        return int(np.count_nonzero(self._is_kernel()))

    @property
    def busy_ns(self) -> int:
        """Time during which at least one kernel ran."""
        return busy_ns(self.kernel_times())

    def kernel_times(self) -> Rows:
        """Return start and end of each kernel in ns, [kernels, 2], sorted by start."""
        return self.activities[self._is_kernel()][:, [ActivityColumn.START_NS, ActivityColumn.END_NS]]

    def call_of(self) -> Rows:
        """Return, for each activity, the row of `calls` that started it, or NONE."""
        return _positions(self.calls[:, CallColumn.CORRELATION], self.activities[:, ActivityColumn.CORRELATION])

    def delays_ns(self) -> Rows:
        """Return the ns from the end of each call to the start of its first kernel; negative if that started earlier.

        Calls that started no kernel are left out.
        """
        is_kernel = self._is_kernel()
        call, start = self.call_of()[is_kernel], self.activities[is_kernel, ActivityColumn.START_NS]
        known, first = np.unique(call[call != NONE], return_index=True)  # sorted by start: the first is the earliest
        delays: Rows = start[call != NONE][first] - self.calls[known, CallColumn.END_NS]
        return delays

    def _is_kernel(self) -> NDArray[np.bool_]:
        is_kernel: NDArray[np.bool_] = self.activities[:, ActivityColumn.KIND] == ActivityKind.kernel
        return is_kernel


def outermost(calls: Rows) -> Rows:
    """Return the outermost call of each correlation id. A runtime call contains a driver call with the same id."""
    starts_ns, ends_ns = calls[:, CallColumn.START_NS], calls[:, CallColumn.END_NS]
    ordered = calls[np.lexsort((-ends_ns, starts_ns, calls[:, CallColumn.CORRELATION]))]
    _, first = np.unique(ordered[:, CallColumn.CORRELATION], return_index=True)
    return ordered[first]


def _positions(ids: Rows, wanted: Rows) -> Rows:
    """Return, for each of `wanted`, its index in the sorted `ids`, or NONE."""
    if not len(ids):
        return np.full(len(wanted), NONE)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[at] == wanted, at, NONE)

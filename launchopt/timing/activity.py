"""What a GPU did during a run, as a tracer saw it, and which of our launch calls started it.

In: activities of the GPU and calls of the API as rows of int64, with the correlation ids that a tracer gives both; and
the launch calls as the recorder has them. Out: for each activity its call and its launch, the delays in between, and
the columns of kernels.parquet. All times are CLOCK_MONOTONIC, ns. Knows no CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from launchopt.command import ShapeKey
from launchopt.recording import recorder as rec
from launchopt.recording.recorder import Recorder
from launchopt.timing.nvtx_ranges import range_name

Rows = NDArray[np.int64]

# Columns of an activity: what it is (KINDS), its name (an index of `names`), and so on; GRAPH is 0 outside of one.
KIND, NAME, CORRELATION, START, END, STREAM, GRAPH = range(7)
ACTIVITY_COLUMNS = 7
KINDS = ("kernel", "memcpy", "memset")
KERNEL = 0
# Columns of a call of the API; CALL_NAME is an index of `apis`.
CALL_NAME, CALL_CORRELATION, CALL_START, CALL_END = range(4)
CALL_COLUMNS = 4
NONE = -1


def busy_ns(intervals: Rows) -> int:
    """Length of the union of [start, end) intervals; shape [count, 2], any order, ns."""
    if not len(intervals):
        return 0
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ordered[:, 1])
    starts = np.maximum(ordered[1:, 0], ends[:-1])
    return int(ordered[0, 1] - ordered[0, 0] + np.maximum(0, ordered[1:, 1] - starts).sum())


@dataclass(frozen=True, slots=True)
class Activity:
    """One run. `dropped`: records lost, so that every count is a lower bound where it is not 0."""

    activities: Rows  # [activities, ACTIVITY_COLUMNS], by start
    calls: Rows  # [calls, CALL_COLUMNS]: those that started an activity, the outermost of each correlation id
    names: Sequence[str]
    apis: Sequence[str]
    dropped: int
    clock_error_ns: int  # how far times may be off, all alike

    @property
    def kernels(self) -> int:
        """Kernels that ran."""
        return int(np.count_nonzero(self.activities[:, KIND] == KERNEL))

    @property
    def busy_ns(self) -> int:
        """During which at least one kernel ran."""
        return busy_ns(self.activities[self.activities[:, KIND] == KERNEL][:, [START, END]])

    def call_of(self) -> Rows:
        """For each activity the call that started it, or NONE."""
        return _positions(self.calls[:, CALL_CORRELATION], self.activities[:, CORRELATION])

    def delays_ns(self) -> Rows:
        """Start of the first kernel of each call minus the call's end: below 0 where it had begun by then."""
        is_kernel = self.activities[:, KIND] == KERNEL
        call, start = self.call_of()[is_kernel], self.activities[is_kernel, START]
        known, first = np.unique(call[call != NONE], return_index=True)  # by start: the first of each is the earliest
        delays: Rows = start[call != NONE][first] - self.calls[known, CALL_END]
        return delays


def outermost(calls: Rows) -> Rows:
    """One call a correlation id: a call of the runtime is also one of the driver, within it and with the same id."""
    ordered = calls[np.lexsort((-calls[:, CALL_END], calls[:, CALL_START], calls[:, CALL_CORRELATION]))]
    _, first = np.unique(ordered[:, CALL_CORRELATION], return_index=True)
    return ordered[first]


def _positions(ids: Rows, wanted: Rows) -> Rows:
    """Where in `ids` (sorted) each of `wanted` is, or NONE."""
    if not len(ids):
        return np.full(len(wanted), NONE)
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[at] == wanted, at, NONE)


def launches_of(calls: Rows, starts_ns: Rows, ends_ns: Rows) -> Rows:
    """For each call the launch within which its middle lies, or NONE; launches are in order and do not overlap.

    The middle: the two clocks differ by less than half of any call that starts something on a GPU.
    """
    if not len(starts_ns):
        return np.full(len(calls), NONE)
    middle = (calls[:, CALL_START] + calls[:, CALL_END]) // 2
    at = np.searchsorted(starts_ns, middle, side="right") - 1
    return np.where((at >= 0) & (middle <= ends_ns[at]), at, NONE)


def kernel_columns(
    activity: Activity, recorder: Recorder, mode: str, shapes: Sequence[ShapeKey], zero_ns: int
) -> dict[str, Any]:
    """Columns of kernels.parquet, less those that name the run; times since `zero_ns`."""
    rows, calls = activity.activities, activity.calls
    launches = np.concatenate([np.empty((0, rec.LAUNCH_COLUMNS), np.int64), *(x for _, x in recorder.launch_chunks())])
    call = activity.call_of()
    started, ended = launches[:, rec.SUBMIT_START_NS], launches[:, rec.SUBMIT_END_NS]
    launch = _taken(launches_of(calls, started, ended), call)
    names = [range_name(mode, shape, shapes[0].dtype) for shape in (*shapes, None)]  # None, the last: several
    return {
        "launch": _known(launch),
        "batch": _known(_taken(launches[:, rec.BATCH], launch)),
        "range": _texts(_taken(launches[:, rec.SHAPE] % len(names), launch), names),
        "name": _texts(rows[:, NAME], activity.names),
        "kind": _texts(rows[:, KIND], KINDS),
        "correlation": rows[:, CORRELATION],
        "api": _texts(_taken(calls[:, CALL_NAME], call), activity.apis),
        "api_start_ns": _known(_taken(calls[:, CALL_START], call), call, zero_ns),
        "api_end_ns": _known(_taken(calls[:, CALL_END], call), call, zero_ns),
        "start_ns": rows[:, START] - zero_ns,
        "end_ns": rows[:, END] - zero_ns,
        "stream": rows[:, STREAM],
        "graph": pa.array(rows[:, GRAPH], mask=rows[:, GRAPH] == 0),
    }


def _taken(values: Rows, at: Rows) -> Rows:
    """values[at], NONE where `at` is."""
    found = np.full(len(at), NONE)
    found[at != NONE] = values[at[at != NONE]]
    return found


def _known(values: Rows, where: Rows | None = None, zero_ns: int = 0) -> pa.Array:
    """Null where `where` (the values themselves, if None) is NONE."""
    return pa.array(values - zero_ns, mask=(values if where is None else where) == NONE)


def _texts(codes: Rows, names: Sequence[str]) -> pa.Array:
    indices = pa.array(codes, pa.int32(), mask=codes == NONE)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(names), pa.string())).cast(pa.string())

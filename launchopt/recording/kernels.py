"""Columns of kernels.parquet: each activity of a GPU, the API call that started it, and the launch of this call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from launchopt.command import ShapeKey
from launchopt.recording.columns import Columns
from launchopt.recording.launch_rows import LAUNCH_COLUMNS, LaunchColumn
from launchopt.timing.activity import NONE, Activity, ActivityColumn, ActivityKind, CallColumn, Rows
from launchopt.timing.nvtx_ranges import range_name

if TYPE_CHECKING:  # the parent of a run imports this module, and must not load Numba
    from launchopt.recording.recorder import Recorder


def launches_of(calls: Rows, starts_ns: Rows, ends_ns: Rows) -> Rows:
    """Return, for each API call, the index of the launch that contains the midpoint of the call, or NONE.

    Launches are in order and do not overlap. The clocks of CUPTI and of the host differ by less than half the time of
    any call that starts work on a GPU. So the midpoint is inside the right launch.
    """
    if not len(starts_ns):
        return np.full(len(calls), NONE)
    middle = (calls[:, CallColumn.START_NS] + calls[:, CallColumn.END_NS]) // 2
    at = np.searchsorted(starts_ns, middle, side="right") - 1
    return np.where((at >= 0) & (middle <= ends_ns[at]), at, NONE)


def kernel_columns(
    activity: Activity, recorder: Recorder, mode: str, shapes: Sequence[ShapeKey], zero_ns: int, gpu: int | None = None
) -> Columns:
    """Return the columns of kernels.parquet except those that name the run; times count from `zero_ns`.

    gpu: of a run on several.
    """
    rows, calls = activity.activities, activity.calls
    launches = np.concatenate([np.empty((0, LAUNCH_COLUMNS), np.int64), *(x for _, x in recorder.launch_chunks())])
    call = activity.call_of()
    started, ended = launches[:, LaunchColumn.SUBMIT_START_NS], launches[:, LaunchColumn.SUBMIT_END_NS]
    launch = _taken(launches_of(calls, started, ended), call)
    names = [
        range_name(mode, shape, shapes[0].dtype) for shape in (*shapes, None)
    ]  # the last one is for launches of several shapes
    return {
        "gpu": pa.repeat(pa.scalar(gpu, pa.int32()), len(rows)),
        "launch": _known(launch),
        "batch": _known(_taken(launches[:, LaunchColumn.BATCH], launch)),
        "range": _texts(_taken(launches[:, LaunchColumn.SHAPE] % len(names), launch), names),
        "name": _texts(rows[:, ActivityColumn.NAME], activity.names),
        "kind": _texts(rows[:, ActivityColumn.KIND], [kind.name for kind in ActivityKind]),
        "correlation": rows[:, ActivityColumn.CORRELATION],
        "api": _texts(_taken(calls[:, CallColumn.NAME], call), activity.apis),
        "api_start_ns": _known(_taken(calls[:, CallColumn.START_NS], call), call, zero_ns),
        "api_end_ns": _known(_taken(calls[:, CallColumn.END_NS], call), call, zero_ns),
        "start_ns": rows[:, ActivityColumn.START_NS] - zero_ns,
        "end_ns": rows[:, ActivityColumn.END_NS] - zero_ns,
        "stream": rows[:, ActivityColumn.STREAM],
        "graph": pa.array(rows[:, ActivityColumn.GRAPH], mask=rows[:, ActivityColumn.GRAPH] == 0),
    }


def _taken(values: Rows, at: Rows) -> Rows:
    """Return values[at], with NONE where `at` is NONE."""
    found = np.full(len(at), NONE)
    found[at != NONE] = values[at[at != NONE]]
    return found


def _known(values: Rows, where: Rows | None = None, zero_ns: int = 0) -> pa.Array:
    """Return values - zero_ns as an Arrow array, with null where `where` (default: `values`) is NONE."""
    return pa.array(values - zero_ns, mask=(values if where is None else where) == NONE)


def _texts(codes: Rows, names: Sequence[str]) -> pa.Array:
    indices = pa.array(codes, pa.int32(), mask=codes == NONE)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(names), pa.string())).cast(pa.string())

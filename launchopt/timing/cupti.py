"""Trace a run by CUPTI: record every kernel, copy and fill, and the API call that started it, as an `Activity`.

The columns `kernels` and `gpu_busy_ms` come only from CUPTI. Tracing slows every launch call, and the end of a run with
many launches, since Python handles every record (`python -m runner.bench tracing`). Other times of a traced run are
therefore not headline times. CUPTI accepts one tracer at a time, so this does not work under nsys. The number of
records is bounded. Records that are lost, here or in CUPTI, are counted. All times are CLOCK_MONOTONIC.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol

import numpy as np

from launchopt.distribution import install_command, missing
from launchopt.errors import DeviceError
from launchopt.timing.activity import Activity, ActivityColumn, ActivityKind, CallColumn, Rows, outermost
from launchopt.timing.nvtx_ranges import is_profiled

BUFFER_BYTES = 8 << 20  # size of a buffer that CUPTI fills
MOST_RECORDS = 8_000_000  # most activities and calls together, about half a gigabyte
ANCHOR_TRIES = 50  # readings of both clocks; the reading with the smallest error counts
VERSIONED = re.compile(r"(_ptsz|_ptds)?(_v\d+)?(_ptsz|_ptds)?$")  # turns cudaLaunchKernel_v7000 into cudaLaunchKernel


class Record(Protocol):
    """A record of CUPTI. Its attributes depend on its kind. Times are ns of CUPTI's clock."""

    kind: int  # ActivityKind of CUPTI
    correlation_id: int  # the same for an activity and the API call that started it
    start: int
    end: int
    cbid: int  # number of the function (API calls only)
    name: str  # name of the kernel (kernels only)
    bytes: int  # bytes copied or filled (copies and fills only)
    stream_id: int  # CUPTI's number of the CUDA stream (activities only)
    graph_id: int  # CUPTI's number of the CUDA graph; 0: no graph launched it (activities only)


TAKEN = "timing=cupti: CUPTI accepts one tracer, and a profiler is attached; use timing=host"


def require() -> None:
    """Raise DeviceError if cupti-python is not installed, or if an attached profiler uses CUPTI."""
    if missing("cupti"):
        raise DeviceError(f"timing=cupti needs cupti-python; type: {install_command('cuda13')}")
    if is_profiled():
        raise DeviceError(TAKEN)


class KernelTracer:
    """Collects CUPTI's records between `start` and `stop`, at most `most_records`."""

    def __init__(self, most_records: int = MOST_RECORDS) -> None:
        require()
        from cupti import cupti

        self._cupti, self._most = cupti, most_records
        kinds = cupti.ActivityKind
        self._what = {
            **{int(kinds.CONCURRENT_KERNEL): "kernel", int(kinds.KERNEL): "kernel"},
            **{int(kinds.MEMCPY): "memcpy", int(kinds.MEMSET): "memset"},
            **{int(kinds.RUNTIME): "runtime", int(kinds.DRIVER): "driver"},
        }
        self._enabled = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET, kinds.RUNTIME, kinds.DRIVER)
        self._names: dict[str, int] = {}  # numbers in order of appearance
        self._apis: dict[tuple[str, int], int] = {}
        self._forget()
        with self._refusing():
            cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._completed)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Raise DeviceError instead of an error of CUPTI. TAKEN: a tool in this process has the only subscription."""
        cupti, taken = self._cupti, self._cupti.Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
        try:
            yield
        except cupti.cuptiError as error:
            raise DeviceError(TAKEN if error.status == taken else f"timing=cupti: CUPTI refused: {error}") from None

    def _require_alone(self) -> None:
        """Raise DeviceError if a tool has CUPTI's subscription, which no environment variable needs to show."""
        cupti, taken = self._cupti, self._cupti.Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
        try:
            cupti.unsubscribe(cupti.subscribe(lambda *_: None, 0))
        except cupti.cuptiError as error:
            if error.status == taken:  # other errors come again when tracing starts
                raise DeviceError(TAKEN) from None

    def _forget(self) -> None:
        self._chunks: tuple[list[Rows], list[Rows]] = ([], [])
        self._kept, self._dropped = 0, 0

    def _completed(self, records: Iterable[Record]) -> None:
        """Copy the records of a full buffer. CUPTI calls this on its own thread, and then reuses the buffer."""
        activities: list[tuple[int, ...]] = []
        calls: list[tuple[int, ...]] = []
        for record in records:
            what = self._what.get(record.kind)
            if what is None:
                continue
            if self._kept + len(activities) + len(calls) >= self._most:
                self._dropped += 1
            elif what in ("runtime", "driver"):
                api = self._apis.setdefault((what, record.cbid), len(self._apis))
                calls.append((api, record.correlation_id, record.start, record.end))
            else:
                activities.append(self._activity(what, record))
        self._kept += len(activities) + len(calls)
        for chunks, rows, columns in zip(
            self._chunks, (activities, calls), (len(ActivityColumn), len(CallColumn)), strict=True
        ):
            chunks.append(np.array(rows, np.int64).reshape(-1, columns))

    def _activity(self, what: str, record: Record) -> tuple[int, ...]:
        kind = ActivityKind[what]
        text = record.name if what == "kernel" else f"{what}, {record.bytes} bytes"
        name = self._names.setdefault(text, len(self._names))
        times = record.start, record.end
        return (kind, name, record.correlation_id, *times, record.stream_id, record.graph_id)

    def start(self) -> None:
        """Delete all records and start recording. The GPU must be idle."""
        self._require_alone()
        with self._refusing():
            self._cupti.activity_flush_all(1)
            self._forget()
            self._lost()  # reset CUPTI's count of dropped records
            self._before = self._anchor()
            for kind in self._enabled:
                self._cupti.activity_enable(kind)

    def stop(self) -> Activity:
        """Stop recording, and return the records since `start`. The GPU must be idle."""
        self._cupti.activity_flush_all(1)
        for kind in self._enabled:
            self._cupti.activity_disable(kind)
        after = self._anchor()
        empty = (np.empty((0, columns), np.int64) for columns in (len(ActivityColumn), len(CallColumn)))
        activities, calls = (np.concatenate([none, *kept]) for none, kept in zip(empty, self._chunks, strict=True))
        dropped = self._dropped + self._lost()
        self._forget()
        for rows, columns in (
            (activities, (ActivityColumn.START_NS, ActivityColumn.END_NS)),
            (calls, (CallColumn.START_NS, CallColumn.END_NS)),
        ):
            for column in columns:
                rows[:, column] = _monotonic(rows[:, column], self._before, after)
        calls = outermost(calls[np.isin(calls[:, CallColumn.CORRELATION], activities[:, ActivityColumn.CORRELATION])])
        activities = activities[np.argsort(activities[:, ActivityColumn.START_NS], kind="stable")]
        error_ns = max(self._before[2], after[2])
        return Activity(activities, calls, list(self._names), self._api_names(), dropped, error_ns)

    def _api_names(self) -> list[str]:
        cupti = self._cupti
        enums = {"runtime": cupti.runtime_api_trace_cbid, "driver": cupti.driver_api_trace_cbid}
        return [VERSIONED.sub("", enums[domain](number).name) for domain, number in self._apis]

    def _lost(self) -> int:
        """Return the number of records that CUPTI has dropped since the last call."""
        lost = ctypes.c_size_t(0)
        self._cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(lost))
        return lost.value

    def _anchor(self) -> tuple[int, int, int]:
        """Return one moment on CUPTI's clock and on CLOCK_MONOTONIC, and the largest error of the pair, in ns."""
        tries = []
        for _ in range(ANCHOR_TRIES):
            before_ns = time.monotonic_ns()
            theirs_ns = self._cupti.get_timestamp()
            after_ns = time.monotonic_ns()
            tries.append((theirs_ns, (before_ns + after_ns) // 2, after_ns - before_ns))
        return min(tries, key=lambda each: each[2])


def _monotonic(times_ns: Rows, before: tuple[int, int, int], after: tuple[int, int, int]) -> Rows:
    """Convert CUPTI's times to CLOCK_MONOTONIC, interpolating linearly between the anchors before and after the run."""
    offset_ns, passed_ns = before[1] - before[0], max(1, after[0] - before[0])
    drift = (after[1] - after[0] - offset_ns) / passed_ns
    moved: Rows = times_ns + offset_ns + ((times_ns - before[0]) * drift).astype(np.int64)
    return moved


@cache
def tracer() -> KernelTracer:
    """Return the tracer of this process. There is one, since CUPTI accepts callbacks only once per process."""
    return KernelTracer()

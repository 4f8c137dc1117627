"""Read Kineto and Chrome JSON traces, as the profiler of PyTorch and other tools write them.

Calls of CUDA, HIP and XPU (SYCL) are read. Events of other accelerators are counted, and a trace of nothing else is
refused. Call and GPU event share `correlation`; `External id` stands in where an event has none, as on AMD GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from launchopt.errors import DataError
from launchopt.traces.chrome_events import Clock, Spans, TimeUnit, category_of, is_operator, numbered, whole
from launchopt.traces.events import (
    CALL,
    EXTERNAL,
    GPU_EVENT,
    NAME_CHARACTERS_MAX,
    NONE,
    OPERATOR,
    Collective,
    Format,
    Gathered,
    Kind,
    Names,
    Trace,
    without_time,
)
from launchopt.traces.json_events import events
from launchopt.traces.kineto_header import read_header
from launchopt.traces.mended_json import MendedStream

# Categories of events, in lower case.
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "xpu_runtime", "xpu_driver"})
_GPU = {
    **{"kernel": Kind.KERNEL, "concurrent_kernel": Kind.KERNEL},
    **{"gpu_memcpy": Kind.MEMCPY, "memcpy": Kind.MEMCPY},
    **{"gpu_memset": Kind.MEMSET, "memset": Kind.MEMSET},
}
# Categories that say nothing of launches: the host's, and marks and waits on a GPU.
_IGNORED = frozenset(
    {
        *("user_annotation", "cpu_instant_event", "python_function", "overhead", "trace"),
        *("gpu_user_annotation", "cuda_sync", "cuda_event", "ac2g", "external_correlation", "cuda_profiler_range"),
        *("collective_comm", "gpu_pm_counter"),
    }
)
ACCELERATORS = ("MTIA", "HPU", "Glow", "PrivateUse1")  # categories start with these names, in lower case
_READ = "launchopt reads events of CUDA, HIP and XPU"
_CORRELATIONS = ("correlation", "correlation_id", "correlationId", "Correlation ID")
_NAME, _GROUP, _RANKS = "Collective name", "Process Group Name", "Process Group Ranks"
_EXTERNALS = ("External id", "external id")
_INT32 = 2**31 - 1
_CATEGORIES_MAX = 50


def read_kineto(path: Path, unit: TimeUnit | None = None) -> Trace:
    """Return the CUDA calls, GPU events and operators of the trace at `path`.

    unit: the unit of the file's times; None: detected, see `chrome_events`. Events without a usable time are left
    out and counted.
    DataError: as for `events`, and if the trace has events of an accelerator that is not supported, and no others.
    """
    for sorts in (False, True):
        spans, reader, mended = Spans(sorts=sorts), _Reader(unit), list[MendedStream]()
        for event in spans.complete(reader.counted(events(path, mended))):
            reader.add(event)
        if not spans.is_unordered:
            break
    calls, gpu = reader.calls.array(), reader.gpu.array()
    unknown = without_time(np.concatenate([calls["start_ns"], gpu["start_ns"]]))
    without_call_time, without_gpu_time = np.split(unknown, [len(calls)])
    left_out = reader.left_out + int(unknown.sum())
    names = [name for name in ACCELERATORS if reader.others[name]]
    if names and not (len(calls) or len(gpu) or left_out):
        raise DataError(path, None, f"{' and '.join(names)} events: not supported; {_READ}")
    about = sum(each.mended for each in mended), "".join(each.first for each in mended)
    trace = calls[~without_call_time], gpu[~without_gpu_time], reader.names.texts, reader.events, left_out
    others = dict(reader.others.most_common(_CATEGORIES_MAX))
    said = {"collectives": tuple(reader.collectives), **read_header(path)._asdict()}
    return Trace(Format.JSON, *trace, *about, others, operators=reader.operators.array(), **said)


class _Reader:
    """Turns complete events into rows of a `Trace`."""

    def __init__(self, unit: TimeUnit | None) -> None:
        self.calls, self.gpu, self.operators = Gathered(CALL), Gathered(GPU_EVENT), Gathered(OPERATOR)
        self.names, self.left_out = Names(), 0
        self.collectives: dict[Collective, int] = {}
        self.events = 0  # number of events in the file so far
        self.others: Counter[str] = Counter()  # events with a duration that say nothing, by category or accelerator
        self._clock = Clock(unit)

    def counted(self, found: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield every event of a file, and count it."""
        for event in found:
            self.events += 1
            yield event

    def add(self, event: dict[str, Any]) -> None:
        """Add a call, a GPU event or an operator; count other events by their category."""
        category = category_of(event)
        kind = _GPU.get(category)
        if is_operator(category):
            self._add_operator(event)
            return
        if kind is None and category not in _CALLS:
            self._count_other(category)
            return
        times = self._clock.times(event)
        if times is None:
            self.left_out += 1
            return
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        keys = *times, _correlation(arguments), self.events
        name = self.names.code(str(event.get("name", "(unnamed)")))
        track = self._label(event.get("pid"))
        if kind is None:
            self.calls.add((*keys, track, self._label(event.get("tid")), name))
            return
        # `pid` of a GPU event is the device, and `tid` the CUDA stream. The event does not name the process.
        stream, device = arguments.get("stream"), arguments.get("device")
        stream = self._stream(event.get("tid") if stream is None else stream)
        device = numbered(event.get("pid") if device is None else device, _INT32)
        owner = NONE, track, device, whole(arguments.get("context"), _INT32)
        self.gpu.add((*keys, stream, *owner, name, kind, self._collective(arguments), NONE))

    def _add_operator(self, event: dict[str, Any]) -> None:
        times = self._clock.times(event)
        if times is not None:
            name = self.names.code(str(event.get("name", "(unnamed)")))
            self.operators.add((*times, self._label(event.get("pid")), self._label(event.get("tid")), name))

    def _count_other(self, category: str) -> None:
        if category in _IGNORED:
            return
        accelerator = next((name for name in ACCELERATORS if category.startswith(name.lower())), category)
        if len(self.others) < 10 * _CATEGORIES_MAX or accelerator in self.others:
            self.others[accelerator] += 1

    def _stream(self, value: object) -> int:
        """Return the number of a stream; for a stream with a name but no number, see `Trace`."""
        found = numbered(value, EXTERNAL - 1)
        return -2 - self.names.code(("stream", value), value) if found == NONE and isinstance(value, str) else found

    def _collective(self, arguments: dict[str, Any]) -> int:
        if _NAME not in arguments and _GROUP not in arguments and _RANKS not in arguments:
            return NONE
        name, group, ranks = (_text(arguments.get(key)) for key in (_NAME, _GROUP, _RANKS))
        return self.collectives.setdefault(Collective(name, group, ranks.replace(" ", "")), len(self.collectives))

    def _label(self, value: object) -> int:
        return self.names.code(("id", str(value)), str(value))


def _text(value: object) -> str:
    return "" if value is None else str(value)[:NAME_CHARACTERS_MAX].encode("utf-8", "replace").decode()


def _correlation(arguments: dict[str, Any]) -> int:
    """Return the correlation id; without one, the External id as `EXTERNAL` says; without both, NONE."""
    for key in _CORRELATIONS:
        if (found := whole(arguments.get(key), EXTERNAL - 1)) > 0:
            return found
    for key in _EXTERNALS:
        if (found := whole(arguments.get(key), EXTERNAL - 1)) > 0:
            return EXTERNAL + found
    return NONE

"""Read Kineto and Chrome JSON traces, as the profiler of PyTorch and other tools write them.

A file is plain or gzip, detected by its content. It holds an object with a list `traceEvents`, or only that list.
`events` yields each event unchanged. `read_kineto` returns calls of the CUDA API and events of GPUs as a `Trace`.

Times are in us, with decimals if the profiler has ns. `displayTimeUnit` only says how a viewer shows them. Some tools
write ns instead: times after the year 5138, if read as us, are taken as ns. Only complete events (`ph` X) have a
duration, and only these are read. A number may also be written as a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import ijson

from launchopt.errors import DataError
from launchopt.traces.events import (
    CALL,
    GPU_EVENT,
    LATEST_NS,
    NONE,
    Format,
    Gathered,
    Kind,
    Names,
    Trace,
    detect,
)
from launchopt.traces.json_stream import CHUNK_BYTES, JsonStream

NO_TRACE = "JSON, but no trace: expected a list of events, alone or as traceEvents"
TimeUnit = Literal["us", "ns"]
NS_BEYOND = 10**17  # us since 1970: the year 5138

# Categories of events, in lower case, since the first versions of Kineto wrote Kernel, Memcpy, Memset and Runtime.
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver"})
_GPU = {
    **{"kernel": Kind.KERNEL, "concurrent_kernel": Kind.KERNEL},
    **{"gpu_memcpy": Kind.MEMCPY, "memcpy": Kind.MEMCPY},
    **{"gpu_memset": Kind.MEMSET, "memset": Kind.MEMSET},
}
_INT64, _INT32 = 2**63 - 1, 2**31 - 1


def events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of the trace at `path` in order, with one event in memory at a time.

    Numbers with a decimal point are exact `Decimal`s. DataError can be raised after any event, since the file is
    checked while it is read.
    """
    if detect(path) is not Format.JSON:
        raise DataError(path, None, "an nsys export, where a JSON trace was expected")
    number = 0
    with JsonStream(path) as stream:
        try:
            prefix = "item" if stream.is_array else "traceEvents.item"
            for number, event in enumerate(ijson.items(stream, prefix, buf_size=CHUNK_BYTES), 1):
                if not isinstance(event, dict):
                    raise DataError(path, None, f"event {number} is no object: {NO_TRACE}")
                yield event
        except ijson.JSONError as error:
            if not stream.is_open_array:
                raise stream.error(f"not JSON {_after(number)} ({_reason(error)})") from None
        except (ArithmeticError, ValueError) as error:
            raise stream.error(f"a number that cannot be read {_after(number)} ({error})") from None
    if not number and not stream.is_array and not _has_events(path):
        raise DataError(path, None, NO_TRACE)


def _has_events(path: Path) -> bool:
    """Return whether the outermost object has a list `traceEvents`, which may be empty."""
    with JsonStream(path) as stream:
        return any(token[:2] == ("traceEvents", "start_array") for token in ijson.parse(stream, buf_size=CHUNK_BYTES))


def _after(number: int) -> str:
    return f"after event {number:,}" if number else "before the first event"


def _reason(error: Exception) -> str:
    """Return the parser's message without the lines that show the position."""
    text = str(error.args[0] if error.args else error)
    if text.startswith(("b'", 'b"')):  # ijson's message is the repr of bytes if they are not UTF-8
        text = text[2:].replace("\\n", "\n")
    if "premature EOF" in text:
        return "the file was cut short"
    return text.partition("\n")[0].strip().rstrip(".")


def read_kineto(path: Path, unit: TimeUnit | None = None) -> Trace:
    """Return the CUDA calls and GPU events of the trace at `path`.

    unit: the unit of the file's times; None: detected, see the module. Events without a usable time are left out and
    counted.
    DataError: as for `events`.
    """
    reader = _Reader(unit)
    count = 0
    for event in events(path):
        count += 1
        if event.get("ph") == "X":
            reader.add(event)
    return Trace(Format.JSON, reader.calls.array(), reader.gpu.array(), reader.names.texts, count, reader.left_out)


class _Reader:
    """Turns complete events into rows of a `Trace`."""

    def __init__(self, unit: TimeUnit | None) -> None:
        self.calls, self.gpu, self.names, self.left_out = Gathered(CALL), Gathered(GPU_EVENT), Names(), 0
        self._ns_a_unit = {None: None, "us": 1000, "ns": 1}[unit]

    def add(self, event: dict[str, Any]) -> None:
        """Add a call or a GPU event; ignore other events."""
        category = event.get("cat")
        category = category.lower() if isinstance(category, str) else ""
        kind = _GPU.get(category)
        if kind is None and category not in _CALLS:
            return
        times = self._times(event)
        if times is None:
            self.left_out += 1
            return
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        correlation = _whole(arguments.get("correlation"), _INT64)
        name = self.names.code(str(event.get("name", "(unnamed)")))
        if kind is None:
            process, thread = self._label(event.get("pid")), self._label(event.get("tid"))
            self.calls.add((*times, correlation, process, thread, name))
            return
        # `pid` of a GPU event is the device, and `tid` the CUDA stream. The event does not name the process.
        device = _whole(arguments.get("device", event.get("pid")), _INT32)
        stream = _whole(arguments.get("stream", event.get("tid")), _INT64)
        self.gpu.add((*times, correlation, stream, NONE, device, name, kind))

    def _times(self, event: dict[str, Any]) -> tuple[int, int] | None:
        """Return start and end in ns; None if a time is missing, is not a number, or is out of bounds."""
        start, duration = _number(event.get("ts")), _number(event.get("dur", 0))
        if start is None or duration is None or duration < 0:
            return None
        # Checked before computing with the times, since a sum with 1e999999 fails.
        if not (-LATEST_NS < start < LATEST_NS and duration < LATEST_NS):
            return None
        if self._ns_a_unit is None:
            self._ns_a_unit = 1 if start > NS_BEYOND else 1000
        # Start and duration are rounded. Rounding start and end could change the duration by 1 ns.
        start_ns = round(start * self._ns_a_unit)
        end_ns = start_ns + round(duration * self._ns_a_unit)
        return (start_ns, end_ns) if start_ns > -LATEST_NS and end_ns < LATEST_NS else None

    def _label(self, value: object) -> int:
        return self.names.code(("id", str(value)), str(value))


def _number(value: object) -> int | Decimal | None:
    """Return a finite number that is given as a number or as a text; None for any other value."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        try:
            value = Decimal(value)
        except ArithmeticError:
            return None
    return value if isinstance(value, Decimal) and value.is_finite() else None


def _whole(value: object, largest: int) -> int:
    """Return a number from 0 to `largest`, given as a number or as a text, as an int; NONE for any other value."""
    number = _number(value)
    if number is None or not 0 <= number <= largest:
        return NONE
    return int(number)

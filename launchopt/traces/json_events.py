"""Read the events of a JSON trace one by one.

A file is plain or gzip, detected by its content. It holds an object with a list `traceEvents`, or only that list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ijson

from launchopt.errors import DataError, one_line
from launchopt.traces.events import Format, detect
from launchopt.traces.json_stream import CHUNK_BYTES, JsonStream
from launchopt.traces.mended_json import MendedStream

NO_TRACE = "JSON, but no trace: expected a list of events, alone or as traceEvents"

_MISTAKE = 39  # column of the mistake in the line that yajl shows
_TOKEN = re.compile(rb'[^\s,{}\[\]"]+|.')
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


def events(path: Path, mended: list[MendedStream] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of the trace at `path` in order, with one event in memory at a time.

    Numbers with a decimal point are exact `Decimal`s. DataError can be raised after any event, since the file is
    checked while it is read. A file that is not JSON is read again, from its start, with single tokens replaced.
    `mended` receives the stream that replaced them.
    """
    if detect(path) is not Format.JSON:
        raise DataError(path, None, "an nsys export, where a JSON trace was expected")
    seen = 0
    try:
        for event in _parsed(path, JsonStream(path)):
            seen += 1
            yield event
        return
    except _NotJsonError:
        stream = MendedStream(path)
    for place, event in enumerate(_parsed(path, stream), 1):
        if place > seen:
            yield event
    if mended is not None:
        mended.append(stream)


class _NotJsonError(DataError):
    """The text of a file is not JSON, perhaps only because of single tokens."""


def _parsed(path: Path, opened: JsonStream) -> Iterator[dict[str, Any]]:
    number = 0
    with opened as stream:
        try:
            prefix = "item" if stream.is_array else "traceEvents.item"
            for number, event in enumerate(ijson.items(stream, prefix, buf_size=CHUNK_BYTES), 1):
                if not isinstance(event, dict):
                    raise DataError(path, None, f"event {number} is no object: {NO_TRACE}")
                yield event
        except ijson.JSONError as error:
            if not stream.is_open_array:
                raise _not_json(stream, number, error) from None
        except (ArithmeticError, ValueError) as error:
            problem = f"a number that cannot be read {_after(number)} ({error})"
            raise _NotJsonError(path, None, stream.error(problem).problem) from None
    if not number and not stream.is_array and not _has_events(path, stream):
        raise DataError(path, None, NO_TRACE)


def _has_events(path: Path, read: JsonStream) -> bool:
    """Return whether the outermost object has a list `traceEvents`, maybe empty. `read` is the stream that was used."""
    with type(read)(path) as stream:
        return any(token[:2] == ("traceEvents", "start_array") for token in ijson.parse(stream, buf_size=CHUNK_BYTES))


def _after(number: int) -> str:
    return f"after event {number:,}" if number else "before the first event"


def _not_json(stream: JsonStream, number: int, error: Exception) -> DataError:
    """Return the error of a parser with the token at which it stopped, and the place of the token in the file."""
    raw = error.args[0] if error.args else str(error)
    text = raw if isinstance(raw, bytes) else str(raw).encode(errors="surrogateescape")
    reason, _, shown = text.partition(b"\n")
    if b"premature EOF" in reason:
        return stream.error(f"not JSON {_after(number)} (the file was cut short)")
    # The parser shows up to 60 bytes of what it read. Line ends are spaces there. The mistake is at one fixed column.
    line = shown.partition(b"\n")[0]
    token = _TOKEN.match(line[_MISTAKE:])
    at = stream.chunk.translate(_LINE_ENDS).find(line.lstrip())
    place = f" at byte {stream.bytes_read - len(stream.chunk) + at + _MISTAKE - len(line) + len(line.lstrip()):,}"
    what = f": {one_line(token[0].decode(errors='backslashreplace'), 40)}{place if at >= 0 else ''}" if token else ""
    why = reason.decode(errors="replace").strip().rstrip(".")
    return _NotJsonError(stream.path, None, stream.error(f"not JSON {_after(number)} ({why}{what})").problem)

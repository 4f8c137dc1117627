"""The Azure LLM inference trace: when real requests came, and how long they were.

In: a CSV with the header `TIMESTAMP,ContextTokens,GeneratedTokens`, one request a row, as published in
Azure/AzurePublicDataset (CC-BY-4.0; Splitwise, ISCA 2024). Timestamps are `2023-11-16 18:17:03.9799600`; the
trace of 2024 ends them with `+00:00`. Lines end in CRLF or LF, the last may end in neither.
Out: `Requests`, three columns of equal length. A file that does not hold that is a `DataError` at its line.

The file is read as a stream, 24 bytes kept a row. `datetime` stops at microseconds and the trace counts in
100 ns ticks, so the fraction is read by hand: the nanoseconds are exact.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from launchopt.errors import DataError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
LINE_BYTES_MAX = 4096  # with its line end; a real one has under 50

_BOM = b"\xef\xbb\xbf"
_INT64_MAX = 2**63 - 1
_TIMESTAMP = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(?:\+00:00)?")
_INTEGER = re.compile(r"-?[0-9]{1,19}")  # int() alone would also take "1_000", " 7" and other scripts' digits
_EPOCH = datetime(1, 1, 1)


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in order of arrival; each column an int64 array of shape [requests].

    arrival_ns: nanoseconds since the first request, so it starts at 0; never decreases.
    context_tokens: tokens of the prompt, >= 1.
    generated_tokens: tokens answered, >= 0.
    """

    arrival_ns: NDArray[np.int64]
    context_tokens: NDArray[np.int64]
    generated_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.arrival_ns)


def read_azure(path: Path, limit: int | None) -> Requests:
    """The first `limit` requests of the trace at `path` (>= 1), or all of them if None.

    Nothing after the last row asked for is read. Raises DataError, with the 1-based line where there is one,
    for a file that cannot be opened, is empty, is no such trace, or has fewer than `limit` rows.
    """
    assert limit is None or limit >= 1
    arrival_ns, context, generated = array("q"), array("q"), array("q")
    first_ns = last_ns = 0
    with closing(_lines(path)) as lines:
        _, header = next(lines, (1, None))
        if header is None:
            raise DataError(path, None, f"the file is empty; expected the header {HEADER}")
        if header != HEADER:
            raise DataError(path, 1, f"wrong header {_shown(header)}; expected {HEADER}")
        for number, text in islice(lines, limit):
            try:
                time_ns, context_tokens, generated_tokens = _row(text)
                if not arrival_ns:
                    first_ns = last_ns = time_ns
                if time_ns < last_ns:
                    raise ValueError(f"the timestamp is {last_ns - time_ns} ns earlier than the row before")
                if time_ns - first_ns > _INT64_MAX:
                    raise ValueError("the timestamp is over 292 years after the first: too far for int64 ns")
            except ValueError as error:
                raise DataError(path, number, str(error)) from None
            last_ns = time_ns
            arrival_ns.append(time_ns - first_ns)
            context.append(context_tokens)
            generated.append(generated_tokens)
    if not arrival_ns:
        raise DataError(path, None, "no requests: the file has only a header")
    if limit is not None and len(arrival_ns) < limit:
        raise DataError(path, None, f"{limit} requests asked for, but the file has {len(arrival_ns)}")
    return Requests(*(np.array(column, dtype=np.int64) for column in (arrival_ns, context, generated)))


def _lines(path: Path) -> Generator[tuple[int, str], None, None]:
    """(1-based number, text without line end) of each line; no memory beyond the line at hand."""
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(raw) > LINE_BYTES_MAX:
                    raise DataError(path, number, f"the line is longer than {LINE_BYTES_MAX} bytes")
                if number == 1 and not (raw := raw.removeprefix(_BOM)):
                    return
                try:
                    text = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(path, number, f"not UTF-8 (byte {error.start + 1} of the line)") from None
                yield number, text.removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise DataError(path, None, f"cannot be read: {error.strerror or error}") from error


def _row(text: str) -> tuple[int, int, int]:
    """(nanoseconds since year 1, context tokens, generated tokens); ValueError says what is wrong."""
    fields = text.split(",")
    if len(fields) != 3:
        raise ValueError(f"expected 3 fields, got {len(fields)}: {_shown(text)}")
    return (
        _time_ns(fields[0]),
        _count("ContextTokens", fields[1], least=1),
        _count("GeneratedTokens", fields[2], least=0),
    )


def _time_ns(text: str) -> int:
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        since = datetime.fromisoformat(match[1]) - _EPOCH  # raises for a 30th of February
    except ValueError:
        raise ValueError(f"bad timestamp {_shown(text)}; expected like 2023-11-16 18:17:03.9799600") from None
    fraction_ns = int((match[2] or "").ljust(9, "0"))
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + fraction_ns


def _count(name: str, text: str, least: int) -> int:
    if _INTEGER.fullmatch(text) is None or (value := int(text)) > _INT64_MAX:
        raise ValueError(f"{name} is {_shown(text)}, not a 64-bit integer")
    if value < least:
        raise ValueError(f"{name} is {value}, must be at least {least}")
    return value


def _shown(text: str) -> str:
    """The text quoted, with control characters escaped, cut to what fits into a message."""
    return repr(text if len(text) <= 60 else text[:57] + "...")

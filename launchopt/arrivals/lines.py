"""Functions that the readers of requests share. They turn lines of bounded length into checked columns.

A file is UTF-8 text (a byte order mark is skipped). Lines end in CRLF or LF; the last may have no end. Each reader has
a function that turns a line into a `Row`, or raises ValueError. `gather` makes `Requests` of the rows, or raises a
DataError with the line. Files are streamed: a request takes 32 bytes.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from launchopt.arrivals.requests import NO_REQUEST, Requests
from launchopt.errors import DataError
from launchopt.files import open_regular

BOM = b"\xef\xbb\xbf"
INT64_MAX = 2**63 - 1
NS_PER_MS = 1_000_000

_INTEGER = re.compile(r"-?[0-9]{1,19}")  # int() alone would also take "1_000", " 7" and other scripts' digits

Lines = Generator[tuple[int, str], None, None]


class Row(NamedTuple):
    """One request: its time (ns, from any zero), its tokens, and the index of the request that it waits for, or -1."""

    time_ns: int
    context_tokens: int
    generated_tokens: int
    after: int = NO_REQUEST


def text_lines(path: Path, bytes_max: int) -> Lines:
    """Yield the 1-based number and the text, without its line end, of each line. Only one line is in memory.

    Raises DataError if the file cannot be read, and at a line that is not UTF-8 or longer than `bytes_max` with its
    line end.
    """
    try:
        with open_regular(path) as file:
            number = 0
            while raw := file.readline(bytes_max + 1):
                number += 1
                if len(raw) > bytes_max:
                    raise DataError(path, number, f"the line is longer than {bytes_max} bytes")
                if number == 1 and not (raw := raw.removeprefix(BOM)):
                    return
                try:
                    text = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(path, number, f"not UTF-8 (byte {error.start + 1} of the line)") from None
                yield number, text.removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the DataError for a file that the system does not open or read."""
    return DataError(path, None, f"cannot be read: {error.strerror or error}")


def header_of(path: Path, lines: Iterator[tuple[int, str]], *allowed: str) -> str:
    """Return the first line, which must be one of `allowed`; DataError for another one, or for none."""
    expected = " or ".join(allowed)
    _, header = next(lines, (1, None))
    if header is None:
        raise DataError(path, None, f"the file is empty; expected the header {expected}")
    if header not in allowed:
        raise DataError(path, 1, f"wrong header {shown(header)}; expected {expected}")
    return header


def gather(
    path: Path,
    lines: Iterator[tuple[int, str]],
    limit: int | None,
    zero_ns: int | None,
    parse: Callable[[str], Row],
    nothing: str,
) -> Requests:
    """Return the first `limit` lines (>= 1; None: all) as requests. Reads no line after the last of them.

    arrival_ns counts from `zero_ns`; None: from the first request. `nothing` is the error for a file without requests.

    Raises DataError at a line for which `parse` raises ValueError, whose time is before that of the previous line or
    more than int64 ns after zero, or without tokens; also for fewer lines than `limit`. Does not check `after`.
    """
    assert limit is None or limit >= 1
    arrival_ns, context, generated, after = columns = [array("q") for _ in Row._fields]
    last_ns: int | None = None
    for number, text in islice(lines, limit):
        try:
            row = parse(text)
            zero_ns = row.time_ns if zero_ns is None else zero_ns
            if last_ns is not None and row.time_ns < last_ns:
                raise ValueError(f"the timestamp is {last_ns - row.time_ns} ns earlier than the row before")
            if row.time_ns - zero_ns > INT64_MAX:
                raise ValueError("the timestamp is over 292 years after the first: too far for int64 ns")
            if row.context_tokens == row.generated_tokens == 0:
                raise ValueError("a request without tokens, neither of a prompt nor of an answer")
        except ValueError as error:
            raise DataError(path, number, str(error)) from None
        last_ns = row.time_ns
        arrival_ns.append(row.time_ns - zero_ns)
        context.append(row.context_tokens)
        generated.append(row.generated_tokens)
        after.append(row.after)
    if not arrival_ns:
        raise DataError(path, None, nothing)
    if limit is not None and len(arrival_ns) < limit:
        raise DataError(path, None, f"{limit} requests asked for, but the file has {len(arrival_ns)}")
    return Requests(*(np.array(column, dtype=np.int64) for column in columns))


def split(text: str, fields: int) -> list[str]:
    """Return the comma-separated fields of a line; ValueError if their number is not `fields`."""
    parts = text.split(",")
    if len(parts) != fields:
        raise ValueError(f"expected {fields} fields, got {len(parts)}: {shown(text)}")
    return parts


def count(name: str, text: str, least: int) -> int:
    """Return a decimal integer from `least` to the maximum of int64; else ValueError with the field's name."""
    if _INTEGER.fullmatch(text) is None or (value := int(text)) > INT64_MAX:
        raise ValueError(f"{name} is {shown(text)}, not a 64-bit integer")
    if value < least:
        raise ValueError(f"{name} is {value}, must be at least {least}")
    return value


def cut(text: str) -> str:
    """Return the text, cut to 60 characters for a message."""
    return text if len(text) <= 60 else text[:57] + "..."


def shown(text: str) -> str:
    """Return the text for a message: quoted, cut to 60 characters, control characters escaped."""
    return repr(cut(text))

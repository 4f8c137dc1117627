"""The Azure LLM inference trace: when real requests came, and how long they were.

In: a CSV with the header `TIMESTAMP,ContextTokens,GeneratedTokens`, one request a row, as published in
Azure/AzurePublicDataset (CC-BY-4.0; Splitwise, ISCA 2024). Timestamps are `2023-11-16 18:17:03.9799600`; the
trace of 2024 ends them with `+00:00`. Lines end in CRLF or LF, the last may end in neither.
Out: `Requests`, none waiting for another, times since the first. A file that does not hold that is a `DataError`
at its line.

`datetime` stops at microseconds and the trace counts in 100 ns ticks, so the fraction is read by hand: the
nanoseconds are exact.
"""

from __future__ import annotations

import re
from contextlib import closing
from datetime import datetime
from pathlib import Path

from launchopt.arrivals.lines import Row, count, gather, header_of, shown, split, text_lines
from launchopt.arrivals.requests import Requests

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
LINE_BYTES_MAX = 4096  # with its line end; a real one has under 50

_TIMESTAMP = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(?:\+00:00)?")
_EPOCH = datetime(1, 1, 1)


def read_azure(path: Path, limit: int | None) -> Requests:
    """The first `limit` requests of the trace at `path` (>= 1), or all of them if None; the first arrives at 0.

    Nothing after the last row asked for is read. Raises DataError, with the 1-based line where there is one,
    for a file that cannot be opened, is empty, is no such trace, or has fewer than `limit` rows.
    """
    with closing(text_lines(path, LINE_BYTES_MAX)) as lines:
        header_of(path, lines, HEADER)
        return gather(path, lines, limit, None, _row, "no requests: the file has only a header")


def _row(text: str) -> Row:
    """The request, its time since year 1; ValueError says what is wrong."""
    timestamp, context, generated = split(text, 3)
    return Row(_time_ns(timestamp), count("ContextTokens", context, 1), count("GeneratedTokens", generated, 0))


def _time_ns(text: str) -> int:
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        since = datetime.fromisoformat(match[1]) - _EPOCH  # raises for a 30th of February
    except ValueError:
        raise ValueError(f"bad timestamp {shown(text)}; expected like 2023-11-16 18:17:03.9799600") from None
    fraction_ns = int((match[2] or "").ljust(9, "0"))
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + fraction_ns

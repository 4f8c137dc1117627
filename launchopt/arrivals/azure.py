"""Reader of the Azure LLM inference trace: arrivals and tokens of real requests.

The trace is a CSV with the header `TIMESTAMP,ContextTokens,GeneratedTokens` and a request in each row, as published in
Azure/AzurePublicDataset (CC-BY-4.0; Splitwise, ISCA 2024). Timestamps look like `2023-11-16 18:17:03.9799600`; the
trace of 2024 adds `+00:00`. Lines end in CRLF or LF; the last may have no end.

No request waits for another. Times count from the first request. A wrong file raises a `DataError` with the line.
`datetime` has only microseconds, and the trace has ticks of 100 ns. So this module parses the fraction itself, exactly.
"""

from __future__ import annotations

import re
from contextlib import closing
from datetime import datetime
from pathlib import Path

from launchopt.arrivals.lines import Row, count, gather, header_of, shown, split, text_lines
from launchopt.arrivals.requests import Requests

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
LINE_BYTES_MAX = 4096  # with its line end; real lines have under 50

_TIMESTAMP = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(?:\+00:00)?")
_EPOCH = datetime(1, 1, 1)


def read_azure(path: Path, limit: int | None) -> Requests:
    """Return the first `limit` requests (>= 1) of the trace at `path`; None: all. The first arrives at 0.

    Reads no row after the last of them. Raises DataError, with the 1-based line if there is one, for a file that cannot
    be opened, is empty, is no such trace, or has fewer than `limit` rows.
    """
    with closing(text_lines(path, LINE_BYTES_MAX)) as lines:
        header_of(path, lines, HEADER)
        return gather(path, lines, limit, None, _row, "no requests: the file has only a header")


def _row(text: str) -> Row:
    """Return the request of a row, with its time since year 1; ValueError if the row is wrong."""
    timestamp, context, generated = split(text, 3)
    return Row(_time_ns(timestamp), count("ContextTokens", context, 1), count("GeneratedTokens", generated, 0))


def _time_ns(text: str) -> int:
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        since = datetime.fromisoformat(match[1]) - _EPOCH  # raises for a 30th of February
    except ValueError:
        raise ValueError(f"bad timestamp {shown(text)}; expected one like 2023-11-16 18:17:03.9799600") from None
    fraction_ns = int((match[2] or "").ljust(9, "0"))
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + fraction_ns

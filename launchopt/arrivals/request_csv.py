"""Reader of a user's own requests, in a CSV that any script can write.

The header is `arrival_ms,prompt_tokens,output_tokens`, optionally with a fourth column `,after`. A row is a request:

    arrival_ms      milliseconds since the start, a decimal number >= 0 with at most 6 decimals (so ns are exact),
                    not before the row above; the first need not be 0
    prompt_tokens   an integer >= 0
    output_tokens   an integer >= 0, not 0 together with prompt_tokens
    after           row number, from 0, of the request that must finish before this one starts (an earlier turn of a
                    conversation, or call of an agent); empty for none

There are no quotes and no spaces. Lines end in CRLF or LF; the last may have no end. `check_graph` checks `after`. A
wrong file raises a `DataError` with the line.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

from launchopt.arrivals.lines import INT64_MAX, NS_PER_MS, Row, count, gather, header_of, shown, split, text_lines
from launchopt.arrivals.requests import NO_REQUEST, GraphError, Requests, check_graph
from launchopt.errors import DataError

HEADER = "arrival_ms,prompt_tokens,output_tokens"
HEADER_AFTER = f"{HEADER},after"
LINE_BYTES_MAX = 4096  # with its line end; four numbers need under 100

_MILLISECONDS = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,6}))?")
_FIRST_ROW_LINE = 2


def read_request_csv(path: Path, limit: int | None) -> Requests:
    """Return the first `limit` requests (>= 1) of the file at `path`; None: all. Arrivals count from 0.

    Reads no row after the last of them, so no row may wait for a later one. Raises DataError, with the 1-based line if
    there is one, for a file that cannot be opened, is empty, does not follow the schema, or has fewer than `limit`
    rows; also for an `after` that no order can satisfy.
    """
    with closing(text_lines(path, LINE_BYTES_MAX)) as lines:
        parse = _row if header_of(path, lines, HEADER, HEADER_AFTER) == HEADER else _row_after
        requests = gather(path, lines, limit, 0, parse, "no requests: the file has only a header")
    try:
        check_graph(requests.after)
    except GraphError as error:
        raise DataError(path, _FIRST_ROW_LINE + error.row, str(error)) from None
    return requests


def _row(text: str) -> Row:
    """Return the request of a row without `after`; ValueError if the row is wrong."""
    return _request(*split(text, 3))


def _row_after(text: str) -> Row:
    """Return the request of a row with `after`; ValueError if the row is wrong."""
    return _request(*split(text, 4))


def _request(arrival: str, prompt: str, output: str, after: str = "") -> Row:
    return Row(
        _time_ns(arrival),
        count("prompt_tokens", prompt, 0),
        count("output_tokens", output, 0),
        count("after", after, 0) if after else NO_REQUEST,
    )


def _time_ns(text: str) -> int:
    match = _MILLISECONDS.fullmatch(text)
    if match is None:
        raise ValueError(f"arrival_ms is {shown(text)}, not a number of milliseconds like 12 or 12.345678")
    time_ns = int(match[1]) * NS_PER_MS + int((match[2] or "").ljust(6, "0"))
    if time_ns > INT64_MAX:
        raise ValueError(f"arrival_ms is {text}: too far for int64 ns")
    return time_ns

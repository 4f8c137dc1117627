"""Requests of one's own, in a CSV that any script can write.

In: the header `arrival_ms,prompt_tokens,output_tokens`, or that with a fourth column `,after`; one request a row:

    arrival_ms      milliseconds since the start, a decimal number >= 0 with at most 6 decimals (so ns are exact),
                    not before the row above; the first need not be 0
    prompt_tokens   an integer >= 0
    output_tokens   an integer >= 0, not 0 together with prompt_tokens
    after           the request that must have finished before this one starts (a conversation's turn before, an
                    agent's call before), as its row number counted from 0; empty for none

No quotes and no spaces; lines end in CRLF or LF, the last may end in neither.
Out: `Requests`, times as given, which `check_graph` has accepted. A file that does not hold that is a `DataError`
at its line.
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
LINE_BYTES_MAX = 4096  # with its line end; four numbers have under 100

_MILLISECONDS = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,6}))?")
_FIRST_ROW_LINE = 2


def read_request_csv(path: Path, limit: int | None) -> Requests:
    """The first `limit` requests of the file at `path` (>= 1), or all of them if None; arrivals count from 0.

    Nothing after the last row asked for is read, so a row among them that waits for a later one is at fault.
    Raises DataError, with the 1-based line where there is one, for a file that cannot be opened, is empty, does
    not follow the schema, has fewer than `limit` rows, or whose `after` no order of work could satisfy.
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
    """The request of a row without `after`; ValueError says what is wrong."""
    return _request(*split(text, 3))


def _row_after(text: str) -> Row:
    """The request of a row with `after`; ValueError says what is wrong."""
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

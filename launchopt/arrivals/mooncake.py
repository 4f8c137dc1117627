"""Reader of the Mooncake traces: requests of a chat, an agent and a synthetic workload, as JSON lines.

Each line is an object, `{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}`, as
published in kvcache-ai/Mooncake (FAST 2025). `timestamp` is in milliseconds, rounded to nanoseconds. Other keys are
ignored, `hash_ids` (blocks of the prompt that an earlier request had) among them.

No request waits for another, since the traces do not record that. Times count from the first request. A wrong file
raises a `DataError` with the line.
"""

from __future__ import annotations

import json
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import NoReturn

from launchopt.arrivals.lines import INT64_MAX, NS_PER_MS, Row, cut, gather, text_lines
from launchopt.arrivals.requests import Requests

LINE_BYTES_MAX = 1 << 20  # a prompt of a million tokens has 2000 hash_ids

_DIGITS_MAX = 20  # a longer integer is beyond int64


def read_mooncake(path: Path, limit: int | None) -> Requests:
    """Return the first `limit` requests (>= 1) of the trace at `path`; None: all. The first arrives at 0.

    Reads no line after the last of them. Raises DataError, with the 1-based line if there is one, for a file that
    cannot be opened, is empty, is no such trace, or has fewer than `limit` lines.
    """
    with closing(text_lines(path, LINE_BYTES_MAX)) as lines:
        return gather(path, lines, limit, None, _row, "no requests: the file is empty")


def _row(text: str) -> Row:
    """Return the request of a line; ValueError if the line is wrong."""
    try:
        request = json.loads(text, parse_int=_integer, parse_float=_decimal, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("not read: the JSON is nested too deeply") from None
    if not isinstance(request, dict):
        raise ValueError(f"expected a JSON object, got {_shown(request)}")
    return Row(_time_ns(request), _tokens(request, "input_length"), _tokens(request, "output_length"))


def _time_ns(request: dict[str, object]) -> int:
    value = _member(request, "timestamp")
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError(f"timestamp is {_shown(value)}, not a number of milliseconds")
    if not 0 <= value <= INT64_MAX // NS_PER_MS:
        raise ValueError(f"timestamp is {_shown(value)}, must be from 0 to {INT64_MAX // NS_PER_MS} ms")
    return round(value * NS_PER_MS)


def _tokens(request: dict[str, object], name: str) -> int:
    value = _member(request, name)
    if isinstance(value, bool) or not isinstance(value, int) or not -INT64_MAX <= value <= INT64_MAX:
        raise ValueError(f"{name} is {_shown(value)}, not a 64-bit integer")
    if value < 0:
        raise ValueError(f"{name} is {value}, must be at least 0")
    return value


def _member(request: dict[str, object], name: str) -> object:
    if name not in request:
        raise ValueError(f"{name} is missing")
    return request[name]


def _integer(text: str) -> int | Decimal:
    """Return an int, or a Decimal for a long text, which no field accepts: int() is quadratic."""
    return int(text) if len(text) <= _DIGITS_MAX else _decimal(text)


def _decimal(text: str) -> Decimal:
    """Return an exact number: a float would round the nanoseconds."""
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ValueError(f"a number too large or too small: {cut(text)}") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"  # its text may be nested too deeply
    return cut(str(value) if isinstance(value, Decimal) else json.dumps(value))

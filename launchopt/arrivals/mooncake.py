"""The Mooncake traces: requests of a chat, an agent and a synthetic workload, as JSON lines.

In: one object a line, `{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}`, as
published in kvcache-ai/Mooncake (FAST 2025). `timestamp` is milliseconds, whole or not, to the nearest nanosecond;
`hash_ids`, which blocks of the prompt were seen before, and any other key are ignored.
Out: `Requests`, none waiting for another (the traces do not tell), times since the first. A file that does not
hold that is a `DataError` at its line.
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
    """The first `limit` requests of the trace at `path` (>= 1), or all of them if None; the first arrives at 0.

    Nothing after the last line asked for is read. Raises DataError, with the 1-based line where there is one,
    for a file that cannot be opened, is empty, is no such trace, or has fewer than `limit` lines.
    """
    with closing(text_lines(path, LINE_BYTES_MAX)) as lines:
        return gather(path, lines, limit, None, _row, "no requests: the file is empty")


def _row(text: str) -> Row:
    """The request on a line; ValueError says what is wrong."""
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
    """Long ones as Decimal, which no field takes: int() is quadratic, and refuses more than 4300 digits."""
    return int(text) if len(text) <= _DIGITS_MAX else _decimal(text)


def _decimal(text: str) -> Decimal:
    """Exact, where a float would round the nanoseconds."""
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ValueError(f"a number out of all bounds: {cut(text)}") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"  # their text may be nested too deeply
    return cut(str(value) if isinstance(value, Decimal) else json.dumps(value))

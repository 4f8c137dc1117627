"""Reader of the Mooncake traces: requests of a chat, an agent and a synthetic workload, as JSON lines.

Each line is an object, `{"timestamp": 27482, "input_length": 955, "output_length": 52, "hash_ids": [46, 47]}`, as
published in kvcache-ai/Mooncake (FAST 2025). `timestamp` is in milliseconds, rounded to nanoseconds. `hash_ids` has a
number for each block of 512 tokens of the prompt, the last one not full. Two blocks have the same number if all tokens
up to their ends are the same. Arrivals do not read it. Other keys are ignored.

No request waits for another, since the traces do not record that. Times count from the first request. A wrong file
raises a `DataError` with the line.
"""

from __future__ import annotations

import json
from contextlib import closing
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.lines import INT64_MAX, NS_PER_MS, Row, cut, gather, text_lines
from launchopt.arrivals.requests import Requests
from launchopt.errors import DataError
from launchopt.files import without_repeats

LINE_BYTES_MAX = 1 << 20  # a prompt of a million tokens has 2000 hash_ids

HASH_BLOCK = 512  # tokens of a block that has a number in hash_ids
MOST_ANSWER = 1 << 20  # tokens of an answer in `read_prompts`: they take blocks, and so memory
MOST_ID = (1 << 31) // HASH_BLOCK - 1  # of hash_ids: a token of each block has a number of 32 bits

_DIGITS_MAX = 20  # a longer integer is beyond int64


class Prompt(NamedTuple):
    """A prompt by the numbers of its blocks. prompt, answer: tokens."""

    prompt: int
    answer: int
    hash_ids: NDArray[np.int64]

    def tokens(self) -> NDArray[np.int32]:
        """Return token ids that are the same as far as the numbers of blocks are. The trace does not have its own."""
        ids = (self.hash_ids[:, None] * HASH_BLOCK + np.arange(HASH_BLOCK)).ravel()
        return ids[: self.prompt].astype(np.int32)

    def common(self, other: Prompt) -> int:
        """Return the number of tokens with which both prompts begin, by the numbers of their blocks."""
        blocks = min(len(self.hash_ids), len(other.hash_ids))
        differ = np.flatnonzero(self.hash_ids[:blocks] != other.hash_ids[:blocks])
        same = int(differ[0]) if len(differ) else blocks
        return min(same * HASH_BLOCK, self.prompt, other.prompt)


def read_mooncake(path: Path, limit: int | None) -> Requests:
    """Return the first `limit` requests (>= 1) of the trace at `path`; None: all. The first arrives at 0.

    Reads no line after the last of them. Raises DataError, with the 1-based line if there is one, for a file that
    cannot be opened, is empty, is no such trace, or has fewer than `limit` lines.
    """
    with closing(text_lines(path, LINE_BYTES_MAX)) as lines:
        return gather(path, lines, limit, None, _row, "no requests: the file is empty")


def read_prompts(path: Path, limit: int | None = None) -> list[Prompt]:
    """Return the prompts of the first `limit` requests; None: of all.

    Raises DataError, with the line if there is one, as `read_mooncake` does, and for hash_ids that contradict the
    length of the prompt or those of an earlier line: an id stands for the same tokens in all lines.
    """
    prompts: list[Prompt] = []
    known: dict[int, _Block] = {}
    with closing(text_lines(path, LINE_BYTES_MAX)) as lines:
        for number, text in islice(lines, limit):
            try:
                prompts.append(_prompt(text, known))
            except ValueError as error:
                raise DataError(path, number, str(error)) from None
    if not prompts:
        raise DataError(path, None, "no requests: the file is empty")
    if limit is not None and len(prompts) < limit:
        raise DataError(path, None, f"has {len(prompts)} requests, not {limit}")
    return prompts


class _Block(NamedTuple):
    """What an id stands for. before: the id in front of it; -1: none. tokens: of the block, fewer in a last one."""

    before: int
    tokens: int


def _prompt(text: str, known: dict[int, _Block]) -> Prompt:
    """Return the prompt of a line, and add its ids to those known; ValueError if the line is wrong."""
    request = _object(text)
    prompt, answer, ids = (
        _tokens(request, "input_length"),
        _tokens(request, "output_length"),
        _member(request, "hash_ids"),
    )
    if answer > MOST_ANSWER:
        raise ValueError(f"output_length is {answer}, must be at most {MOST_ANSWER}")
    if not isinstance(ids, list) or not all(type(each) is int and 0 <= each <= MOST_ID for each in ids):
        raise ValueError(f"hash_ids is not a list of integers from 0 to {MOST_ID}")
    if len(ids) != (needed := -(-prompt // HASH_BLOCK)):
        raise ValueError(f"has {len(ids)} hash_ids; input_length={prompt} needs {needed}, of {HASH_BLOCK} tokens each")
    for number, (before, own) in enumerate(zip([-1, *ids], ids, strict=False)):
        block = _Block(before, min(HASH_BLOCK, prompt - number * HASH_BLOCK))
        if (first := known.setdefault(own, block)).before != before:
            raise ValueError(f"hash_ids: {own} follows {_place(before)}, and in an earlier line {_place(first.before)}")
        if first.tokens != block.tokens:
            raise ValueError(f"hash_ids: {own} has {block.tokens} tokens here, and {first.tokens} in an earlier line")
    return Prompt(prompt, answer, np.array(ids, np.int64))


def _place(one: int) -> str:
    return "nothing" if one < 0 else str(one)


def _row(text: str) -> Row:
    """Return the request of a line; ValueError if the line is wrong."""
    request = _object(text)
    return Row(_time_ns(request), _tokens(request, "input_length"), _tokens(request, "output_length"))


def _object(text: str) -> dict[str, object]:
    """Return the object of a line; ValueError if it is none."""
    try:
        request = json.loads(
            text,
            parse_int=_integer,
            parse_float=_decimal,
            parse_constant=_refuse,
            object_pairs_hook=without_repeats,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("not read: the JSON is nested too deeply") from None
    if not isinstance(request, dict):
        raise ValueError(f"expected a JSON object, got {_shown(request)}")
    return request


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

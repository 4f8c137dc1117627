"""The Mooncake trace reader: exact round trips, and a message for each bad line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.results.request_files import columns, written

from launchopt.arrivals.mooncake import HASH_BLOCK, LINE_BYTES_MAX, Prompt, read_mooncake, read_prompts
from launchopt.errors import DataError

GOOD = '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}'


def line(timestamp: str, input_length: str = "5", output_length: str = "6") -> str:
    return f'{{"timestamp": {timestamp}, "input_length": {input_length}, "output_length": {output_length}}}'


def test_times_count_from_the_first(tmp_path: Path) -> None:
    path = written(tmp_path, f"{GOOD}\n{line('27482.5', '0', '1')}\r\n{line('30000', '1', '0')}")
    assert columns(read_mooncake(path, None)) == [(0, 6955, 52), (500_000, 0, 1), (2_518_000_000, 1, 0)]


def test_decimals_are_exact_and_rounded_to_ns(tmp_path: Path) -> None:
    stamps = ["0", "-0.0", "1e-999999", "0.0000016", "8.000001", "9000000000000.000001", "9223372036854"]
    path = written(tmp_path, "\n".join(line(stamp) for stamp in stamps))
    expected = [0, 0, 0, 2, 8_000_001, 9_000_000_000_000_000_001, 9_223_372_036_854_000_000]
    assert read_mooncake(path, None).arrival_ns.tolist() == expected


def test_other_keys_are_ignored(tmp_path: Path) -> None:
    odd = '"hash_ids": null, "model": "\\ud800", "x": {"timestamp": -1}, "long": ' + "9" * 5_000
    path = written(tmp_path, "{" + odd + ", " + line("3")[1:])
    assert columns(read_mooncake(path, None)) == [(0, 5, 6)]


def test_nothing_after_the_limit_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, f"{GOOD}\nnonsense")
    assert columns(read_mooncake(path, 1)) == [(0, 6955, 52)]
    with pytest.raises(DataError):
        read_mooncake(path, 2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON: Expecting value at character 1"),
        ("{", "not JSON: Expecting property name"),
        (f"{GOOD} x", "not JSON: Extra data"),
        (f"{GOOD}{GOOD}", "not JSON: Extra data"),
        ("[" * 100_000, "the JSON is nested too deeply"),
        ('{"a":' * 100_000, "the JSON is nested too deeply"),
        ("[1, 2]", "expected a JSON object, got an array"),
        ("null", "expected a JSON object, got null"),
        ('"x"', 'expected a JSON object, got "x"'),
        ("{}", "timestamp is missing"),
        ('{"timestamp": 1}', "input_length is missing"),
        ('{"timestamp": 1, "input_length": 2}', "output_length is missing"),
        (line("true"), "timestamp is true, not a number of milliseconds"),
        (line("null"), "timestamp is null, not a number of milliseconds"),
        (line('"7"'), 'timestamp is "7", not a number of milliseconds'),
        (line("[7]"), "timestamp is an array, not a number"),
        (line("[" * 500 + "]" * 500), "timestamp is an array, not a number"),
        (line("NaN"), "NaN is no number in JSON"),
        (line("-Infinity"), "-Infinity is no number in JSON"),
        (f'{{"hash_ids": [NaN], {line("1")[1:]}', "NaN is no number in JSON"),
        (line("-1"), "timestamp is -1, must be from 0 to 9223372036854 ms"),
        (line("-0.001"), "timestamp is -0.001, must be from 0"),
        (line("9223372036855"), "must be from 0 to 9223372036854 ms"),
        (line("1e400"), "must be from 0 to 9223372036854 ms"),
        (line("1e99999999999999999999"), "a number too large or too small: 1e9999"),
        (line("9" * 100_000), "timestamp is 9999"),
        (line("1", "4.0"), "input_length is 4.0, not a 64-bit integer"),
        (line("1", "1e2"), "input_length is 1E+2, not a 64-bit integer"),
        (line("1", "false"), "input_length is false, not a 64-bit integer"),
        (line("1", "{}"), "input_length is an object, not a 64-bit integer"),
        (line("1", str(2**63)), "input_length is 9223372036854775808, not a 64-bit integer"),
        (line("1", "9" * 5_000), "..., not a 64-bit integer"),
        (line("1", "-3"), "input_length is -3, must be at least 0"),
        (line("1", "5", "-1"), "output_length is -1, must be at least 0"),
        (line("1", "5", '"6"'), 'output_length is "6", not a 64-bit integer'),
        (line("30000", "0", "0"), "a request without tokens"),
        (" " * LINE_BYTES_MAX, "the line is longer than 1048576 bytes"),
        (line("27481.999999"), "the timestamp is 1 ns earlier than the row before"),
    ],
)
def test_malformed_line(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, f"{GOOD}\n{text}\n{GOOD}\n")
    with pytest.raises(DataError) as caught:
        read_mooncake(path, None)
    assert problem in caught.value.problem
    assert str(caught.value).startswith(f"{path}:2: ")
    assert len(caught.value.problem) < 200
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("content", "number", "problem"),
    [
        (b"", None, "no requests: the file is empty"),
        (b"\xef\xbb\xbf", None, "no requests: the file is empty"),
        (b"\n", 1, "not JSON"),
        (GOOD.encode("utf-16"), 1, "not UTF-8"),
        (b'{"timestamp": "\xff"}', 1, "not UTF-8 (byte 16 of the line)"),
    ],
)
def test_malformed_file(tmp_path: Path, content: bytes, number: int | None, problem: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_mooncake(path, None)
    assert caught.value.line == number
    assert problem in caught.value.problem


def test_longest_line_is_read_whole(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.ljust(LINE_BYTES_MAX - 1) + "\n")
    assert columns(read_mooncake(path, None)) == [(0, 6955, 52)]


TOKENS = st.integers(0, 2**63 - 1)
ROWS = st.lists(
    st.tuples(st.integers(0, 10**15), TOKENS, TOKENS).filter(lambda row: row[1] + row[2] > 0), min_size=1, max_size=20
)


@settings(deadline=None)
@given(ROWS, st.booleans(), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\ufeff"]))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]], whole: bool, line_end: str, bom: str
) -> None:
    """`rows` are (ns or ms since the row before, prompt tokens, output tokens)."""
    times = np.cumsum([gap // (10**6 if whole else 1) for gap, _, _ in rows]).tolist()
    stamps = [str(time) if whole else f"{time // 10**6}.{time % 10**6:06}" for time in times]
    lines = [line(stamp, str(prompt), str(output)) for stamp, (_, prompt, output) in zip(stamps, rows, strict=True)]
    read = read_mooncake(written(tmp_path_factory.getbasetemp(), bom + line_end.join(lines)), None)
    unit = 10**6 if whole else 1
    assert columns(read) == [
        (unit * (time - times[0]), prompt, output) for time, (_, prompt, output) in zip(times, rows, strict=True)
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"timestamp": 0, "input_length": 513, "output_length": 1}', "hash_ids is missing"),
        (
            '{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [0]}',
            "has 1 hash_ids; input_length=513",
        ),
        ('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [true]}', "not a list of integers"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [4194304]}', "not a list of integers"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 1048577, "hash_ids": [0]}', "must be at most 1048576"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": 7}', "not a list of integers"),
        (
            '{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [8, 1]}',
            "1 follows 8, and in an earlier line 0",
        ),
        ('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}', "1 follows nothing, and in an"),
        (
            '{"timestamp": 0, "input_length": 700, "output_length": 1, "hash_ids": [0, 1]}',
            "hash_ids: 1 has 188 tokens here, and 88 in an earlier line",
        ),
        (
            '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [0]}',
            "hash_ids: 0 has 9 tokens here, and 512 in an earlier line",
        ),
        ("[]", "expected a JSON object"),
    ],
)
def test_hash_ids_that_contradict_lengths_or_earlier_lines_are_one_line(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}\n' + line)
    with pytest.raises(DataError, match=re.escape(said)) as caught:
        read_prompts(path)
    assert caught.value.line == 2


def test_prompts_have_tokens_that_are_the_same_as_far_as_their_blocks_are(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [(600, [0, 1]), (1024, [0, 2]), (0, [])]
    path.write_text(
        "".join(
            json.dumps({"timestamp": 0, "input_length": length, "output_length": 4, "hash_ids": ids}) + "\n"
            for length, ids in lines
        )
    )
    one, other, empty = (each.tokens() for each in read_prompts(path))
    assert [len(each) for each in (one, other, empty)] == [600, 1024, 0]
    assert (one[:512] == other[:512]).all()
    assert not {*one[512:].tolist()} & {*other[512:].tolist()}
    assert len(read_prompts(path, 2)) == 2
    (tmp_path / "empty").write_text("")
    with pytest.raises(DataError, match="the file is empty"):
        read_prompts(tmp_path / "empty")


@given(*[st.integers(1, 3 * HASH_BLOCK)] * 2, *[st.lists(st.integers(0, 1), min_size=3, max_size=3)] * 2)
def test_prompts_share_as_many_tokens_as_their_tokens_say(
    length: int, other_length: int, ids: list[int], other_ids: list[int]
) -> None:
    one, other = (
        Prompt(tokens, 1, np.array(numbers[: -(-tokens // HASH_BLOCK)], np.int64))
        for tokens, numbers in ((length, ids), (other_length, other_ids))
    )
    least = min(length, other_length)
    differ = np.flatnonzero(one.tokens()[:least] != other.tokens()[:least])
    assert one.common(other) == other.common(one) == (int(differ[0]) if len(differ) else least)

"""The reader of this project's own CSV: exact round trips, graphs, and a message for each bad row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.results.request_files import columns, written

from launchopt.arrivals.request_csv import HEADER, HEADER_AFTER, LINE_BYTES_MAX, read_request_csv
from launchopt.errors import DataError

GOOD = "7.5,100,10"


def test_times_are_kept_as_given(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}\n007.5,100,10\n7.500001,0,1\n9,1,0")
    assert columns(read_request_csv(path, None), graph=True) == [
        (7_500_000, 100, 10, -1),
        (7_500_001, 0, 1, -1),
        (9_000_000, 1, 0, -1),
    ]


def test_after(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER_AFTER}\n0,1,1,\n0,1,1,0\n1,1,1,4\n1,1,1,1\n2,1,1,\n")
    assert read_request_csv(path, None).after.tolist() == [-1, 0, 4, 1, -1]


def test_nothing_after_the_limit_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}\n{GOOD}\nnonsense")
    assert columns(read_request_csv(path, 1), graph=True) == [(7_500_000, 100, 10, -1)]
    with pytest.raises(DataError):
        read_request_csv(path, 2)


def test_waiting_for_a_row_beyond_the_limit(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER_AFTER}\n0,1,1,\n0,1,1,2\n0,1,1,\n")
    assert len(read_request_csv(path, None)) == 3
    assert len(read_request_csv(path, 1)) == 1
    with pytest.raises(DataError) as caught:
        read_request_csv(path, 2)
    assert (caught.value.line, caught.value.problem) == (
        3,
        "request 1 waits for request 2, which is missing (requests: 2)",
    )


@pytest.mark.parametrize(
    ("rows", "line", "problem"),
    [
        ("", 2, "expected 3 fields, got 1: ''"),
        ("1,2", 2, "expected 3 fields, got 2: '1,2'"),
        (f"{GOOD}\n{GOOD},", 3, "expected 3 fields, got 4"),
        (f"{GOOD}\n\n{GOOD}", 3, "expected 3 fields, got 1"),
        (",5,5", 2, "arrival_ms is '', not a number of milliseconds like 12 or 12.345678"),
        ("-1,5,5", 2, "arrival_ms is '-1', not a number"),
        ("+1,5,5", 2, "arrival_ms is '+1', not a number"),
        ("1.,5,5", 2, "arrival_ms is '1.', not a number"),
        (".5,5,5", 2, "arrival_ms is '.5', not a number"),
        ("1e3,5,5", 2, "arrival_ms is '1e3', not a number"),
        ("nan,5,5", 2, "arrival_ms is 'nan', not a number"),
        (" 1,5,5", 2, "arrival_ms is ' 1', not a number"),
        ("٣,5,5", 2, "arrival_ms is '٣', not a number"),
        ("1.1234567,5,5", 2, "arrival_ms is '1.1234567', not a number"),
        ("9223372036854.775808,5,5", 2, "arrival_ms is 9223372036854.775808: too far for int64 ns"),
        (f"{'9' * 99},5,5", 2, "9...', not a number"),
        ("1,4.5,5", 2, "prompt_tokens is '4.5', not a 64-bit integer"),
        ("1,-1,5", 2, "prompt_tokens is -1, must be at least 0"),
        (f"1,{2**63},5", 2, "prompt_tokens is '9223372036854775808', not a 64-bit integer"),
        ("1,5,", 2, "output_tokens is '', not a 64-bit integer"),
        ("1,5,-1", 2, "output_tokens is -1, must be at least 0"),
        ("1,0,0", 2, "a request without tokens"),
        (f"{GOOD}\n7.499999,5,5", 3, "the timestamp is 1 ns earlier than the row before"),
        (f"{GOOD}\n{'7' * LINE_BYTES_MAX}", 3, "the line is longer than 4096 bytes"),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_malformed_row(tmp_path: Path, rows: str, line: int, problem: str, line_end: str) -> None:
    path = written(tmp_path, f"{HEADER}\n{rows}\n".replace("\n", line_end))
    with pytest.raises(DataError) as caught:
        read_request_csv(path, None)
    assert caught.value.line == line
    assert problem in caught.value.problem
    assert len(caught.value.problem) < 200


@pytest.mark.parametrize(
    ("rows", "line", "problem"),
    [
        ("1,1,1", 2, "expected 4 fields, got 3"),
        ("1,1,1,x", 2, "after is 'x', not a 64-bit integer"),
        ("1,1,1,-1", 2, "after is -1, must be at least 0"),
        ("1,1,1,\n1,1,1,2", 3, "request 1 waits for request 2, which is missing (requests: 2)"),
        ("1,1,1,0", 2, "request 0 waits for itself"),
        ("1,1,1,\n1,1,1,2\n1,1,1,1", 3, "request 1 waits for request 2, and so for itself (a cycle of 2)"),
        ("1,1,1,1\n1,1,x,0", 3, "output_tokens is 'x'"),
    ],
)
def test_malformed_after(tmp_path: Path, rows: str, line: int, problem: str) -> None:
    path = written(tmp_path, f"{HEADER_AFTER}\n{rows}\n")
    with pytest.raises(DataError) as caught:
        read_request_csv(path, None)
    assert (caught.value.line, caught.value.problem[: len(problem)]) == (line, problem)


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"", None, f"the file is empty; expected the header {HEADER} or {HEADER_AFTER}"),
        (HEADER.encode(), None, "no requests: the file has only a header"),
        (f"{GOOD}\n".encode(), 1, f"wrong header '{GOOD}'; expected {HEADER} or {HEADER_AFTER}"),
        (f"{HEADER},\n".encode(), 1, "wrong header"),
        (f"{HEADER}\n1,\xff,1".encode("latin-1"), 2, "not UTF-8 (byte 3 of the line)"),
    ],
)
def test_malformed_file(tmp_path: Path, content: bytes, line: int | None, problem: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_request_csv(path, None)
    assert caught.value.line == line
    assert problem in caught.value.problem


TOKENS = st.integers(0, 2**63 - 1)
ROWS = st.lists(
    st.tuples(st.integers(0, 10**15), TOKENS, TOKENS, st.integers(-1, 20)).filter(lambda row: row[1] + row[2] > 0),
    min_size=1,
    max_size=20,
)


@settings(deadline=None)
@given(ROWS, st.booleans(), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\ufeff"]))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, int, int, int]],
    graph: bool,
    line_end: str,
    bom: str,
) -> None:
    """`rows` are (ns since the row before, prompt tokens, output tokens, how many rows back it waits or -1)."""
    due_ns = np.cumsum([gap for gap, _, _, _ in rows]).tolist()
    expected = [
        (time, prompt, output, row - back if graph and 0 < back <= row else -1)
        for row, (time, (_, prompt, output, back)) in enumerate(zip(due_ns, rows, strict=True))
    ]
    lines = [HEADER_AFTER if graph else HEADER]
    for time, prompt, output, after in expected:
        text = f"{time // 10**6}.{time % 10**6:06},{prompt},{output}"
        lines.append(text + (f",{'' if after == -1 else after}" if graph else ""))
    path = written(tmp_path_factory.getbasetemp(), bom + line_end.join(lines))
    assert columns(read_request_csv(path, None), graph=True) == expected

"""The Azure trace reader: the published trace's facts, exact round trips, and a message for each bad file."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import ROOT
from support.results.request_files import columns, written

from launchopt.arrivals.azure import HEADER, LINE_BYTES_MAX, read_azure
from launchopt.errors import DataError

TRACE = ROOT.parent / "shared/data/arrivals/AzureLLMInferenceTrace_code.csv"
needs_trace = pytest.mark.skipif(not TRACE.exists(), reason=f"no {TRACE.name}: download it from its source")

GOOD = "2023-11-16 18:17:03.9799600,4808,10"


@needs_trace
def test_published_trace() -> None:
    requests = read_azure(TRACE, None)
    gaps_ns = np.diff(requests.arrival_ns)
    assert len(requests) == 8_819
    assert requests.arrival_ns[0] == 0
    assert requests.arrival_ns[-1] == 3_435_948_056_000
    assert requests.context_tokens.sum() == 18_059_974
    assert requests.generated_tokens.sum() == 245_896
    assert gaps_ns.min() == 6_000
    assert round(float(np.median(gaps_ns)) / 1e6, 3) == 63.798
    assert round(float(gaps_ns.max()) / 1e9, 2) == 217.17
    assert (gaps_ns < 1_000_000).sum() == 1_500


@needs_trace
def test_limit_gives_the_head_of_the_trace() -> None:
    assert columns(read_azure(TRACE, 100)) == columns(read_azure(TRACE, None))[:100]
    assert len(read_azure(TRACE, 8_819)) == 8_819
    with pytest.raises(DataError, match="8820 requests asked for, but the file has 8819"):
        read_azure(TRACE, 8_820)


def test_fractions_and_zones(tmp_path: Path) -> None:
    stamps = ["59", "59.5", "59.9799600", "59.979960123", "59.98+00:00"]
    rows = [f"2023-12-31 23:59:{stamp},1,0" for stamp in stamps]
    path = written(tmp_path, "\n".join([HEADER, *rows, "2024-01-01 00:00:00+00:00,1,0"]))
    expected = [0, 500_000_000, 979_960_000, 979_960_123, 980_000_000, 1_000_000_000]
    assert read_azure(path, None).arrival_ns.tolist() == expected


def test_nothing_after_the_limit_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEADER}\n{GOOD}\nnonsense")
    assert columns(read_azure(path, 1)) == [(0, 4808, 10)]
    with pytest.raises(DataError):
        read_azure(path, 2)


@pytest.mark.parametrize(
    ("rows", "line", "problem"),
    [
        ("", 2, "expected 3 fields, got 1: ''"),
        ("2023-11-16 18:17:03,5", 2, "expected 3 fields, got 2"),
        (f"{GOOD}\n{GOOD},7", 3, "expected 3 fields, got 4"),
        (f"{GOOD}\n\n{GOOD}", 3, "expected 3 fields, got 1"),
        ("16/11/2023 18:17,5,5", 2, "bad timestamp '16/11/2023 18:17'"),
        ("2023-02-30 18:17:03,5,5", 2, "bad timestamp '2023-02-30 18:17:03'"),
        ("0000-01-01 00:00:00,5,5", 2, "bad timestamp"),
        ("2023-11-16 24:00:00,5,5", 2, "bad timestamp"),
        ("2023-11-16 18:17:03.,5,5", 2, "bad timestamp"),
        ("2023-11-16 18:17:03.1234567890,5,5", 2, "bad timestamp"),
        ("2023-11-16 18:17:03+02:00,5,5", 2, "bad timestamp"),
        ("٢٠٢٣-11-16 18:17:03,5,5", 2, "bad timestamp"),
        ("2023-11-16 18:17:03,4.5,5", 2, "ContextTokens is '4.5', not a 64-bit integer"),
        ("2023-11-16 18:17:03,,5", 2, "ContextTokens is '', not a 64-bit integer"),
        ("2023-11-16 18:17:03,1_000,5", 2, "ContextTokens is '1_000', not a 64-bit integer"),
        ("2023-11-16 18:17:03, 7,5", 2, "ContextTokens is ' 7', not a 64-bit integer"),
        (f"2023-11-16 18:17:03,{2**63},5", 2, "not a 64-bit integer"),
        (f"2023-11-16 18:17:03,{'9' * 99},5", 2, "9...', not a 64-bit integer"),
        ("2023-11-16 18:17:03,0,5", 2, "ContextTokens is 0, must be at least 1"),
        ("2023-11-16 18:17:03,-3,5", 2, "ContextTokens is -3, must be at least 1"),
        ("2023-11-16 18:17:03,5,x", 2, "GeneratedTokens is 'x', not a 64-bit integer"),
        ("2023-11-16 18:17:03,5,-1", 2, "GeneratedTokens is -1, must be at least 0"),
        (f"{GOOD}\n2023-11-16 18:17:03.9799599,5,5", 3, "the timestamp is 100 ns earlier than the row"),
        ("1700-01-01 00:00:00,5,5\n2000-01-01 00:00:00,5,5", 3, "over 292 years after the first"),
        (f"{GOOD}\n{'7' * LINE_BYTES_MAX}", 3, "the line is longer than 4096 bytes"),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_malformed_row(tmp_path: Path, rows: str, line: int, problem: str, line_end: str) -> None:
    path = written(tmp_path, f"{HEADER}\n{rows}\n".replace("\n", line_end))
    with pytest.raises(DataError) as caught:
        read_azure(path, None)
    assert caught.value.line == line
    assert problem in caught.value.problem
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert len(caught.value.problem) < 200


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"", None, "the file is empty"),
        (b"\xef\xbb\xbf", None, "the file is empty"),
        (HEADER.encode(), None, "only a header"),
        (f"{HEADER}\r\n".encode(), None, "only a header"),
        (b"\n", 1, "wrong header ''"),
        (f"{GOOD}\n".encode(), 1, f"wrong header '{GOOD}'; expected {HEADER}"),
        (HEADER.lower().encode(), 1, "wrong header"),
        (HEADER.encode("utf-16"), 1, "not UTF-8"),
        (f"{HEADER}\n2023-11-16 ".encode() + b"\xff:17:03,1,1", 2, "not UTF-8 (byte 12 of the line)"),
        (b"7" * (LINE_BYTES_MAX + 1), 1, "the line is longer than 4096 bytes"),
    ],
)
def test_malformed_file(tmp_path: Path, content: bytes, line: int | None, problem: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_azure(path, None)
    assert caught.value.line == line
    assert problem in caught.value.problem
    assert str(path) in str(caught.value)


def test_longest_line_is_read_whole(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + "\n" + "7" * (LINE_BYTES_MAX - 1) + "\n")
    with pytest.raises(DataError, match="expected 3 fields, got 1"):
        read_azure(path, None)


TICKS_PER_S = 10_000_000
ROWS = st.lists(
    st.tuples(st.integers(0, 10**12), st.integers(1, 2**63 - 1), st.integers(0, 2**63 - 1)),
    min_size=1,
    max_size=20,
)


@settings(deadline=None)
@given(ROWS, st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), st.data())
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, int, int]],
    start: datetime,
    data: st.DataObject,
) -> None:
    """`rows` are (100 ns ticks since the row before, context tokens, generated tokens)."""
    bom, line_end = data.draw(st.sampled_from(["", "\ufeff"])), data.draw(st.sampled_from(["\n", "\r\n"]))
    start = start.replace(microsecond=0)
    ticks = np.cumsum([gap for gap, _, _ in rows])
    lines = [HEADER]
    for tick, (_, context, generated) in zip(ticks.tolist(), rows, strict=True):
        stamp = start + timedelta(seconds=tick // TICKS_PER_S)
        lines.append(f"{stamp}.{tick % TICKS_PER_S:07d},{context},{generated}")
    text = bom + line_end.join(lines) + data.draw(st.sampled_from(["", line_end]))
    read = columns(read_azure(written(tmp_path_factory.getbasetemp(), text), None))
    assert read == [
        (100 * (tick - ticks[0]), context, generated) for tick, (_, context, generated) in zip(ticks, rows, strict=True)
    ]

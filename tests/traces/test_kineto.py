"""The Kineto reader: every form of the format, a message for each bad file, and no traceback for any bytes."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from support.results.kineto_events import TRACES, call, kernel, raw, written

from launchopt.errors import DataError
from launchopt.traces.events import Format, Kind, detect, is_sqlite
from launchopt.traces.json_events import events
from launchopt.traces.kineto import read_kineto

EVENTS = [call(10, 5, 3), kernel(16, "2.125", 3), {"ph": "i", "name": "instant", "ts": 1}]
LIST = json.dumps(EVENTS).encode()
PUBLISHED = TRACES / "h100_bert_small.kineto.json.gz"


@pytest.mark.parametrize(
    "content",
    [
        LIST,
        b"\n\t " + LIST,
        b"\xef\xbb\xbf" + LIST,
        gzip.compress(LIST, mtime=0),
        b'{"traceEvents": ' + LIST + b"}",
        b'{"before": {"traceEvents": [1]}, "traceEvents": ' + LIST + b', "after": [[1], {"a": "]"}]}',
        gzip.compress(b'{"traceEvents": ' + LIST + b"}", mtime=0),
        LIST.removesuffix(b"]"),
        LIST.removesuffix(b"]") + b",\n",
    ],
)
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace.sqlite"])
def test_forms(tmp_path: Path, content: bytes, name: str) -> None:
    path = raw(tmp_path, content, name)
    assert detect(path) is Format.JSON
    assert list(events(path)) == EVENTS


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty: expected Kineto or Chrome JSON, plain or gzip, or what `nsys export"),
        (b" \n", "the file is empty"),
        (b"PK\3\4", "no trace: expected"),
        (gzip.compress(LIST, mtime=0)[:12], "the gzip stream is damaged at its start"),
        (gzip.compress(b"SQLite format 3\0", mtime=0), "SQLite inside gzip: unpack it first"),
        (b"{}", "JSON, but no trace: expected a list of events, alone or as traceEvents"),
        (b'{"traceEvents": {"a": 1}}', "JSON, but no trace"),
        (b"[1]", "event 1 is no object"),
        (LIST.removesuffix(b"]") + b", 5]", "event 4 is no object"),
        (LIST[:-30], r"not JSON after event 2 \(the file was cut short\); [0-9]+ bytes"),
        (b'{"traceEvents": ' + LIST, r"not JSON after event 3 \(the file was cut short\)"),
        (b"[{} {}]", "not JSON after event 1 .*after array element"),
        (b'[{"a": 1}, {"b": "foo("bar")"}]', r"not JSON after event 1 .*: bar at byte 23\)"),
        (b'[{"a": 1}, {"b" 2}]', r"not JSON after event 1 .*: 2 at byte 16\)"),
        (b'[{"a": nan nan}]', r"not JSON before the first event \(.*: nan at byte 7\)"),
        ("[{}]".encode("utf-16"), "UTF-16 text: convert it"),
        (LIST + LIST, "not JSON after event 3 .*trailing garbage"),
        (b'[{"ts": ' + b"9" * 5000 + b"}]", "a number of over 300 characters"),
        (b"[" * 200, "values nested over 100 deep"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(DataError, match=problem) as caught:
        list(events(raw(tmp_path, content)))
    assert "\n" not in str(caught.value)


def test_sqlite_is_told_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE a (b)")
    assert is_sqlite(path)
    assert detect(path) is Format.SQLITE
    with pytest.raises(DataError, match="an nsys export, where a JSON trace was expected"):
        list(events(path))


def test_rows(tmp_path: Path) -> None:
    trace = read_kineto(written(tmp_path, EVENTS))
    assert trace.events == 3
    assert trace.calls[["start_ns", "end_ns", "correlation"]].tolist() == [(10_000, 15_000, 3)]
    gpu = trace.gpu[["start_ns", "end_ns", "correlation", "stream", "process", "device", "kind"]]
    assert gpu.tolist() == [(16_000, 18_125, 3, 7, -1, 0, Kind.KERNEL)]
    assert [trace.names[trace.calls[0][column]] for column in ("process", "thread", "name")] == [
        "1",
        "1",
        "cudaLaunchKernel",
    ]
    assert trace.names[trace.gpu[0]["name"]] == "gemm"


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        *(("kernel", Kind.KERNEL), ("Kernel", Kind.KERNEL), ("gpu_memcpy", Kind.MEMCPY), ("Memcpy", Kind.MEMCPY)),
        *(("gpu_memset", Kind.MEMSET), ("Memset", Kind.MEMSET)),
        *((name, None) for name in ("cuda_runtime", "cuda_driver", "Runtime", "Driver")),
    ],
)
def test_categories_of_now_and_then(tmp_path: Path, category: str, kind: Kind | None) -> None:
    trace = read_kineto(written(tmp_path, [kernel(1, 2, 3, cat=category)]))
    assert trace.gpu["kind"].tolist() == ([] if kind is None else [kind])
    assert len(trace.calls) == (kind is None)


@pytest.mark.parametrize("category", ["cpu_op", "Operator", "gpu_user_annotation", "cuda_sync", "overhead", None, 5])
def test_other_categories_are_counted_only(tmp_path: Path, category: object) -> None:
    trace = read_kineto(written(tmp_path, [call(1, 2, 3, cat=category)]))
    assert (trace.events, len(trace.calls), len(trace.gpu)) == (1, 0, 0)


@pytest.mark.parametrize(
    ("ts", "dur", "unit", "start_ns", "end_ns"),
    [
        (5, 2, None, 5_000, 7_000),
        ("5", "2", None, 5_000, 7_000),
        ("1682725898082228.125", "0.5", None, 1_682_725_898_082_228_125, 1_682_725_898_082_228_625),
        (1_682_725_898_082_228_125, 500, None, 1_682_725_898_082_228_125, 1_682_725_898_082_228_625),
        (5, 2, "ns", 5, 7),
        (5, 2, "us", 5_000, 7_000),
        (-5, 0, None, -5_000, -5_000),
        ("1.0004", "1.0004", None, 1_000, 2_000),
    ],
)
def test_times(tmp_path: Path, ts: object, dur: object, unit: Any, start_ns: int, end_ns: int) -> None:
    trace = read_kineto(written(tmp_path, [kernel(ts, dur, 1)]), unit)
    assert trace.gpu[["start_ns", "end_ns"]].tolist() == [(start_ns, end_ns)]


def test_a_fraction_of_an_absolute_time_is_exact(tmp_path: Path) -> None:
    # As a double this would be off by up to 125 ns.
    path = raw(tmp_path, b'[{"ph":"X","cat":"kernel","ts":1682725898082228.127,"dur":0.001}]')
    assert [event["ts"] for event in events(path)] == [Decimal("1682725898082228.127")]
    start_ns = 1_682_725_898_082_228_127
    assert read_kineto(path).gpu[["start_ns", "end_ns"]].tolist() == [(start_ns, start_ns + 1)]


@pytest.mark.parametrize(
    ("ts", "dur"),
    [
        *((None, 1), ("soon", 1), ([], 1), (1, "nan"), (1, "-inf"), (1, -1), (10**30, 1), (1, 10**30)),
        *(("1e999999", 1), (1, "1e999999"), ("-1e17", 1), ("1e-999999999999999999999", 1)),
    ],
)
def test_unusable_times_are_counted(tmp_path: Path, ts: object, dur: object) -> None:
    trace = read_kineto(written(tmp_path, [call(ts, dur, 1), kernel(ts, dur, 1), kernel(1, 2, 1)]))
    assert (trace.left_out, len(trace.calls), len(trace.gpu)) == (2, 0, 1)


@pytest.mark.parametrize("value", [None, "x", -5, 2**70, [], {}, "nan"])
def test_what_is_no_number_is_none(tmp_path: Path, value: object) -> None:
    trace = read_kineto(written(tmp_path, [kernel(1, 2, value, stream=value), call(1, 2, value, args=value)]))
    assert trace.gpu["correlation"].tolist() == [-1]
    (stream,) = trace.gpu["stream"].tolist()
    assert trace.names[-2 - stream] == value if isinstance(value, str) else stream == -1
    assert trace.calls["correlation"].tolist() == [-1]


def test_numbers_may_be_texts(tmp_path: Path) -> None:
    trace = read_kineto(written(tmp_path, [kernel("1", "2", "18", stream="20")]))
    assert trace.gpu[["start_ns", "end_ns", "correlation", "stream"]].tolist() == [(1000, 3000, 18, 20)]


def test_a_long_name_is_cut_and_half_a_character_replaced(tmp_path: Path) -> None:
    trace = read_kineto(written(tmp_path, [kernel(1, 2, 3, name="k" * 5000), kernel(1, 2, 3, name="\ud800")]))
    assert [len(trace.names[code]) for code in trace.gpu["name"]] == [1000, 1]

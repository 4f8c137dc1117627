"""The nsys reader, on small files with nsys' own column names, and on a real export if at hand."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.results.kineto_events import TRACES

from launchopt.analysis.profiles.launch_pairs import pair
from launchopt.analysis.profiles.launch_stats import launch_stats
from launchopt.errors import DataError
from launchopt.traces.events import Kind
from launchopt.traces.nsys_sqlite import read_nsys

REAL = TRACES / "cloverleaf_a100.nsys.sqlite"
PID, OTHER = 7 << 24, 8 << 24
NAMES = ["cudaLaunchKernel_v7000", "cuLaunchKernel", "cudaMemcpyAsync_v3020", "cublasSgemm", "gemm<int>"]
NAMES += ["cudaStreamBeginCapture_v10000", "cudaStreamEndCapture_v10000"]
LAUNCH, DRIVER, COPY, LIBRARY, GEMM, BEGIN, END = range(7)
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
GPU = "CUPTI_ACTIVITY_KIND_"
COLUMNS = {
    RUNTIME: 'start, "end", globalTid, correlationId, nameId, returnValue',
    f"{GPU}KERNEL": 'start, "end", deviceId, streamId, correlationId, globalPid, demangledName, shortName',
    f"{GPU}MEMCPY": 'start, "end", deviceId, streamId, correlationId, globalPid, bytes',
    f"{GPU}GRAPH_TRACE": 'start, "end", correlationId, globalPid, graphId',
}


def written(folder: Path, **tables: list[tuple[object, ...]]) -> Path:
    """Tables RUNTIME, KERNEL, ...: rows in the order of COLUMNS; only those given are there, as nsys has it."""
    path = folder / "100% odd?#name.sqlite"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(NAMES))
        for name, rows in tables.items():
            table = f"{GPU}{name}"
            database.execute(f"CREATE TABLE {table} ({COLUMNS[table]})")
            for row in rows:
                database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        database.commit()
    return path


@pytest.mark.skipif(not REAL.exists(), reason=f"no {REAL.name}: download it from its source")
def test_published_profile() -> None:
    stats = launch_stats(read_nsys(REAL))
    assert (stats.launch_calls, stats.kernels, stats.kernels_launched) == (1_312, 1_312, 1_312)
    assert stats.launch_calls_by_name == {"cudaLaunchKernel": 1_312}
    assert stats.host.sum_us == 5_473.753
    assert (stats.host.min_us, stats.host.max_us) == (3.156, 34.255)
    assert (stats.memory_calls, stats.memory_calls_without_gpu_event) == (279, 0)
    assert stats.gpu_events_by_kind == {"kernel": 1_312, "memcpy": 279}
    assert stats.left_out == 0


def test_rows(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        RUNTIME=[(10, 20, PID | 70, 1, LAUNCH, 0), (30, 35, PID | 71, 2, COPY, 0), (1, 2, PID | 70, 9, LIBRARY, 0)],
        KERNEL=[(25, 40, 0, 7, 1, PID, GEMM, GEMM)],
        MEMCPY=[(41, 45, 1, 8, 2, PID, 100)],
        GRAPH_TRACE=[(50, 60, 3, PID, 5)],
    )
    trace = read_nsys(path)
    assert trace.events == 6
    # A library's own rows are none of the CUDA API.
    assert trace.calls[["start_ns", "end_ns", "correlation"]].tolist() == [(10, 20, 1), (30, 35, 2)]
    assert [trace.names[code] for code in trace.calls["name"]] == ["cudaLaunchKernel", "cudaMemcpyAsync"]
    assert [trace.names[code] for code in trace.calls["process"]] == ["7", "7"]
    assert [trace.names[code] for code in trace.calls["thread"]] == ["70", "71"]
    columns = ["start_ns", "end_ns", "correlation", "device", "stream", "kind"]
    assert trace.gpu[columns].tolist() == [
        (25, 40, 1, 0, 7, Kind.KERNEL),
        (41, 45, 2, 1, 8, Kind.MEMCPY),
        (50, 60, 3, -1, -1, Kind.GRAPH),
    ]
    assert [trace.names[code] for code in trace.gpu["name"]] == ["gemm<int>", "memcpy", "graph"]


def test_both_records_of_a_call_are_one(tmp_path: Path) -> None:
    rows = [(12, 18, PID | 70, 1, DRIVER, 0), (10, 20, PID | 70, 1, LAUNCH, 0)]
    pairs = pair(trace := read_nsys(written(tmp_path, RUNTIME=rows, KERNEL=[(25, 40, 0, 7, 1, PID, GEMM, GEMM)])))
    assert pairs.calls[["start_ns", "end_ns"]].tolist() == [(10, 20)]
    assert trace.names[pairs.calls["name"][0]] == "cudaLaunchKernel"
    assert (pairs.doubled, pairs.call_of.tolist()) == (1, [0])


def test_correlation_ids_are_those_of_a_process(tmp_path: Path) -> None:
    calls = [(10, 20, PID | 70, 1, LAUNCH, 0), (11, 21, OTHER | 70, 1, LAUNCH, 0)]
    kernels = [(30, 40, 0, 7, 1, OTHER, GEMM, GEMM), (31, 41, 0, 7, 1, PID, GEMM, GEMM), (9, 9, 0, 7, 1, 0, GEMM, GEMM)]
    pairs = pair(read_nsys(written(tmp_path, RUNTIME=calls, KERNEL=kernels)))
    assert pairs.doubled == 0
    assert pairs.gpu["start_ns"].tolist() == [9, 30, 31]
    assert pairs.call_of.tolist() == [-1, 1, 0]


def test_without_any_gpu_table(tmp_path: Path) -> None:
    stats = launch_stats(read_nsys(written(tmp_path, RUNTIME=[(10, 20, PID, 1, LAUNCH, 0)])))
    assert (stats.launch_calls, stats.launch_calls_without_kernel, stats.gpu_events) == (1, 1, 0)


def test_whole_graphs(tmp_path: Path) -> None:
    calls, graphs = [(10, 20, PID, 1, LAUNCH, 0)], [(25, 40, 1, PID, 5)]
    stats = launch_stats(read_nsys(written(tmp_path, RUNTIME=calls, GRAPH_TRACE=graphs)))
    assert (stats.kernels, stats.whole_graphs, stats.launch_calls_without_kernel) == (0, 1, 0)
    assert stats.launch_delay.sum_us == 0.005


def test_a_file_without_tables_of_nsys(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE a (b)")
    with pytest.raises(DataError, match="holds no table of nsys: export the report with"):
        read_nsys(path)


def test_a_table_laid_out_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE {RUNTIME} (begin)")
    with pytest.raises(DataError, match=r"not laid out like an nsys export \(no such column"):
        read_nsys(path)


def test_a_missing_or_broken_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="unable to open database file"):
        read_nsys(tmp_path / "none.sqlite")
    path = written(tmp_path, RUNTIME=[(10, 20, PID, 1, LAUNCH, 0)])
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 4096)
    with pytest.raises(DataError, match=r"cannot be read as SQLite|not laid out"):
        read_nsys(path)


ODD = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=3) | st.binary(max_size=3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.lists(st.tuples(*[ODD | st.integers(0, 4)] * 6), max_size=4),
    kernels=st.lists(st.tuples(*[ODD | st.integers(0, 4)] * 8), max_size=4),
)
def test_any_value_in_any_column(
    tmp_path: Path, calls: list[tuple[object, ...]], kernels: list[tuple[object, ...]]
) -> None:
    trace = read_nsys(written(tmp_path, RUNTIME=calls, KERNEL=kernels))
    assert trace.events == len(calls) + len(kernels)
    kept = launch_stats(trace)
    assert kept.kernels + trace.left_out <= trace.events


CONTEXT_COLUMNS = {**COLUMNS, f"{GPU}KERNEL": COLUMNS[f"{GPU}KERNEL"].replace("streamId", "contextId, streamId")}


def test_faults_of_a_profile_are_those_of_other_traces(tmp_path: Path) -> None:
    hour = 3_600 * 10**9
    calls = [(10 * hour + at, 10 * hour + at + 5, PID | 70, at, LAUNCH, 0) for at in (10, 20, 30)]
    long, short = (10 * hour + 40, 10 * hour + 900, 0, 7, 10, PID, GEMM, GEMM), (10 * hour + 50, 10 * hour + 60)
    other = (*short, 0, 7, 20, PID, GEMM, GEMM)
    path = written(tmp_path, RUNTIME=calls, KERNEL=[long, other, other, (0, 0, 0, 7, 30, PID, GEMM, GEMM)])
    stats = launch_stats(read_nsys(path))
    assert (stats.left_out, stats.repeated_events, stats.overlong_events, stats.kernels) == (1, 1, 1, 1)


def test_a_start_of_zero_is_genuine_in_a_profile_that_starts_at_zero(tmp_path: Path) -> None:
    path = written(tmp_path, RUNTIME=[(0, 5, PID | 70, 1, LAUNCH, 0)], KERNEL=[(7, 9, 0, 7, 1, PID, GEMM, GEMM)])
    assert launch_stats(read_nsys(path)).launch_delay.sum_us == 0.002


def test_copies_without_a_call_captures_and_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COLUMNS, f"{GPU}KERNEL", CONTEXT_COLUMNS[f"{GPU}KERNEL"])
    calls = [(1, 2, PID, 1, BEGIN, 0), (3, 9, PID, 2, LAUNCH, 0), (10, 11, PID, 3, END, 0)]
    calls += [(20, 22, PID, 4, LAUNCH, 0), (30, 32, PID, 5, LAUNCH, 0)]
    kernels = [(40, 45, 0, 1, 7, 4, PID, GEMM, GEMM), (50, 55, 0, 2, 7, 5, PID, GEMM, GEMM)]
    path = written(tmp_path, RUNTIME=calls, KERNEL=kernels, MEMCPY=[(60, 61, 0, 7, 99, PID, 8)])
    stats = launch_stats(read_nsys(path))
    assert (stats.captured_calls, stats.launch_calls, stats.copies_without_call) == (1, 2, 1)
    assert [(queue.context, queue.largest) for queue in stats.queues] == [(1, 1), (2, 1)]


def test_an_export_without_cuda_says_what_nsys_said(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    said = ["CUDA was not\ttraced", "Sampling failed", "CUPTI error 15"]
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, text TEXT)")
        database.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (1, ?)", [(text,) for text in said])
        database.commit()
    trace = read_nsys(path)
    assert (trace.diagnostics, trace.events) == ((said[0], said[2]), 0)


@pytest.mark.parametrize(
    ("devices", "busy_ms"),
    [
        ([], [("7", 0.010), ("8", 0.010)]),
        ([(7, 0, 3), (8, 0, 5)], [("7", 0.010), ("8", 0.010)]),
        ([(7, 0, 3), (8, 0, 3)], [(None, 0.014)]),
        ([(7, 0, 3), (8, 0, 3), (8, 0, 4)], [("7", 0.010), ("8", 0.010)]),
        ([(7, 0, None), (8, 0, "x"), (None, 0.5, -1)], [("7", 0.010), ("8", 0.010)]),
    ],
    ids=["not said", "a GPU each", "one GPU for both", "said twice", "no numbers"],
)
def test_the_table_of_devices_says_whether_two_processes_share_a_gpu(
    tmp_path: Path, devices: list[tuple[object, ...]], busy_ms: list[tuple[str | None, float]]
) -> None:
    """Both processes call their GPU 0. One is busy for 10 us from 0, the other one from 4 us."""
    kernels = [(0, 10_000, 0, 1, 1, PID, GEMM, GEMM), (4_000, 14_000, 0, 1, 1, OTHER, GEMM, GEMM)]
    path = written(tmp_path, KERNEL=kernels)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE TARGET_INFO_CUDA_DEVICE (pid, cudaId, gpuId, uuid)")
        database.executemany("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?, ?, ?, 'u')", devices)
        database.commit()
    found = launch_stats(read_nsys(path)).gpu_time_by_device
    assert [(time.process, time.busy_ms) for time in found] == busy_ms
    assert [time.device for time in found] == [0] * len(found)

"""The join of an nsys export, on small files with nsys' own table layouts, and on a real one if at hand."""

import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from launchopt.analysis.nsys import OUTSIDE, Profile, RangeRow, read_profile
from launchopt.errors import DataError
from runner.nsys import main

PID, OTHER_PID = 7 << 24, 8 << 24
TID, TID_2 = PID | 70, PID | 71
REAL = Path(__file__).parents[3] / "shared/data/traces/cloverleaf_a100.nsys.sqlite"

SPAN = 'start INTEGER NOT NULL, "end" INTEGER NOT NULL'
LAYOUT = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "NVTX_EVENTS": 'start INTEGER NOT NULL, "end" INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, '
    "category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, "
    "domainId INTEGER, uint64Value INTEGER, int64Value INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": f"{SPAN}, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{SPAN}, deviceId INTEGER NOT NULL, "
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, shortName INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{SPAN}, correlationId INTEGER, globalPid INTEGER, graphId INTEGER",
}


class Export:
    """An nsys export under construction; tables appear with their first row, as nsys writes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = sqlite3.connect(path)
        self.strings: dict[str, int] = {}

    def add(self, table: str, **values: object) -> None:
        self.database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({LAYOUT[table]})")
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        self.database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))

    def text(self, value: str) -> int:
        if value not in self.strings:
            self.strings[value] = len(self.strings) + 100
            self.add("StringIds", id=self.strings[value], value=value)
        return self.strings[value]

    def domain(self, name: str, start: int = 0, domain: int = 1, tid: int = TID) -> None:
        self.add("NVTX_EVENTS", start=start, eventType=75, text=name, globalTid=tid, domainId=domain)

    def span(self, name: str, start: int, end: int | None, tid: int = TID, domain: int = 1, kind: int = 59) -> None:
        self.add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=kind,
            textId=self.text(name),
            globalTid=tid,
            domainId=domain,
        )

    def call(self, start: int, correlation: int, name: str = "cudaLaunchKernel_v7000", tid: int = TID) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=start + 4, eventClass=0, globalTid=tid,
            correlationId=correlation, nameId=self.text(name), returnValue=0,
        )  # fmt: skip

    def kernel(self, start: int, end: int, correlation: int | None, pid: int = PID) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, deviceId=0, streamId=7,
            correlationId=correlation, globalPid=pid, shortName=1,
        )  # fmt: skip

    def read(self) -> Profile:
        self.database.commit()
        self.database.close()
        return read_profile(self.path)


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path / "100% odd?#name.sqlite")


def by_name(profile: Profile) -> dict[str, RangeRow]:
    return {row.name: row for row in profile.rows}


def counts(profile: Profile) -> dict[str, tuple[int, int, int]]:
    return {row.name: (row.ranges, row.launch_calls, row.kernels) for row in profile.rows}


def test_calls_go_to_the_innermost_range_and_kernels_follow_their_call(export: Export) -> None:
    export.domain("launchopt")
    export.span("batch", 100, 300)
    export.span("submit", 120, 180)
    export.call(130, 1)
    export.call(190, 2)  # after submit, still in batch
    export.call(310, 3)  # after both
    export.kernel(1000, 1010, 1)
    export.kernel(1005, 1030, 1)  # a graph: one call, two kernels
    export.kernel(2000, 2007, 2)
    export.kernel(125, 128, 3)  # ran while submit was open, but was not launched there
    profile = export.read()
    assert counts(profile) == {"batch": (1, 1, 1), "submit": (1, 1, 2), OUTSIDE: (0, 1, 1)}
    submit = by_name(profile)["submit"]
    assert (submit.host_ms, submit.host_us_per_range_p50) == (60e-6, 60e-3)
    assert (submit.gpu_busy_ms, submit.kernels_per_range) == (
        30e-6,
        2.0,
    )  # 1000..1030: the overlap counts once
    assert (profile.total.launch_calls, profile.total.kernels) == (3, 4)
    assert profile.total.host_ms == 200e-6  # submit lies inside batch


def test_driver_and_runtime_records_of_one_call_count_once(export: Export) -> None:
    export.domain("launchopt")
    export.span("submit", 100, 200)
    export.call(110, 1)
    export.call(111, 1, name="cuLaunchKernel")
    export.kernel(150, 160, 1)
    profile = export.read()
    assert counts(profile)["submit"] == (1, 1, 1)
    assert by_name(profile)["submit"].call_ms == 5e-6  # 110..115: the outer of the two, 111..115 being inside


@pytest.mark.parametrize(
    ("name", "launches"),
    [
        ("cudaLaunchKernelExC_v11060", 1),
        ("cuLaunchKernelEx", 1),
        ("cudaGraphLaunch_v10000", 1),
        ("cuGraphLaunch_ptsz", 1),
        ("cudaLaunchCooperativeKernel_v9000", 1),
        ("cudaLaunchHostFunc_v10000", 0),
        ("cudaEventRecord_v3020", 0),
    ],
)
def test_which_calls_launch(export: Export, name: str, launches: int) -> None:
    export.call(10, 1, name=name)
    assert export.read().total.launch_calls == launches


def test_a_kernel_follows_a_call_that_is_no_launch(export: Export) -> None:
    export.domain("launchopt")
    export.span("fill", 0, 50)
    export.call(10, 1, name="cudaMemsetAsync_v3020")
    export.kernel(20, 30, 1)
    assert counts(export.read()) == {"fill": (1, 0, 1), OUTSIDE: (0, 0, 0)}


def test_threads_and_processes_are_kept_apart(export: Export) -> None:
    export.domain("launchopt")
    export.domain("launchopt", tid=OTHER_PID | 80, domain=4)
    export.span("a", 0, 100)
    export.span("b", 0, 100, tid=OTHER_PID | 80, domain=4)
    export.call(10, 1)
    export.call(10, 1, tid=OTHER_PID | 80)  # the same correlation id, another process
    export.call(10, 2, tid=TID_2)  # another thread than the range's
    export.kernel(20, 30, 1, pid=OTHER_PID)
    assert counts(export.read()) == {"a": (1, 1, 0), "b": (1, 1, 1), OUTSIDE: (0, 1, 0)}


def test_other_domains_are_ignored_and_a_reused_id_means_its_latest_domain(export: Export) -> None:
    export.domain("cublas", start=0)
    export.span("theirs", 10, 20)
    export.domain("launchopt", start=30)
    export.span("ours", 40, 50)
    export.span("nowhere", 40, 50, domain=9)
    assert counts(export.read()) == {"ours": (1, 0, 0), OUTSIDE: (0, 0, 0)}


def test_start_end_ranges_may_overlap(export: Export) -> None:
    export.domain("launchopt")
    export.span("first", 0, 60, kind=60)
    export.span("second", 30, 100, kind=60)
    export.span("third", 40, 50, kind=60)
    for correlation, start in enumerate([10, 45, 55, 70, 101]):
        export.call(start, correlation)
    assert {name: calls for name, (_, calls, _) in counts(export.read()).items()} == {
        "first": 1, "second": 2, "third": 1, OUTSIDE: 1
    }  # fmt: skip


def test_a_range_without_an_end_holds_what_follows_but_has_no_duration(export: Export) -> None:
    export.domain("launchopt")
    export.span("run", 10, None)
    export.call(500, 1)
    profile = export.read()
    assert counts(profile)["run"] == (1, 1, 0)
    assert by_name(profile)["run"].host_ms is None
    assert profile.unfinished_ranges == 1


def test_orphans_are_counted_outside(export: Export) -> None:
    export.kernel(0, 10, None)
    export.kernel(1, 3, None)  # inside the first, on another stream
    export.kernel(5, 20, 99)
    profile = export.read()
    assert counts(profile) == {OUTSIDE: (0, 0, 3)}
    assert profile.total.gpu_busy_ms == 20e-6


@pytest.mark.parametrize("content", [None, b"", b"not a database at all", "other tables", "odd layout"])
def test_what_is_no_export_is_a_data_error(tmp_path: Path, content: object) -> None:
    path = tmp_path / "x.sqlite"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        table = "songs" if content == "other tables" else "NVTX_EVENTS"
        with sqlite3.connect(path) as database:
            database.execute(f"CREATE TABLE {table} (title TEXT)")
        database.close()
    with pytest.raises(DataError, match=r"x\.sqlite: "):
        read_profile(path)
    assert path.exists() == (content is not None)


def test_the_table_and_parquet(export: Export, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export.domain("launchopt")
    export.span("submit", 0, 2_000_000)
    export.call(10, 1)
    export.kernel(20, 30, 1)
    export.read()
    assert main([str(export.path), "--output", str(tmp_path / "rows.parquet")]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert printed[1][:5] == ["submit", "1", "1", "1", "2.000"]
    assert printed[-1][:4] == ["total", "1", "1", "1"]  # nothing to remark on
    assert pq.read_table(tmp_path / "rows.parquet").column("kernels").to_pylist() == [1, 0]


def test_it_says_when_there_is_no_gpu_activity(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    export.domain("launchopt")
    export.span("submit", 0, 9)
    export.read()
    assert main([str(export.path)]) == 0
    assert "no GPU activity in this profile: NVTX ranges only" in capsys.readouterr().out


def test_it_says_when_ranges_or_a_graphs_kernels_are_missing(
    export: Export, capsys: pytest.CaptureFixture[str]
) -> None:
    export.call(0, 1, name="cudaGraphLaunch_v10000")
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=5, end=9, correlationId=1, globalPid=PID, graphId=1)
    export.read()
    assert main([str(export.path)]) == 0
    printed = capsys.readouterr().out
    assert "no range of the launchopt domain" in printed
    assert "1 CUDA graphs were recorded as a whole" in printed


def test_an_error_is_one_line_and_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.sqlite")]) == DataError.exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"{tmp_path / 'none.sqlite'}: no such file\n"


@pytest.mark.skipif(not REAL.exists(), reason="the shared traces are not beside this checkout")
def test_a_real_profile() -> None:
    total = read_profile(REAL).total
    assert (total.launch_calls, total.kernels, total.ranges) == (1312, 1312, 0)
    assert (total.call_ms, total.call_us_min, total.call_us_max) == (5.473753, 3.156, 34.255)

"""The join of an nsys export, on small files with nsys' own table layouts, and on a real one if at hand."""

import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.paths import ROOT
from support.results.nsys_export import OTHER_PID, PID, TID_2, Export

from launchopt.analysis.profiles.nsys import OUTSIDE, Profile, RangeRow, read_profile
from launchopt.errors import DataError
from runner.profiles.nsys import main

REAL = ROOT.parent / "shared/data/traces/cloverleaf_a100.nsys.sqlite"


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


def test_inside_leaves_out_what_no_range_of_the_mode_launched(export: Export) -> None:
    export.domain("launchopt")
    export.span("batched 64x1x8192 fp32", 100, 200)
    export.span("batched 8x1x8 fp32", 150, 260)  # overlaps the first: 160 ns in all
    export.span("warm-up run", 300, 400)
    for correlation, start in enumerate([110, 160, 310, 500]):
        export.call(start, correlation)
        export.kernel(start + 10, start + 20, correlation)
    inside = export.read("batched").inside
    assert (inside.ranges, inside.launch_calls, inside.kernels) == (2, 2, 2)
    assert (inside.host_ms, inside.gpu_busy_ms, inside.kernels_per_range) == (160e-6, 20e-6, 1.0)
    assert inside.host_us_per_range_p50 is None
    everything = read_profile(export.path)
    assert (everything.inside.kernels, everything.total.kernels) == (3, 4)
    assert read_profile(export.path, "graph").inside.ranges == 0
    assert read_profile(export.path, "batch").inside.ranges == 0  # another mode's name may begin like it


def test_kernel_times_add_up_where_busy_does_not(export: Export) -> None:
    export.kernel(0, 10, None)
    export.kernel(5, 20, None)
    total = export.read().total
    assert (total.kernel_ms, total.gpu_busy_ms) == (25e-6, 20e-6)


def test_launch_delay_is_from_the_return_of_a_call_to_its_first_kernel(export: Export) -> None:
    export.call(100, 1)  # returns at 104
    export.kernel(124, 130, 1)
    export.kernel(110, 120, 1)  # the first of the two: 6 ns
    export.call(200, 2)  # returns at 204
    export.kernel(202, 210, 2)  # began before: 0
    export.call(300, 3)
    export.kernel(402, 410, 3)  # 98 ns
    export.kernel(900, 910, None)  # of no known call: no delay
    assert export.read().total.launch_delay_us_p50 == 6e-3


def test_without_kernels_there_is_no_launch_delay(export: Export) -> None:
    export.call(100, 1)
    assert export.read().total.launch_delay_us_p50 is None


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
    rows: dict[str, list[str]] = {}  # a wide table is printed in parts with the same first column
    for line in capsys.readouterr().out.splitlines():
        first, *cells = line.split() or [""]
        rows.setdefault(first, []).extend(cells)
    assert rows["submit"][:4] == ["1", "1", "1", "2.000"]
    assert rows["total"][:3] == ["1", "1", "1"]  # nothing to remark on
    assert pq.read_table(tmp_path / "rows.parquet").column("kernels").to_pylist() == [1, 0]


def test_a_name_in_brackets_is_no_markup(export: Export, capsys: pytest.CaptureFixture[str]) -> None:
    export.domain("launchopt")
    export.span("[bold]odd", 0, 9)
    export.read()
    assert main([str(export.path)]) == 0
    assert "[bold]odd" in capsys.readouterr().out


def test_a_file_that_cannot_be_written(export: Export, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export.span("submit", 0, 9)
    export.read()
    assert main([str(export.path), "--output", str(tmp_path / "no/such/x.parquet")]) == DataError.exit_code
    assert "x.parquet: cannot be written" in capsys.readouterr().err


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
    assert captured.err == f"error: {tmp_path / 'none.sqlite'}: no such file\n"


@pytest.mark.skipif(not REAL.exists(), reason="the shared traces are not beside this checkout")
def test_a_real_profile() -> None:
    total = read_profile(REAL).total
    assert (total.launch_calls, total.kernels, total.ranges) == (1312, 1312, 0)
    assert (total.call_ms, total.call_us_min, total.call_us_max) == (5.473753, 3.156, 34.255)

"""`python -m runner.trace`: the table, the files it leaves, and what it says of bad and of empty traces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.paths import ROOT
from support.results.kineto_events import TRACES, call, kernel, raw, written

from launchopt.analysis.profiles.launch_rows import LAUNCH_KERNELS
from runner.ending import outcome
from runner.profiles import trace, trace_screen
from runner.profiles.trace import main
from runner.screen.pager import PIPED_COLUMNS

SOME = [call(0, 4, 1), kernel(6, 3, 1), call(8, 2, 2, "cuLaunchKernel", cat="cuda_driver"), kernel(11, 9, 2, stream=8)]
CPU_ONLY = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]
TABLE = """\
                                      trace.json
launch calls                                   2
  cudaLaunchKernel                             1
  cuLaunchKernel                               1
  without a kernel                             0
kernels                                        2
  without a call                               0
kernels per launch call                            1.000
host time in launch calls, sum us          6.000
host time in launch calls, p50 us          3.000
host time in launch calls, p99 us          3.980
launch delay, sum us                       3.000
launch delay, p50 us                       1.500
launch delay, p99 us                       1.990
  sum before clipping, us                  3.000
  kernel began before its call returned                                 0
call to kernel start, sum us                     9.000
call to kernel start, p50 us                     4.500
call to kernel start, p99 us                     5.970
GPU events                                     2
GPU busy, ms                               0.012
GPU idle, ms                               0.002
  nothing launched, ms                     0.000
  within a launch call, ms                 0.001
  launched, not begun, ms                  0.001
longest queue of a stream                      1
kernels under 1 us                      0 (0.0%)
kernels under 2 us                      0 (0.0%)
kernels under 5 us                     1 (50.0%)
kernels under 10 us                   2 (100.0%)
kernels shorter than their launch call  1 (50.0%)
memory calls                                   0
  without a GPU event                          0
copies and fills                               0
  without a call                               0

stream      calls  GPU events  longest queue  queue p50
7 of GPU 0      1           1              1      1.000
8 of GPU 0      1           1              1      1.000

GPU idle 14% of the time. Of the idle time: nothing launched 0%, within a launch call 50%, launched, not begun 50%
Not launch-bound: the GPU is busy most of the time.
"""


def words(text: str) -> list[list[str]]:
    """Lines without what depends on the width of columns."""
    return [line.split() for line in text.splitlines()]


def test_table_of_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(written(tmp_path, SOME))]) == 0
    shown = capsys.readouterr()
    assert words(shown.out) == words(TABLE)
    assert shown.err == ""


def test_the_table_of_operators_says_what_its_parts_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 9, "pid": 1, "tid": 1}
    launch = call(4, 3, 1) | {"pid": 1, "tid": 1}
    assert main([str(written(tmp_path, [operator, launch, kernel(8, 3, 1)]))]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "operator: medians, us calls launches framework inner driver before it sum, ms aten::mm 1 1 " in shown
    assert trace_screen.OPERATORS_LEGEND in shown


def test_a_pipe_has_whole_names_of_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "autograd::engine::evaluate_function: " + 2 * "torch::autograd::AccumulateGrad, "
    operator = {"ph": "X", "cat": "cpu_op", "name": name.strip(), "ts": 1, "dur": 9, "pid": 1, "tid": 1}
    assert main([str(written(tmp_path, [operator, call(4, 3, 1), kernel(8, 3, 1)]))]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("autograd"))
    assert row.startswith(name.strip())
    assert row.split()[-1] == "0.009"


def test_a_column_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = written(tmp_path / "a", SOME[:2])
    second = written(tmp_path / "b", [*SOME[2:], call(20, 1, 5, "cudaMemcpyAsync")], is_gzip=True)
    assert main([str(first), str(second)]) == 0
    lines = words(capsys.readouterr().out)
    assert lines[0] == ["a/trace.json", "b/trace.json"]
    assert ["cudaLaunchKernel", "1", "-"] in lines
    assert ["cuLaunchKernel", "-", "1"] in lines
    assert ["launch", "delay,", "sum", "us", "2.000", "1.000"] in lines
    assert ["memory", "calls", "0", "1"] in lines
    assert "stream" not in [line[0] for line in lines if line]


def test_json_has_everything(tmp_path: Path) -> None:
    path, output = written(tmp_path, SOME), tmp_path / "statistics.json"
    assert main([str(path), "--json", str(output)]) == 0
    found = json.loads(output.read_text())
    assert found["schema_version"] == 1
    (one,) = found["files"]
    assert one["file"] == str(path)
    assert one["launch_delay"] == {
        "count": 2, "sum_us": 3.0, "p50_us": 1.5, "p99_us": 1.99, "min_us": 1.0, "max_us": 2.0,
    }  # fmt: skip
    assert [queue["stream"] for queue in one["queues"]] == [7, 8]


def test_parquet_has_a_row_a_pair_of_every_file(tmp_path: Path) -> None:
    files = [str(written(tmp_path, SOME, name)) for name in ("a.json", "b.json")]
    output = tmp_path / "pairs.parquet"
    assert main([*files, "--output", str(output)]) == 0
    table = pq.read_table(output)
    assert table.column_names == LAUNCH_KERNELS.names
    assert table.schema.field("launch_delay_ns").metadata[b"doc"]
    rows = table.select(["file", "api", "launch_delay_ns", "stream"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        row for file in files for row in ((file, "cudaLaunchKernel", 2000, 7), (file, "cuLaunchKernel", 1000, 8))
    ]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_times_may_be_said_to_be_ns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(written(tmp_path, SOME)), "--time-unit", "ns"]) == 0
    assert ["launch", "delay,", "sum", "us", "0.003"] in words(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("events", "note"),
    [
        ([], "a trace without events"),
        (
            CPU_ONLY * 1200,
            "no CUDA call and no GPU event among 1,200 events: a trace of the CPU alone. launchopt advise --trace takes"
            " its GEMMs",
        ),
    ],
)
def test_nothing_of_cuda_is_said_and_no_error(
    tmp_path: Path, events: list[dict[str, object]], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = written(tmp_path, events), tmp_path / "pairs.parquet"
    assert main([str(path), "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"{path}: {note}\n"
    assert pq.read_table(output).num_rows == 0


@pytest.mark.parametrize(
    ("events", "note"),
    [
        (SOME[:1], "no GPU events: was the GPU traced?"),
        (SOME[1:2], "no CUDA calls: was the CPU traced?"),
        ([*SOME, kernel("?", 1, 1)], "CUDA events left out, without a usable time or duration: 1\n"),
        ([*SOME, call(1, 1, 1, "cuLaunchKernel")], "records within another of the same call, not counted again: 1\n"),
    ],
)
def test_notes(tmp_path: Path, events: list[dict[str, object]], note: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, events)
    assert main([str(path)]) == 0
    assert f"{path}: {note}" in capsys.readouterr().out


def test_many_streams_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [each for n in range(1, 15) for each in (call(9 * n, 1, n), kernel(9 * n + 2, 1, n, stream=n))]
    assert main([str(written(tmp_path, events))]) == 0
    shown = capsys.readouterr().out
    assert shown.count(" of GPU 0") == trace_screen.STREAMS_SHOWN
    assert "and 4 streams with shorter queues: --json has them" in shown


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b'{"a": 1}', "JSON, but no trace"),
        (b"[{}, ", None),
        (b"[{", "not JSON before the first event (the file was cut short)"),
        (b"\x1f\x8b\x08", "the gzip stream is damaged at its start"),
        (b"SQLite format 3\0", "cannot be read as SQLite"),
        (b"text", "no trace: expected Kineto or Chrome JSON"),
    ],
)
def test_bad_files_leave_nothing(
    tmp_path: Path, content: bytes, problem: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = written(tmp_path, SOME), raw(tmp_path, content, "bad")
    outputs = ["--output", str(tmp_path / "pairs.parquet"), "--json", str(tmp_path / "statistics.json")]
    status = main([str(good), str(bad), *outputs])
    shown = capsys.readouterr()
    assert status == (0 if problem is None else 2)
    if problem is not None:
        assert shown.err.startswith(f"error: {bad}: {problem}")
        assert shown.err.count("\n") == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "trace.json"]
        assert shown.out == ""


@pytest.mark.parametrize(("option", "name"), [("--output", "file.parquet"), ("--json", "file.json")])
def test_an_output_that_cannot_be_written(
    tmp_path: Path, option: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none" / name
    assert main([str(written(tmp_path, SOME)), option, str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: cannot be written (")


def test_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trace, "_read", interrupted)
    words = [str(written(tmp_path, SOME)), "--output", str(tmp_path / "pairs.parquet")]
    assert outcome(lambda: main(words)) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_help_explains_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["--help"])
    assert exited.value.code == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("Launch delay", "nothing launched", "queue", "--time-unit", "--output"))


def test_memory_does_not_grow_with_what_is_not_kept(tmp_path: Path) -> None:
    """A trace of operators, twenty times as long and of over 30 MiB, takes some 10 MiB more, not 30."""
    # Not ru_maxrss: a child's begins with its parent's.
    code = "import sys; from runner.profiles.trace import main; main(sys.argv[1:]); "
    code += "print(*(line for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    operator = {**CPU_ONLY[0], "args": {"Input Dims": [[8, 4096]] * 20, "stack": "x" * 500}}
    peak_kib = []
    for length in (2_000, 40_000):
        path = written(tmp_path, [*SOME, *[operator] * length])
        command = [sys.executable, "-W", "ignore", "-c", code, str(path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        peak_kib.append(int(shown.split()[-2]))
    assert path.stat().st_size > 30 << 20
    assert peak_kib[1] - peak_kib[0] < 16 << 10


@pytest.mark.skipif(not TRACES.exists(), reason="no published traces: download them from their sources")
def test_published_traces_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path) for path in sorted(TRACES.iterdir()) if path.is_file()]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.partition("\n\n")[0].splitlines())) <= PIPED_COLUMNS
    lines = words(text)
    kernels = [line for line in lines if line[:1] == ["kernels"] and line[1] not in ("per", "under", "shorter")]
    assert kernels == [["kernels", "1,312", "60"], ["kernels", "1,154"]]
    host = [line[-2:] for line in lines if line[:6] == ["host", "time", "in", "launch", "calls,", "sum"]]
    assert host == [["5,473.753", "324.734"], ["us", "9,475.000"]]
    queues = [line[5:] for line in lines if line[:5] == ["longest", "queue", "of", "a", "stream"]]
    assert queues == [["2", "1"], ["80"]]

"""Files that the user names: any name that the file system holds is written, also one that is not UTF-8."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.paths import TESTS
from support.results.summary_rows import repeats, write

from launchopt.errors import DataError
from launchopt.files import save_text
from launchopt.recording.results import read_summaries, write_manifest
from runner import commands, dataset
from runner.profiles import nsys, trace
from runner.reading import file_named

NAMES = {"short": b"a", "no UTF-8": b"\xff\xfe", "longest": b"a" * 247, "quotes": b"x'\"[b]{a}%s", "line": b"a\nb"}
Program = Callable[[Path, Path], int]


def dataset_of(folder: Path, output: Path) -> int:
    run = write(folder / os.fsdecode(b"run\xff"), repeats(1.0))
    write_manifest(run, {"run_id": "run"})
    return dataset.main([str(run), "--output", str(output)])


def trace_of(folder: Path, output: Path) -> int:
    copy = folder / os.fsdecode(b"\xff.json")
    copy.write_bytes((TESTS / "corpus/kineto.json").read_bytes())
    return trace.main([str(copy), "--output", str(output)])


def nsys_of(folder: Path, output: Path) -> int:
    copy = folder / os.fsdecode(b"\xff.sqlite")
    copy.write_bytes((TESTS / "corpus/nsys.sqlite").read_bytes())
    return nsys.main([str(copy), "--output", str(output)])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("program", [dataset_of, trace_of, nsys_of])
def test_a_table_is_written_under_any_name(program: Program, name: str, tmp_path: Path) -> None:
    output = tmp_path / "out" / os.fsdecode(NAMES[name] + b".parquet")
    output.parent.mkdir()
    assert program(tmp_path, output) == 0
    assert [*output.parent.iterdir()] == [output]
    assert output.read_bytes()[:4] == b"PAR1"


OUTPUTS = {
    "dataset outputs --output": "a.parquet",
    "trace kineto.json --output": "a.parquet",
    "nsys nsys.sqlite --output": "a.parquet",
    "report outputs --output": "a.md",
    "report outputs --html": "a.html",
    "report outputs --plot": "a.svg",
    "report outputs --timeline": "a.json.gz",
    "report outputs --json": "a.json",
    "compare outputs outputs --markdown": "a.md",
    "doctor --save": "a.json",
}


@pytest.mark.parametrize("words", OUTPUTS)
def test_what_is_no_file_is_not_replaced(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    output = Path(OUTPUTS[words])
    named = file_named(output.suffix)
    assert named(str(output)) == output
    output.write_text("the last one")
    assert named(str(output)) == output
    output.unlink()
    os.mkfifo(output)
    for kind in ("a named pipe", "a device"):
        with pytest.raises(SystemExit, match="2"):
            commands.main([*words.split(), str(output)])
        line = capsys.readouterr().err.splitlines()[0]
        option = words.rpartition(" ")[2]
        assert line == f"error: {option}: {output}: {kind}, not a regular file"
        assert os.path.lexists(output)
        output.unlink()
        output.symlink_to("/dev/null")


@pytest.mark.parametrize("words", ["dataset run --output run/summary.parquet", "report run --json run/manifest.json"])
def test_results_of_a_run_are_not_replaced(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = write(Path("run"), repeats(1.0))
    write_manifest(run, {"run_id": "run"})
    before = {path: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(SystemExit, match="2"):
        commands.main(words.split())
    line = capsys.readouterr().err.splitlines()[0]
    *_, option, output = words.split()
    assert line == f"error: {option}: {output}: holds results of a run or a sweep: give another name"
    assert {path: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.parametrize("name", ["run/all.parquet", "summary.parquet"])
def test_a_dataset_goes_beside_results_of_a_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_manifest(write(Path("run"), repeats(1.0)), {"run_id": "run"})
    for _ in range(2):
        assert dataset.main(["run", "--output", name]) == 0


def test_a_file_is_replaced_and_a_pipe_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    for text in ("first", "second"):
        save_text(path, text)
        assert path.read_text() == text
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"a\.md: cannot be written \(a named pipe, not a regular file\)"):
        save_text(path, "third")
    assert path.is_fifo()


def test_a_run_keeps_its_results_in_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"run\xff")
    job = ["workload=gemv_micro", "workload.commands=20", "workload.m=4", "workload.k=4", "workload.cache=hot"]
    done = commands.main([*job, "mode=baseline", "device=cpu", "record.launches=all", f"hydra.run.dir='{folder}'"])
    assert done == 0
    (row,) = read_summaries([folder])
    assert row["run_id"] == f"{tmp_path.name}/run\\xff"
    assert {path.name for path in folder.glob("*.parquet")} == {
        *("histograms.parquet", "launches.parquet", "summary.parquet")
    }

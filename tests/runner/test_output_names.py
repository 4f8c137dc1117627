"""Files that the user names: any name that the file system holds is written, also one that is not UTF-8."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from support.paths import ROOT, TESTS
from support.results.summary_rows import repeats, write

from launchopt.errors import DataError
from launchopt.files import save_text
from launchopt.recording.results import read_summaries, write_manifest
from runner import commands, dataset
from runner.output_names import FLOORS, file_named
from runner.profiles import nsys, trace

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


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an input for each command; it is the current one."""
    monkeypatch.chdir(tmp_path)
    write_manifest(write(Path("run"), repeats(1.0)), {"run_id": "run"})
    for name in ("kineto.json", "calibration.json", "nsys.sqlite", "model.json"):
        shutil.copyfile(TESTS / "corpus" / name, name)
    for name in ("nsys.parquet", "ncu.parquet", "trace.parquet", "page.md", "mooncake.json", "run/all.parquet"):
        Path(name).write_text("kept")
    Path("model").mkdir()
    shutil.copyfile("model.json", "model/config.json")
    Path("run/frontier.json").write_text('{"slo_p99_us": 500.0}\n')
    Path("torn").mkdir()
    shutil.copyfile("run/summary.parquet", "torn/summary.parquet")
    return tmp_path


ONTO_INPUTS = [
    "trace kineto.json --json kineto.json",
    "trace kineto.json trace.parquet --output ./trace.parquet",
    "budget model=./model.json tokens_per_day=1e6 --json model.json",
    "budget model=./model tokens_per_day=1e6 --json model/config.json",
    "verdict run --calibration calibration.json --json calibration.json",
    "prefixes mooncake.json --json mooncake.json",
    "nsys nsys.parquet --output nsys.parquet",
    "nsys_compare batched=nsys.sqlite graph=nsys.parquet --output nsys.parquet",
    "nsys_agree nsys.parquet --output nsys.parquet",
    "nsys_agree nsys.sqlite --run torn --output torn/summary.parquet",
    "ncu ncu.parquet --output ncu.parquet",
    "dataset torn --output torn/summary.parquet",
    "dataset run/all.parquet --output run/all.parquet",
    "compare run page.md:baseline --markdown page.md",
    "report run --output page.md --readme page.md",
]


def all_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("words", ONTO_INPUTS)
def test_a_file_to_write_is_none_of_the_inputs(
    words: str, inputs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = all_files(inputs)
    command, *given = words.split()
    at = next(place for place, word in enumerate(given) if word in ("--json", "--output", "--markdown")) + 1
    output = Path(given[at])
    Path("by_link" + output.suffix).symlink_to(output)
    os.link(output, "hard" + output.suffix)
    spellings = [given[at], str(output.absolute()), f"run/../{output}", "by_link" + output.suffix]
    if output.name not in ("config.json", "summary.parquet"):  # found by their names in a folder
        spellings.append("hard" + output.suffix)
    for spelling in spellings:
        given[at] = spelling
        with pytest.raises(SystemExit, match="2"):
            commands.main([command, *given])
        line = capsys.readouterr().err.splitlines()[0]
        assert line == f"error: {given[at - 1]} {Path(spelling)}: is also an input; name another file"
    assert {path: content for path, content in all_files(inputs).items() if path in before} == before


def test_every_command_that_reads_and_writes_has_such_a_test() -> None:
    """`record` refuses any existing file; `doctor` and `tune` read no file that they do not also write."""
    tested = {words.split()[0] for words in ONTO_INPUTS}
    of_files = set()
    for name, command in commands.SUBCOMMANDS.items():
        source = inspect.getsource(import_module(command.module))
        if "file_named(" in source or "add_json(" in source:
            of_files.add(name)
    assert of_files - tested == {"record", "doctor", "tune"}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("verdict run --json calibration.json", "a calibration"),
        ("report run --json calibration.json", "a calibration"),
        ("report run --json run/frontier.json", "the objective of a report"),
        ("budget tokens_per_day=1e6 launches_per_token=9 launch_us=5 --json tuning.json", "a table of mode=auto"),
    ],
)
def test_files_that_commands_find_by_themselves_are_not_replaced(
    words: str, what: str, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("tuning.json").write_text('{"schema_version": 1, "entries": []}')
    before = all_files(inputs)
    with pytest.raises(SystemExit, match="2"):
        commands.main(words.split())
    output = words.split()[-1]
    assert capsys.readouterr().err.splitlines()[0] == f"error: --json {output}: holds {what}; name another file"
    assert all_files(inputs) == before


def test_standard_input_is_an_input(inputs: Path) -> None:
    before = all_files(inputs)
    with Path("kineto.json").open() as source:
        call = [sys.executable, "-m", "runner", "trace", "-", "--json", "kineto.json"]
        done = subprocess.run(
            call, stdin=source, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --json kineto.json: is also an input; name another file\n")
    assert all_files(inputs) == before


def test_two_options_write_two_files(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        commands.main(["doctor", "--save", "new.json", "--json", "./new.json"])
    line = "error: --json new.json: is also the file of --save; name another file"
    assert capsys.readouterr().err.splitlines()[0] == line
    assert not Path("new.json").exists()


def test_an_earlier_output_in_the_folder_of_results_is_replaced(inputs: Path) -> None:
    for _ in range(2):
        assert commands.main(["report", "run", "--json", "run/tables.json", "--output", "run/page.md"]) == 0
        assert commands.main(["trace", "kineto.json", "--json", "statistics.json"]) == 0
        assert file_named(".json", replaces=FLOORS)("calibration.json") == Path("calibration.json")


def test_a_benchmark_does_not_go_into_results_of_a_run(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = all_files(inputs)
    assert commands.main(["bench", "ring", "--device", "cpu", "--output", "run"]) == 2
    line = "error: --output=run: holds summary.parquet, which no benchmark wrote: name another folder\n"
    assert capsys.readouterr().err == line
    assert all_files(inputs) == before

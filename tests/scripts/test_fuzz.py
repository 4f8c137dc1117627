"""Hostile folders of results: a few are tried, and a faulty command would be found."""

from __future__ import annotations

import importlib
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from support.paths import ROOT
from support.processes.own_run import eventually, on_linux
from support.results import hostile_commands
from support.results.hostile_commands import KINDS, commands, tried
from support.results.hostile_folders import good, made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return good(tmp_path_factory.mktemp("good") / "runs")


def test_the_good_folder_is_read_by_every_command(source: Path) -> None:
    for words in commands(source, source, random.Random(0)):
        if words[0] not in ("compare", "nsys_agree"):
            assert hostile_commands._code(words) == 0, words


def test_hostile_folders_are_read_or_refused_in_a_line(source: Path, tmp_path: Path) -> None:
    for number in range(3):
        generator = random.Random(number)
        folder = made(source, tmp_path / str(number), generator)
        assert tried(commands(folder, source, generator), folder) == []


@pytest.mark.parametrize("kind", KINDS)
def test_harm_is_found(kind: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def harm(words: list[str]) -> int:
        if kind == "traceback":
            raise ZeroDivisionError
        if kind == "hang":
            while True:
                pass
        if kind == "memory":
            return len(b"x" * (3 * hostile_commands.MORE_BYTES)) * 0
        if kind == "outside":
            (tmp_path / "beside").touch()
        if kind == "escape":
            print("\x1b[2J")
        if kind == "message":
            print("x" * 1000, file=sys.stderr)
        return 7 if kind == "code" else 0

    monkeypatch.setattr(hostile_commands, "WALL_S", 0.5 if kind == "hang" else 60.0)
    monkeypatch.setattr(hostile_commands, "dispatch", harm)
    folder = made(source, tmp_path / "folder", random.Random(0))
    (found,) = tried([["report", str(folder)]], folder)
    assert found.kind == kind


def test_a_second_start_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    fuzz = importlib.import_module("fuzz")
    path = tmp_path / "score.json"
    words = ["csv", "--json", str(path), "--keep", str(tmp_path / "keep")]
    for count in (1, 2):
        assert fuzz.main([*words, "--count", str(count)]) == 0
        about = json.loads(path.read_text())
        assert (about["next"], about["tried"]) == (count, {"csv": 20 * count})
        assert about["counts"] == dict.fromkeys(KINDS, 0)
    assert "csv: 40 tried, 0 did harm" in capsys.readouterr().out


def test_workers_try_the_same_inputs_and_another_campaign_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAUNCHOPT_GIT_REVISION", "a" * 40)
    path = tmp_path / "score.json"
    call = [sys.executable, str(ROOT / "scripts/fuzz.py"), "csv", "overrides", "--keep", str(tmp_path / "keep")]
    subprocess.run([*call, "--json", str(path), "--workers", "2", "--seed", "4", "--count", "2"], check=True)
    about = json.loads(path.read_text())
    assert (about["seed"], about["next"]) == (4, 6)
    assert (about["tried"], about["started"]) == ({"csv": 40, "overrides": 2}, {"run": 2})
    assert about["environment"]["git_revision"] == "a" * 40
    assert list((tmp_path / "keep").iterdir()) == []
    monkeypatch.setenv("LAUNCHOPT_GIT_REVISION", "b" * 40)
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    fuzz = importlib.import_module("fuzz")
    assert fuzz.main(["csv", "--json", str(path), "--seed", "4", "--count", "3"]) == 2
    assert "of another campaign" in capsys.readouterr().err


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("fuzz")


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("f.json", "{}", "not what scripts/fuzz.py writes: started_utc"),
        ("f.json", "{", "cannot be read as JSON"),
        ("no/such/f.json", None, "no/such is no folder"),
        ("f.json", {"what": ["overrides"]}, "of another campaign (what overrides, not csv)"),
        ("f.json", {"what": None, "tried": {"configs": 3}}, "of another campaign (what configs, not csv)"),
        ("f.json", {"what": "csv"}, "not what scripts/fuzz.py writes: what"),
        ("f.json", {"seed": 7}, "of another campaign (seed 7, not 0)"),
    ],
)
def test_a_file_that_is_no_score_of_this_campaign_is_refused_in_a_line(
    name: str, content: Any, wanted: str, fuzz: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if isinstance(content, dict):
        fuzz.Score.read(None, 0, ["csv"]).write(path)
        path.write_text(json.dumps(json.loads(path.read_text()) | content))
    elif content is not None:
        path.write_text(content)
    assert fuzz.main(["csv", "--count", "1", "--json", str(path), "--keep", str(tmp_path / "keep")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert wanted in said.err


def test_a_file_without_its_kinds_of_input_continues_and_a_folder_that_cannot_be_made_is_named(
    fuzz: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.json"
    words = ["--json", str(path), "--keep", str(tmp_path / "keep")]
    assert fuzz.main(["csv", "csv", "--count", "1", *words]) == 0
    about = json.loads(path.read_text())
    assert (about.pop("what"), about["tried"]) == (["csv"], {"csv": 20})
    path.write_text(json.dumps(about))
    assert fuzz.main(["csv", "--count", "2", *words]) == 0
    assert json.loads(path.read_text())["tried"] == {"csv": 40}
    assert fuzz.main(["csv", "--count", "1", "--keep", str(path / "keep")]) == 2
    assert "cannot be made" in capsys.readouterr().err


HANGS = """
import sys, time
from pathlib import Path
sys.path[:0] = {paths}
import fuzz
from support.results import hostile_commands

def hang(words):
    Path({mark!r}).touch()
    while True:
        time.sleep(1)

def tried(name, number, folder, keep):
    if number >= 20:
        hostile_commands.tried([["report"]], folder)
    return fuzz.Trial(name, number, [], [])

hostile_commands.dispatch, fuzz._try = hang, tried
if __name__ == "__main__":
    raise SystemExit(fuzz.main())
"""


@on_linux
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_ends_a_round_that_hangs_and_keeps_those_before_it(workers: str, tmp_path: Path) -> None:
    program, path, mark = (tmp_path / name for name in ("hangs.py", "f.json", "hangs"))
    program.write_text(HANGS.format(paths=[str(ROOT), str(ROOT / "tests"), str(ROOT / "scripts")], mark=str(mark)))
    call = [sys.executable, str(program), "csv", "--count", "9", "--workers", workers, "--json", str(path)]
    with subprocess.Popen([*call, "--keep", str(tmp_path / "keep")], start_new_session=True) as script:
        try:
            eventually(lambda: path.exists() and mark.exists())
            below = psutil.Process(script.pid).children(recursive=True)
            script.send_signal(signal.SIGINT)
            assert script.wait(10) == 130
        finally:
            script.kill()
    psutil.wait_procs(below, 10)
    assert len(below) >= int(workers)
    assert not [each for each in below if each.is_running()]
    assert json.loads(path.read_text())["next"] == 1
    assert list((tmp_path / "keep").iterdir()) == []


@on_linux
def test_workers_end_with_the_script(tmp_path: Path) -> None:
    call = [sys.executable, str(ROOT / "scripts/fuzz.py"), "csv", "--workers", "2", "--minutes", "9", "--keep"]
    with subprocess.Popen([*call, str(tmp_path)], start_new_session=True) as script:
        try:
            workers = eventually(lambda: _workers(script.pid))
            eventually(lambda: list(tmp_path.glob("rounds-*/*")))  # they are bound before their first round
        finally:
            script.kill()
    psutil.wait_procs(workers, 20)
    assert not [each for each in workers if each.is_running()]


def _workers(pid: int) -> list[psutil.Process]:
    """The children of the script once both workers are there. A child may end while it is looked at: asked again."""
    try:
        found = [each for each in psutil.Process(pid).children() if each.status() != psutil.STATUS_ZOMBIE]
        return found if sum("--multiprocessing-fork" in each.cmdline() for each in found) == 2 else []
    except psutil.NoSuchProcess:
        return []

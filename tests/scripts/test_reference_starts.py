"""scripts/reference.py with bad input, signals, and several starts: one line, and no part is made of two tries."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

from launchopt.errors import ConfigError, DataError
from scripts import reference_machine, reference_states
from scripts.reference_machine import Place
from scripts.reference_part import Part
from scripts.reference_running import Running

REVISION = "f" * 40
MADE = Path("cpu/small")
WRITES = 'from pathlib import Path; p = Path(r"{folder}"); p.mkdir(parents=True); '


def part(code: str) -> Part:
    return Part(str(MADE), "cpu", 1, (f"python -c '{WRITES}{code}'",))


def manifest(revision: str = REVISION, **more: object) -> str:
    about = {"schema_version": 4, "environment": {"git_revision": revision, "git_dirty": None, **more}}
    text = json.dumps(json.dumps(about)).replace("{", "{{").replace("}", "}}")  # the command has places in braces
    return f'(p / "manifest.json").write_text({text})'


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LAUNCHOPT_GIT_REVISION", REVISION)
    return importlib.import_module("scripts.reference")


@pytest.mark.parametrize("content", ["", "[]", '{"cpu/small": 3}', '{"cpu/small": {}}', '{"cpu/sm', "\udcff"])
def test_states_that_cannot_be_read_are_named(
    content: str, reference: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / reference_states.FILE).write_bytes(content.encode(errors="surrogateescape"))
    for words in ([], ["--list"]):
        assert reference.main([*words, "--output", str(tmp_path)], (part(manifest()),)) == 2
        said = capsys.readouterr()
        assert "parts.json" in said.err
        assert "give another --output" in said.err
        assert said.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [reference_states.FILE]


def test_a_folder_or_a_loop_of_links_is_no_file_of_states(tmp_path: Path) -> None:
    (tmp_path / reference_states.FILE).mkdir()
    with pytest.raises(DataError, match="Is a directory"):
        reference_states.read_states(tmp_path)
    (tmp_path / reference_states.FILE).rmdir()
    (tmp_path / reference_states.FILE).symlink_to(reference_states.FILE)
    with pytest.raises(DataError, match="symbolic links"):
        reference_states.read_states(tmp_path)


@pytest.mark.parametrize("below", ["", "below"])
def test_an_output_that_is_a_file_or_cannot_be_made_is_refused(
    below: str, reference: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert reference.main(["--output", str(tmp_path / "file" / below)], (part(manifest()),)) == 2
    assert capsys.readouterr().err.startswith("error: --output=")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_two_starts_do_not_share_an_output(reference: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with reference_states.held(tmp_path):
        assert reference.main(["--output", str(tmp_path)], (part(manifest()),)) == 2
        assert "another start measures into it" in capsys.readouterr().err
    assert reference.main(["--output", str(tmp_path)], (part(manifest()),)) == 0


def test_results_of_no_start_are_neither_removed_nor_mixed(
    reference: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / MADE).mkdir(parents=True)
    (tmp_path / MADE / "manifest.json").write_text("{}")
    assert reference.main(["--output", str(tmp_path)], (part(manifest()),)) == 2
    assert "cpu/small there is of no earlier start" in capsys.readouterr().err
    assert (tmp_path / MADE / "manifest.json").read_text() == "{}"


def test_what_a_killed_start_left_is_removed(reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(running: Running, *words: object) -> None:
        (tmp_path / MADE).mkdir(parents=True)
        (tmp_path / MADE / "leftover").touch()
        raise KeyboardInterrupt

    ran = Running.ran
    monkeypatch.setattr(Running, "ran", killed)
    with pytest.raises(KeyboardInterrupt):
        reference.main(["--output", str(tmp_path)], (part(manifest()),))
    monkeypatch.setattr(Running, "ran", ran)
    assert reference_states.state_of(part(manifest()), tmp_path, REVISION)["state"] == "begun"
    assert reference.main(["--output", str(tmp_path)], (part(manifest()),)) == 0
    assert [path.name for path in (tmp_path / MADE).iterdir()] == ["manifest.json"]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (manifest("e" * 40), "the code was changed meanwhile"),
        (manifest(code_sha1="c0de"), "the code was changed meanwhile"),
        ('(p / "manifest.json").write_text("[1")', "manifest.json cannot be read as JSON"),
        ('(p / "manifest.json").write_text("[]")', "manifest.json cannot be read as JSON (not an object)"),
        ('(p / "manifest.json").mkdir()', "manifest.json cannot be read as JSON"),
        ("pass", "no manifest"),
    ],
)
def test_results_that_cannot_be_committed_fail(
    code: str, why: str, reference: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reference.main(["--output", str(tmp_path)], (part(code),)) == 1
    assert why in capsys.readouterr().out


@pytest.mark.parametrize("named", ["main", "v1.0", "abc", REVISION + "f", REVISION[:10] + " "])
def test_a_name_that_is_no_revision_is_refused(
    named: str, reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAUNCHOPT_GIT_REVISION", named)
    assert reference.main(["--output", str(tmp_path / "new")], (part(manifest()),)) == 2
    assert "7 to 40 hexadecimal digits" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_more_parts_at_a_time_than_gpus_or_cores_are_refused(
    reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference_machine, "usable", lambda: [0, 1])
    assert reference.main(["--gpus", "9", "--output", str(tmp_path / "new")], (part(manifest()),)) == 2
    assert "--gpus=9: must be from 1 to 2, the cores" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert reference_machine.shortage(2, runs_gpu=True) == "must be from 1 to 1, the GPUs of this machine"


@pytest.fixture
def place() -> Place:
    return Place()


def sleeps(path: Path) -> list[str]:
    """A command that starts another; both write their numbers."""
    code = f"echo $$ >> {path}; sh -c 'echo $$ >> {path}; sleep 60; true'; true"
    return ["sh", "-c", code]


def ended(path: Path) -> bool:
    return not any(Path(f"/proc/{number}").exists() for number in path.read_text().split())


def until(is_true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not is_true() and time.monotonic() < ends:
        time.sleep(0.02)
    assert is_true()


def test_a_command_ends_with_all_that_it_started(tmp_path: Path, place: Place) -> None:
    assert Running().ran(sleeps(tmp_path / "numbers"), 0.5, place) == (None, "")
    until(lambda: ended(tmp_path / "numbers"))


def test_no_command_begins_after_the_end(place: Place) -> None:
    running = Running()
    running.stop()
    assert running.ran(["true"], 5, place) == (130, "interrupted")


def test_a_program_that_is_not_there_is_told(place: Place) -> None:
    code, text = Running().ran(["no-such-program"], 5, place)
    assert (code, "no-such-program" in text) == (127, True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("gpus", ["1", "2"])
def test_a_signal_ends_all_commands_in_one_line(number: int, code: int, gpus: str, tmp_path: Path) -> None:
    new, numbers = tmp_path / "new", tmp_path / "numbers"
    commands = [f"sh -c {json.dumps(sleeps(numbers)[2])}"]
    program = f"""
import sys
from runner.ending import end
from scripts import reference, reference_machine
from scripts.reference_part import Part
reference_machine.usable = lambda: [0, 0]
parts = [Part(f"cpu/{{at}}", "cpu", 1, tuple({commands!r})) for at in range(3)]
end(lambda: reference.main(["--output", {str(new)!r}, "--gpus", {gpus!r}], parts))
"""
    about = os.environ | {"LAUNCHOPT_GIT_REVISION": REVISION, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program], env=about, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: numbers.is_file() and len(numbers.read_text().split()) == 2 * int(gpus))
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said.count("\n")) == (code, 1), said
    assert "interrupted" in said
    until(lambda: ended(numbers))
    states = reference_states.read_states(new)
    assert [each["state"] for each in states.values()] == ["begun"] * int(gpus)


def test_what_cannot_be_removed_is_named(tmp_path: Path) -> None:
    reference_states.save_state(part(""), tmp_path, {"state": "failed"})
    (tmp_path / MADE).parent.mkdir()
    (tmp_path / MADE).symlink_to(MADE.name)
    with pytest.raises(DataError, match="an earlier try cannot be removed"):
        reference_states.begin(part(""), tmp_path, REVISION)
    with pytest.raises(ConfigError, match="--output"), reference_states.held(tmp_path / MADE):
        pass

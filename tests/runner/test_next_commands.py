"""Each command that a result proposes next runs, and does what the text says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.own_process import environ_of

from runner import commands
from runner.run.screens.run_results import next_command

TINY = "device=cpu workload.m=16 workload.k=16 workload.commands=8 workload.cache=hot mode=batched"


def lines_of(words: str, folder: Path) -> list[str]:
    """Run an experiment in a process of its own; return what it prints."""
    command = [sys.executable, "-m", "runner", *words.split()]
    done = subprocess.run(
        command, cwd=folder, env=environ_of(), capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout.splitlines()


def test_the_same_command_with_the_proposed_repeats_takes_that_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = lines_of(f"{TINY} repeats=2 against=baseline hydra.run.dir=first", tmp_path)
    assert first[-2] == "next: the same command with repeats=5"
    again = lines_of(f"{TINY} repeats=5 against=baseline hydra.run.dir=second", tmp_path)
    assert any(re.fullmatch(r" +repeats +5 +5 +", line) for line in again)
    assert re.fullmatch(r"next: (the same command with repeats=\d\d+|launchopt verdict second {4}.*)", again[-2])
    assert commands.main(["verdict", str(tmp_path / again[-1])]) == 0
    sides = [f"{tmp_path / 'first'}:{mode}" for mode in ("baseline", "batched")]
    assert commands.main(["compare", *sides]) == 0
    assert "next: the same run with repeats=5" in " ".join(capsys.readouterr().out.split())


def test_a_folder_in_a_proposed_command_is_quoted_for_the_shell() -> None:
    command = next_command([], "out/night ly").partition("    (")[0]
    assert shlex.split(command) == ["launchopt", "verdict", "out/night ly"]


def test_a_run_with_a_waterfall_says_how_to_see_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(f"{TINY} waterfall=[[baseline,grouped,batched]] hydra.run.dir=first", tmp_path)
    assert lines[-2] == "what each choice brings: launchopt report first --waterfall"
    assert any(re.fullmatch(r" +repeats +5 +5 +5 +", line) for line in lines), "each mode runs once a repeat"
    assert commands.main(["report", str(tmp_path / lines[-1]), "--waterfall"]) == 0
    assert "### baseline to batched, 5 repeats" in capsys.readouterr().out

"""CONTRIBUTING.md is part of the product: its mode is found by being a file, runs, and is verified."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from support.paths import ROOT
from support.processes.own_process import environ_of

from launchopt.recording import results

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def example() -> tuple[str, str]:
    """The path of the worked example, as the text names it, and its source."""
    found = re.search(r"`(launchopt/modes/\w+\.py)`:\n\n```python\n(.*?)```", TEXT, re.S)
    assert found
    return found[1], found[2]


def commands(start: str) -> list[list[str]]:
    lines = [line.split("  #")[0] for line in TEXT.splitlines() if line.startswith(start)]
    return [shlex.split(line) for line in lines]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages, with the example put into them and nothing else changed."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("conf", "launchopt", "runner"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    path, source = example()
    assert not (ROOT / path).exists(), "an example that is already there shows nothing"
    (folder / path).write_text(source)
    return folder


def call(copy: Path, *arguments: str) -> str:
    environ = environ_of(copy)
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=copy,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def test_the_example_runs_as_written_and_is_verified(copy: Path) -> None:
    (command,) = commands("python -m runner mode=")
    folder = copy / call(copy, *command[2:]).splitlines()[-1]
    rows = {row["mode"]: row for row in results.read_summaries([folder])}
    assert set(rows) == {"pairs", "baseline"}
    for row in rows.values():
        assert (row["status"], row["verified"], row["commands"]) == ("ok", True, 64)
    assert rows["baseline"]["launch_calls"] == 64
    launches = pd.read_parquet(folder / "launches.parquet")
    sizes = launches[launches["mode"] == "pairs"]["batch_size"]
    assert sizes.max() == 2
    assert (len(sizes), sizes.sum()) == (rows["pairs"]["launch_calls"], 64)


def test_the_example_is_listed_with_what_a_launch_is(copy: Path) -> None:
    assert re.search(r"^pairs +one strided-batch call for every two commands", call(copy, "runner", "--help"), re.M)
    assert re.search(r"^\| pairs \| cpu, cuda \| yes \|", call(copy, "runner.matrix"), re.M)


def test_the_example_is_kept_to_our_own_rules(copy: Path) -> None:
    path = str(copy / example()[0])
    options = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", path]
    call(copy, "ruff", "check", "--quiet", *options)
    call(copy, "ruff", "format", "--quiet", "--check", *options)
    assert len(example()[1].splitlines()) <= 50


def test_files_that_the_text_names_are_there() -> None:
    paths = [copied for copied in re.findall(r"`([\w/]+/[\w.]+\.(?:py|sh|md))`", TEXT) if copied != example()[0]]
    assert paths
    for path in [*paths, *re.findall(r"\]\(([\w/.]+)\)", TEXT)]:
        assert (ROOT / path).exists(), path

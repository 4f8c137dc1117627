"""The README is part of the product: its code runs, its commands compose, its tables are the committed figures'."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import duckdb
import pandas
import pytest
from support.paths import ROOT

from runner.reading import sync_block
from runner.reliability import BLOCK, campaign_markdown
from runner.report.__main__ import sync_readme

README = (ROOT / "README.md").read_text()
COMMANDS = [
    shlex.split(line.split("  #")[0])
    for line in README.replace("\\\n", " ").splitlines()
    if line.startswith("python -m runner ") and "--help" not in line
]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/gpu-kernel-batcher.md",
        "docs/profilers.md",
        "docs/strategies.md",
        "outputs/reference/RESULTS.md",
        "outputs/reference/RESIDENT.md",
    ],
)
def test_tables_are_what_the_committed_figures_give(page: str) -> None:
    assert sync_readme(ROOT / page, check=True), f"run: python -m runner.report --readme {page}"


def test_the_page_on_reliability_shows_the_committed_campaign() -> None:
    page, folder = "outputs/reference/RELIABILITY.md", "outputs/reference/reliability"
    text = campaign_markdown(ROOT / folder)
    is_current = sync_block(ROOT / page, BLOCK, text, check=True)
    assert is_current, f"run: python -m runner.reliability {folder} --readme {page}"


def test_every_promise_names_a_test_that_is_there() -> None:
    text = (ROOT / "outputs/reference/RELIABILITY.md").read_text()
    promises = text.split("## What is promised")[1].split("## What is not promised")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)`", row.rpartition(" | ")[2])
        assert named, f"no test provokes this: {row}"
        for name in named:
            assert (ROOT / name).is_file(), f"{name} is not there: {row}"


def test_the_two_ways_to_read_results_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    block = re.search(r"```python\n(.*?)```", README, re.S)
    assert block
    with_duckdb, with_pandas = (ast.unparse(statement) for statement in ast.parse(block[1]).body)
    names = {"duckdb": duckdb, "pandas": pandas, "Path": Path}
    table = eval(with_duckdb, dict(names))
    assert {"baseline", "batched"} <= {mode for mode, _ in table.fetchall()}
    series = eval(with_pandas, dict(names))
    assert {"baseline", "batched"} <= set(series.index)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_composes(command: list[str], tmp_path: Path) -> None:
    arguments = [word.split(",")[0] if "=" in word else word for word in command[3:] if word != "-m"]
    done = subprocess.run(
        [sys.executable, "-m", "runner", *arguments, "--cfg", "job"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_map_names_what_is_there() -> None:
    block = README.split("## The map")[1].split("```")[1]
    for name in re.findall(r"[\w/]+\.(?:py|sh)", block):
        assert list(ROOT.rglob(name)), f"{name} is in the README's map and not in the tree"

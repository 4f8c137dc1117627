"""The README and the pages: their tables are those of the committed results, and their code runs."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import duckdb
import pandas
import pytest
from support.paths import ROOT

from runner.reading import sync_block
from runner.reliability import BLOCK, campaign_markdown
from runner.report.blocks import sync_readme
from scripts.stale import pages

MOST_CHARACTERS = 11_000  # of the README: what a newcomer reads in five minutes


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8")) <= MOST_CHARACTERS


@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in pages(ROOT)])
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


def test_the_two_ways_to_read_results_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "outputs/reference/gpu/strategies/gemv_micro", tmp_path / "first")
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs/results.md").read_text(encoding="utf-8"), re.S)
    assert block
    with_duckdb, with_pandas = (ast.unparse(statement) for statement in ast.parse(block[1]).body)
    names = {"duckdb": duckdb, "pandas": pandas}
    table = eval(with_duckdb, dict(names))
    assert {"baseline", "batched"} <= {mode for mode, _ in table.fetchall()}
    series = eval(with_pandas, dict(names))
    assert {"baseline", "batched"} <= set(series.index)


def test_the_map_names_what_is_there() -> None:
    block = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## The map")[1].split("```")[1]
    for name in re.findall(r"[\w/]+\.(?:py|sh)", block):
        assert list(ROOT.rglob(name)), f"{name} is on the map and not in the tree"


@pytest.mark.parametrize("house", ["runner", "launchopt"])
def test_every_package_is_on_the_map(house: str) -> None:
    block = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## The map")[1].split("```")[1]
    part = re.split(r"^(?=\w)", block, flags=re.MULTILINE)
    (own,) = (text for text in part if text.startswith(f"{house}/"))
    packages = {path.parent.name for path in (ROOT / house).glob("*/__init__.py")}
    assert packages == set(re.findall(r"^  (\w+)/", own, re.MULTILINE))

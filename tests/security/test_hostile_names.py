"""A run with hostile names, from the command line to the page that shows it."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.processes.own_process import environ_of

SCRIPT = "<script>alert(1)</script>"
QUOTED = f"'{SCRIPT}'"  # for Hydra's grammar


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", *arguments]
    return subprocess.run(words, cwd=cwd, env=environ_of(), capture_output=True, text=True, timeout=120)


class Scripts(HTMLParser):
    """What a browser would run."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.inside = tag == "script"
        if self.inside:
            self.found.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.found[-1] += data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose workload, model and folder are named like that."""
    folder = tmp_path_factory.mktemp("out") / SCRIPT.replace("/", "|")
    done = python(
        *(
            "runner",
            "device=cpu",
            "model=tiny",
            "workload=decode",
            "workload.tokens=3",
            "workload.cache=hot",
            "against=[]",
        ),
        *("mode=batched", f"workload.name={QUOTED}", f"model.name={QUOTED}", f"hydra.run.dir='{folder}'"),
        cwd=folder.parent,
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "summary.parquet").is_file()
    return folder


@pytest.mark.skipif(find_spec("altair") is None, reason="needs the extra: report")
def test_the_page_shows_the_names_and_runs_none(run: Path) -> None:
    page = run.parent / "page.html"
    done = python("runner.report", str(run), "--html", str(page), cwd=run.parent)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "alert(1)" in text
    scripts = Scripts()
    scripts.feed(text)
    assert scripts.found
    assert [script for script in scripts.found if script.strip() == "alert(1)"] == []


def test_markdown_for_a_pull_request_shows_the_names_as_text(run: Path) -> None:
    done = python("runner.report", str(run), "--pr", cwd=run.parent)
    assert done.returncode == 0, done.stderr
    assert "alert(1)" in done.stdout
    assert SCRIPT not in done.stdout

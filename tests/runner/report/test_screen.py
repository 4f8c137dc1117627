"""Programs that print tables end quietly when nobody reads on, and a narrow terminal leaves out columns."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.processes.own_process import ROOT, environ_of
from support.results.headings import headings

from runner.ending.outputs import CLOSED
from runner.report.screen import DROPS

LONG = {
    "report": ["outputs/reference/gpu/strategies", "--pr"],
    "verdict": ["outputs/reference/gpu/strategies"],
    "budget": ["model=llama_3_70b", "tokens_per_day=10e6", "from=outputs/reference/gpu/strategies"],
    "dataset": ["--columns"],
}


@pytest.mark.parametrize("name", LONG)
def test_a_reader_that_leaves_is_no_error(name: str) -> None:
    call = [sys.executable, "-m", f"runner.{name}", *LONG[name]]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, cwd=ROOT, env=environ_of(), **pipes) as running:
        assert running.stdout
        assert running.stderr
        running.stdout.close()
        message = running.stderr.read()
    assert (running.returncode, message) == (CLOSED, "")


def test_every_column_that_a_narrow_terminal_leaves_out_exists() -> None:
    assert set(DROPS) <= headings()

"""Runs of the application in this process."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes.own_process import alone
from support.results.sweeps import Ran, Run

from runner import app
from runner.run import children


@pytest.fixture(scope="module")
def kept_children() -> Iterator[None]:
    """The children, kept from one run to the next until the module ends."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(children, "dismiss", lambda: None)
        yield
    children.dismiss()
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The application, started with these arguments in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["runner"])

    def start(arguments: str) -> Ran:
        capsys.readouterr()
        try:
            code: Any = app.main(alone(arguments.split()))
        except SystemExit as ended:
            code = ended.code
        return Ran(code, *capsys.readouterr())

    return start

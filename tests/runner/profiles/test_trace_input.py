"""`launchopt trace -`: traces through pipes."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from threading import Thread

import pytest
from support.paths import TESTS
from support.processes.limits import limited
from support.results.kineto_events import call, kernel, written

from launchopt.errors import DataError
from runner.profiles import trace_input
from runner.profiles.trace import main, statistics

EVENTS = [call(0, 4, 1), kernel(6, 3, 1)]
DELAY = "launch delay, sum us 2.000"


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def typed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize("is_packed", [False, True])
def test_standard_input_is_read_plain_or_gzip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_packed: bool
) -> None:
    content = written(tmp_path, EVENTS).read_bytes()
    typed(monkeypatch, gzip.compress(content) if is_packed else content)
    assert main(["-"]) == 0
    shown = capsys.readouterr()
    assert DELAY in " ".join(shown.out.split())
    assert shown.err == ""
    assert list((tmp_path / "temporary").iterdir()) == []


def test_standard_input_may_be_an_nsys_export_and_one_file_of_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, (TESTS / "corpus/traces/n02_one_row_without_pid.sqlite").read_bytes())
    assert main([str(written(tmp_path, EVENTS)), "-"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-2:] for line in lines if line.startswith("launch delay, sum")] == [["2.000", "33.000"]]


def test_a_folder_is_refused_with_the_command_for_a_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a folder; of a run, type: launchopt report RUN --timeline FILE\.json"):
        statistics([tmp_path])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty: expected Kineto or Chrome JSON"),
        (b"[{", "not JSON before the first event (the file was cut short)"),
        (b"text", "no trace: expected Kineto"),
    ],
)
def test_a_bad_trace_is_said_to_be_that_of_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes, problem: str
) -> None:
    typed(monkeypatch, content)
    assert main(["-"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: standard input: {problem}")
    assert shown.count("\n") == 1


def test_a_terminal_a_closed_input_and_a_second_dash_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, b"[]")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert main(["-"]) == 2
    assert "error: standard input: is a terminal: pipe a trace in" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["-"]) == 2
    assert capsys.readouterr().err == "error: standard input: is closed: pipe a trace in\n"
    with pytest.raises(SystemExit, match="2"):
        main(["-", "-"])
    assert "error: - is standard input, which can be read once\n" in capsys.readouterr().err


def test_a_pipe_with_a_name_is_refused_without_waiting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(written(tmp_path, EVENTS))]) == 0
    os.mkfifo(pipe := tmp_path / "pipe")
    assert main([str(pipe)]) == 2
    assert f"error: {pipe}: a pipe, not a regular file; type: launchopt trace - < PIPE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ((b"\0" * (1 << 20) for _ in range(1 << 20)), "no trace: expected Kineto"),
        ((b" " * (1 << 20) for _ in range(1 << 20)), "the first 4,096 bytes are white space"),
        (chain([b'{"traceEvents": ['], (b" " * (1 << 20) for _ in range(1 << 20))), "over 64 MB of white space"),
        ([], "sent nothing for 0.2 s, after 0 bytes"),
        ([b"[{}"], "sent nothing for 0.2 s, after 3 bytes"),
        ([b"[" + b"{}," * (1 << 20)], "over 0 GiB: save the trace as a file"),
    ],
)
def test_a_pipe_without_end_or_word_is_refused_soon(
    content: Iterable[bytes], problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from_there, to_there = os.pipe()

    def write() -> None:
        with suppress(BrokenPipeError):
            for block in content:
                os.write(to_there, block)

    Thread(target=write, daemon=True).start()
    monkeypatch.setattr(sys, "stdin", os.fdopen(from_there, closefd=False))
    monkeypatch.setattr(trace_input, "PIPE_SILENCE_S", 0.2)
    if "GiB" in problem:
        monkeypatch.setattr(trace_input, "PIPE_BYTES_MAX", 1 << 20)
    with limited(5.0, 300 << 20):
        assert main(["-"]) == 2
    os.close(from_there)
    assert capsys.readouterr().err.startswith(f"error: standard input: {problem}")


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    typed(monkeypatch, b"[]")
    monkeypatch.setattr(trace_input, "_copy", full)
    assert main(["-"]) == 2
    assert capsys.readouterr().err == "error: standard input: cannot be read (No space left on device)\n"

"""An error of the system that no part of a command expected is one line; a mistake of this program is a traceback."""

from __future__ import annotations

import errno

import pytest

from runner.ending import outcome

SHORTAGES: list[tuple[Exception, str]] = [
    (PermissionError(errno.EACCES, "Permission denied", "outputs"), "outputs: Permission denied"),
    (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
    (OSError(errno.ENOSPC, "No space left on device", b"x.md"), "x.md: No space left on device"),
    (
        FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"),
        "No usable temporary directory",
    ),
    (MemoryError(), "out of main memory"),
    (RuntimeError("can't start new thread"), "no more threads may start (ulimit -u, or the container's pids limit)"),
    (ImportError("libx.so: failed to map segment from shared object"), "out of main memory while a library loads"),
]
MISTAKES = [
    ValueError("x"),
    OSError("without a number"),
    RuntimeError("x"),
    ImportError("No module named x"),
    KeyError(1),
]


def raising(error: Exception) -> int:
    raise error


@pytest.mark.parametrize(("error", "line"), SHORTAGES, ids=lambda each: str(each)[:40])
def test_a_shortage_is_one_line(error: Exception, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(lambda: raising(error)) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {line}")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("error", MISTAKES, ids=repr)
def test_a_mistake_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        outcome(lambda: raising(error))


def test_every_traceback_is_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(MemoryError):
        outcome(lambda: raising(MemoryError()))

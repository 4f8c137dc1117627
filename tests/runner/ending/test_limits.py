"""Below a limit that libraries do not survive, every command ends with one line and exit code 2."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.paths import TESTS
from support.processes.own_process import environ_of

from runner.commands import STARTING, SUBCOMMANDS
from runner.ending import limits
from runner.report import pictures

LOW = {
    "-n 16": "error: ulimit -n: at most 16 open files are allowed, and launchopt needs 64\n",
    "-v 300000": "error: ulimit -v 300000: 292 MiB of address space are allowed, and launchopt needs ",
    "-d 300000": "error: ulimit -d 300000: 292 MiB of data are allowed, and launchopt needs ",
}


def limited(limit: str, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m WORDS` under a limit of the shell."""
    call = ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", sys.executable, "-m", *words]
    return subprocess.run(call, cwd=folder, env=environ_of(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("limit", LOW)
@pytest.mark.parametrize("words", [["runner", "device=cpu"], ["runner", "report", "x"], ["runner.trace", "x"]], ids=str)
def test_a_command_says_which_limit_is_too_low(limit: str, words: list[str], tmp_path: Path) -> None:
    done = limited(limit, words, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(LOW[limit])
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_report_works_at_its_least_limits(tmp_path: Path) -> None:
    cores = min(len(os.sched_getaffinity(0)), limits.BLAS_THREADS)
    least = limits.READING_BYTES + limits.BYTES_A_CORE * cores >> 10
    shutil.copy(TESTS / "corpus" / "summary.parquet", tmp_path)
    done = limited(f"-v {least} && ulimit -n {limits.FILES}", ["runner", "report", ".", "--json"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_soft_limit_of_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    raised, of_files = [], resource.RLIMIT_NOFILE
    monkeypatch.setattr(resource, "getrlimit", lambda which: (16, 4096) if which == of_files else (-1, -1))
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: raised.append((which, both)))
    limits.require(is_run=True)
    assert raised == [(of_files, (limits.FILES, 4096))]


@pytest.mark.parametrize("source", ["ulimit", "container"])
@pytest.mark.parametrize(("is_run", "who"), [(True, "a run"), (False, "launchopt")])
def test_too_few_threads_are_counted(
    source: str,
    is_run: bool,
    who: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A user without privileges may have no more; root may, so a thread here says that it cannot start."""
    (tmp_path / "pids.max").write_text("8\n" if source == "container" else "max\n")
    monkeypatch.setattr(limits, "THREADS_MAX", (str(tmp_path / "pids.max"),))
    allowed = 8 if source == "ulimit" else -1
    monkeypatch.setattr(resource, "getrlimit", lambda which: (allowed if which == resource.RLIMIT_NPROC else -1,) * 2)
    limits.require(is_run)  # as many as are needed
    started: list[object] = []
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if len(started) == 5:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(SystemExit) as ended:
        limits.require(is_run)
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ulimit -u, or the container's pids limit: 5 more threads are allowed, and " + who)


def test_commands_that_start_processes_exist() -> None:
    assert set(STARTING) < set(SUBCOMMANDS)


def test_a_picture_needs_a_large_address_space(tmp_path: Path) -> None:
    """The library for pictures aborts the process otherwise, with 39 lines."""
    pytest.importorskip("vl_convert")
    shutil.copy(TESTS / "corpus" / "summary.parquet", tmp_path)
    done = limited("-v 8000000", ["runner", "report", ".", "--plot", "x.svg"], tmp_path)
    assert (done.returncode, (tmp_path / "x.svg").exists()) == (2, False)
    assert f"pictures need an address space of {pictures.DRAWING_BYTES >> 30} GiB" in done.stderr
    assert "Traceback" not in done.stderr

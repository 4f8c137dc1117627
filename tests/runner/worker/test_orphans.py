"""Stopped processes of a killed run are killed by the next start; those of others, and of a live run, are not.

Tests that run beside these start runs, too, which kill whatever has the mark. These tests use a mark of their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from support.processes.own_process import environ_of
from support.processes.own_run import eventually, on_linux

from runner.worker import orphans as module
from runner.worker.orphans import end_orphans, marked, orphans

MARK, RUNS_MARK = f"LAUNCHOPT_TEST_{os.getpid()}", module.MARK
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STARTER = f"""
import subprocess, sys
from runner.worker import orphans
orphans.MARK = {MARK!r}
with orphans.marked():
    print(subprocess.Popen({SLEEP!r}, stdout=subprocess.DEVNULL).pid, flush=True)
sys.stdin.read()
"""


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def with_mark(parent: int) -> list[psutil.Process]:
    """Return the children of a process that run a program of their own."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        found = [each for each in psutil.Process(parent).children() if RUNS_MARK in each.environ()]
    return found


@pytest.fixture(autouse=True)
def _own_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MARK", MARK)


@pytest.fixture
def started() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a process and the id of another one that it started, as a run does."""
    call = [sys.executable, "-c", STARTER]
    with subprocess.Popen(call, env=environ_of(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        child = int(owner.stdout.readline())
        try:
            yield owner, child
        finally:
            owner.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


@on_linux
def test_a_stopped_one_is_killed_once_its_run_is_dead(started: tuple[subprocess.Popen[str], int]) -> None:
    owner, child = started
    os.kill(child, signal.SIGSTOP)
    eventually(lambda: psutil.Process(child).status() == psutil.STATUS_STOPPED)
    assert child not in orphans(), "its run lives"
    owner.kill()
    owner.wait()
    assert orphans()[child] == owner.pid
    assert end_orphans()[child] == owner.pid
    eventually(lambda: not is_alive(child))


@on_linux
def test_one_that_runs_is_left_alone(started: tuple[subprocess.Popen[str], int]) -> None:
    owner, child = started
    owner.kill()
    owner.wait()
    assert child not in end_orphans()
    assert is_alive(child)


@on_linux
@pytest.mark.parametrize("mark", [None, "", "x 1 y", "{dead} {start} pid:[1]", "{dead}", "{own} {own_start} {space}"])
def test_a_process_without_the_mark_of_a_dead_run_is_left_alone(mark: str | None) -> None:
    with marked():
        own, own_start, space = os.environ[MARK].split()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    values = {"dead": dead.pid, "start": 1, "own": own, "own_start": own_start, "space": space}
    environ = os.environ | ({} if mark is None else {MARK: mark.format(**values)})
    with subprocess.Popen(SLEEP, env=environ) as process:
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        assert process.pid not in end_orphans()
        process.kill()
    with subprocess.Popen(SLEEP, env=os.environ | {MARK: f"{dead.pid} 1 {space}"}) as process:
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: process.pid in end_orphans())


@on_linux
def test_an_id_that_another_process_has_now_is_that_of_a_dead_run() -> None:
    with marked():
        own, start, space = os.environ[MARK].split()
    with subprocess.Popen(SLEEP, env=os.environ | {MARK: f"{own} {int(start) - 1} {space}"}) as process:
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: process.pid in end_orphans())


def test_the_mark_is_in_the_environment_only_while_something_starts() -> None:
    assert MARK not in os.environ
    with marked():
        assert os.environ[MARK].startswith(f"{os.getpid()} ")
    assert MARK not in os.environ


@on_linux
def test_threads_that_start_something_at_once_all_name_this_process_and_leave_no_mark() -> None:
    def start(_: int) -> str:
        with marked():
            time.sleep(0.001)
            return os.environ[MARK]

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(start, range(64)))) == 1
    assert MARK not in os.environ


@on_linux
def test_children_that_stopped_as_they_started_and_the_tracker_end_with_the_next_start(tmp_path: Path) -> None:
    """They are stopped 0 and 20 ms after the first of them has its program: before they ask Linux for an end."""
    call = [sys.executable, "-m", "runner", "device=cpu", "workload.commands=1000", "against=[]", "repeats=2"]
    stopped = []
    for delay_s in (0, 0.02):
        folder = f"hydra.run.dir={tmp_path / str(delay_s)}"
        with subprocess.Popen([*call, folder], env=environ_of(), stderr=subprocess.DEVNULL) as run:
            eventually(lambda parent=run.pid: with_mark(parent))
            time.sleep(delay_s)
            for each in with_mark(run.pid):
                each.suspend()
                stopped.append(each.pid)
            run.kill()
    next_one = [*call, f"hydra.run.dir={tmp_path / 'next'}"]
    subprocess.run(next_one, env=environ_of(), check=True, capture_output=True)
    eventually(lambda: not any(map(is_alive, stopped)), 5)

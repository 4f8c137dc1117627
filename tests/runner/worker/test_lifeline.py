"""No child of a job outlives the job's process, however that was started and however it ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.paths import ROOT, TESTS
from support.processes.job_starters import WAYS
from support.processes.own_process import environ_of

PATIENCE_S = 60.0
GONE_S = 5.0
SPAWNED = "--multiprocessing-fork"


@contextlib.contextmanager
def job(way: str, folder: Path) -> Iterator[psutil.Process]:
    """Yield the process of a job that has children."""
    call = [sys.executable, "-m", "support.processes.job_starters", way]
    with subprocess.Popen(
        call, cwd=folder, env=environ_of(ROOT, TESTS), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as starter:
        assert starter.stdout
        found = psutil.Process(int(starter.stdout.readline()))
        started = [psutil.Process(starter.pid), *psutil.Process(starter.pid).children(recursive=True)]
        try:
            yield found
        finally:
            for each in {*started, found}:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()


def children_of(process: psutil.Process, least: int) -> list[psutil.Process]:
    """Return the processes that multiprocessing spawned below `process`, as soon as there are `least`."""
    until_s = time.monotonic() + PATIENCE_S
    while len(found := [each for each in process.children(recursive=True) if SPAWNED in each.cmdline()]) < least:
        assert time.monotonic() < until_s, f"{least} children are expected, {found} run"
        time.sleep(0.05)
    return found


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that have not ended; a process that only waits for its parent to read its exit code has ended."""
    found = []
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


def assert_ended(processes: list[psutil.Process]) -> None:
    until_s = time.monotonic() + GONE_S
    while (left := alive(processes)) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert left == []


@pytest.mark.parametrize("way", WAYS)
def test_children_end_with_a_killed_job(way: str, tmp_path: Path) -> None:
    with job(way, tmp_path) as process:
        found = children_of(process, {"with_a_peer_of_a_benchmark": 3, "as_a_child_of_the_job": 4}.get(way, 2))
        time.sleep(0.5)
        assert alive(found) == found, "a thread that started them may have ended"
        process.kill()
        assert_ended(found)


def test_stopped_children_end_with_a_killed_job(tmp_path: Path) -> None:
    with job("in_main_thread", tmp_path) as process:
        found = children_of(process, 2)
        time.sleep(3)  # they have begun
        for each in found:
            each.suspend()
        process.kill()
        assert_ended(found)


@pytest.mark.parametrize("way", ["in_main_thread", "in_a_thread_that_ends"])
def test_children_end_with_a_job_that_returns(way: str, tmp_path: Path) -> None:
    """multiprocessing waits for its children at the end of a process; ours wait for another job."""
    program = f"from support.processes import job_starters as s\ns.LONG_S = 0\nif __name__ == '__main__': s.{way}()"
    (tmp_path / "program.py").write_text(program)
    environ = environ_of(ROOT, TESTS)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=environ, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0

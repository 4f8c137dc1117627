"""No child of a job outlives the job's process, however that was started and however it ends."""

from __future__ import annotations

import contextlib
import os
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
WATCHED = """
import sys
from pathlib import Path

class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "multiprocessing.synchronize":
            Path(__file__).with_name("seen").touch()

sys.meta_path.insert(0, Watch)
"""


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
        assert time.monotonic() < until_s
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


@pytest.mark.parametrize("way", WAYS)
def test_children_end_with_a_killed_job(way: str, tmp_path: Path) -> None:
    with job(way, tmp_path) as process:
        found = children_of(process, {"with_a_peer_of_a_benchmark": 3, "as_a_child_of_the_job": 4}.get(way, 2))
        time.sleep(0.5)
        assert alive(found) == found, "a thread that started them may have ended"
        process.kill()
        _, left = psutil.wait_procs(found, GONE_S)
        assert alive(left) == []


def test_stopped_children_end_with_a_killed_job(tmp_path: Path) -> None:
    with job("in_main_thread", tmp_path) as process:
        found = children_of(process, 2)
        time.sleep(3)  # they have begun
        for each in found:
            each.suspend()
        process.kill()
        _, left = psutil.wait_procs(found, GONE_S)
        assert alive(left) == []


@pytest.mark.parametrize("way", ["in_main_thread", "in_a_thread_that_ends"])
def test_children_end_with_a_job_that_returns(way: str, tmp_path: Path) -> None:
    """multiprocessing waits for its children at the end of a process; ours wait for another job."""
    program = f"from support.processes import job_starters as s\ns.LONG_S = 0\nif __name__ == '__main__': s.{way}()"
    (tmp_path / "program.py").write_text(program)
    environ = environ_of(ROOT, TESTS)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=environ, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0


def test_a_run_makes_no_semaphore(tmp_path: Path) -> None:
    """A named one would outlive a SIGKILL. Python makes it in `multiprocessing.synchronize`."""
    (tmp_path / "sitecustomize.py").write_text(WATCHED)
    environ = environ_of()
    environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environ["PYTHONPATH"]])
    made = "from multiprocessing import get_context; get_context('spawn').Lock()"
    subprocess.run([sys.executable, "-c", made], cwd=tmp_path, env=environ, check=True)
    (seen := tmp_path / "seen").unlink()
    words = "device=cpu workload.m=16 workload.k=16 workload.commands=200 repeats=1 against=[]"
    subprocess.run([sys.executable, "-m", "runner", *words.split()], cwd=tmp_path, env=environ, check=True)
    assert not seen.exists()

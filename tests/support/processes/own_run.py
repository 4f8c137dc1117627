"""`python -m runner` in a process group of its own, for tests of faults."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from launchopt.queue.segment import HeaderWord
from launchopt.recording import results
from support.processes.own_process import alone, environ_of, without_progress

SHARED_MEMORY = Path("/dev/shm")
on_linux = pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="reads /dev/shm, which only Linux has")

LONG = "mode=baseline workload.cache=hot workload.commands=1000000"  # over 10 s on any machine
SHORT = "mode=batched workload.cache=hot workload.commands=500 workload.m=16 workload.k=64 repeats=10000"
PATIENCE_S = 180.0  # a run that takes longer hangs, however busy this machine is


def eventually(condition: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
    """Wait until the condition is true and return its value; fails after `within_s`."""
    limit = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)
    return value


class Victim:
    """A run in its own process group: its children, its ring in shared memory, its results."""

    def __init__(self, arguments: str, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runner", *alone(arguments.split()), "device=cpu"],
            cwd=folder,
            env=environ_of(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._known: dict[int, psutil.Process] = {}

    def children(self) -> list[psutil.Process]:
        """Return consumer and producer in the order of their start, without the resource tracker."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.process.pid).children()
        self._known |= {child.pid: child for child in found}
        with contextlib.suppress(psutil.NoSuchProcess):
            found = [child for child in found if "--multiprocessing-fork" in child.cmdline()]
        return sorted(found, key=lambda child: child.create_time())

    def alive(self) -> list[psutil.Process]:
        """Return the children seen so far that still run."""
        return [child for child in self._known.values() if child.is_running() and child.status() != "zombie"]

    def rings(self) -> list[Path]:
        return list(SHARED_MEMORY.glob(f"launchopt_{self.process.pid}_*"))

    def popped(self) -> int:
        """Return the number of commands that the consumer has taken from the ring."""
        for ring in self.rings():
            with contextlib.suppress(OSError):
                words = np.fromfile(ring, np.uint64, count=HeaderWord.TAIL + 1)
                return int(words[HeaderWord.TAIL]) if len(words) > HeaderWord.TAIL else 0
        return 0

    def in_the_middle(self) -> tuple[psutil.Process, psutil.Process]:
        """Return consumer and producer as soon as the consumer has taken 10,000 commands."""
        eventually(lambda: self.process.poll() is not None or self.popped() > 10_000)
        consumer, producer = self.children()
        return consumer, producer

    def results_folder(self) -> Path:
        (folder,) = self.folder.glob("outputs/run/*")
        return folder

    def manifest(self) -> dict[str, Any]:
        return results.read_manifest(self.results_folder())

    def repeats_done(self) -> int:
        if not list(self.folder.glob("outputs/run/*/manifest.json")):
            return 0
        self.children()
        return int(self.manifest()["repeats_done"])

    def end(self) -> tuple[int, str]:
        """Wait for the end; return exit code and standard error, without progress."""
        _, stderr = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, without_progress(stderr)

    def close(self) -> None:
        for process in (self.process, *self.alive()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.communicate()


def assert_nothing_left(victim: Victim) -> None:
    eventually(lambda: not victim.alive())
    eventually(lambda: not victim.rings())

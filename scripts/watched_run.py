"""A run of `python -m runner` that `kill_campaign` watches from outside: its processes, shared memory and manifest."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

from launchopt.errors import DataError
from launchopt.queue.segment import CLOSED_BIT, HeaderWord
from launchopt.recording.manifest import Manifest, read_manifest
from runner.run.leftovers import FOLDER
from runner.worker.producer import WARM_UP_COMMANDS

ROOT = Path(__file__).resolve().parents[1]
POLL_S = 0.003


class Run:
    """`python -m runner` in a process group of its own."""

    def __init__(self, folder: Path, job: str) -> None:
        self.folder = folder / "run"
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runner", *job.split(), f"hydra.run.dir={self.folder}"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._known: dict[int, psutil.Process] = {}

    def children(self) -> list[psutil.Process]:
        """Return consumer and producer, in the order of their starts."""
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(self.process.pid)
            self._known |= {child.pid: child for child in parent.children(recursive=True)}
        found = []
        for child in self.alive():
            with contextlib.suppress(psutil.Error):
                if "--multiprocessing-fork" in child.cmdline():
                    found.append(child)
        return sorted(found, key=lambda child: child.pid)

    def alive(self) -> list[psutil.Process]:
        """Return the descendants seen so far that still run."""
        found = []
        for child in self._known.values():
            with contextlib.suppress(psutil.Error):
                if child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
        return found

    def segments(self) -> list[Path]:
        """Return the segments of shared memory of this run."""
        return list(FOLDER.glob(f"launchopt_{self.process.pid}_*"))

    def phase(self) -> str:
        """Return the phase of the run, from the header of its ring: a key of PHASES in `kill_campaign`."""
        for ring in self.segments():
            with contextlib.suppress(OSError):
                words = np.fromfile(ring, np.uint64, count=HeaderWord.TAIL + 1)
                if len(words) <= HeaderWord.TAIL:
                    return "starting"
                pushed, popped = int(words[HeaderWord.HEAD]), int(words[HeaderWord.TAIL])
                if pushed & ~CLOSED_BIT <= WARM_UP_COMMANDS:
                    return "preparing" if self.repeats() == 0 else "checking"
                return "checking" if pushed == popped | CLOSED_BIT else "running"
        return "starting"

    def manifest(self) -> Manifest:
        """Return the manifest; empty before there is one."""
        try:
            return read_manifest(self.folder)
        except DataError:
            return {}

    def repeats(self) -> int:
        """Return the number of finished repeats in the manifest."""
        return int(self.manifest().get("repeats_done", 0))

    def end(self) -> None:
        """Kill every process of the run that is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for left in self.alive():
            with contextlib.suppress(psutil.Error):
                left.kill()
        self.process.communicate()


def eventually(condition: Callable[[], object], within_s: float) -> bool:
    """Wait until the condition is true; return whether that happened within `within_s` seconds."""
    limit = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(POLL_S)
    return True

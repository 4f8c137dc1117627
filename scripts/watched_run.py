"""A run or sweep of `python -m runner` that `kill_campaign` watches from outside: processes, shared memory, results."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.errors import DataError
from launchopt.queue.segment import CLOSED_BIT, HeaderWord
from launchopt.recording.manifest import Manifest, read_manifest
from runner.run.leftovers import FOLDER
from runner.worker.producer import WARM_UP_COMMANDS

ROOT = Path(__file__).resolve().parents[1]
POLL_S = 0.003
TRACKER = "resource_tracker"  # in the command line of Python's tracker of shared memory
CHILDREN = ("consumer", "producer")  # in the order of their starts


class Run:
    """`python -m runner` in a process group of its own. Its results are in `folder`/run: of a job, or of a sweep."""

    def __init__(self, folder: Path, job: str) -> None:
        self.folder, self.is_sweep = folder / "run", job.startswith("-m ")
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        place = f"hydra.{'sweep' if self.is_sweep else 'run'}.dir={self.folder}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runner", *job.split(), place],
            cwd=folder,
            env={"LAUNCHOPT_CPU_CACHE_MIB": "32"} | os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._known: dict[int, psutil.Process] = {}

    def others(self) -> dict[str, psutil.Process]:
        """Return the other processes of the run that are alive: consumer, producer, and Python's tracker."""
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(self.process.pid)
            self._known |= {child.pid: child for child in parent.children(recursive=True)}
        found, children = {}, []
        for each in sorted(self.alive(), key=lambda child: child.pid):
            with contextlib.suppress(psutil.Error):
                line = " ".join(each.cmdline())
                if TRACKER in line:
                    found["tracker"] = each
                elif "--multiprocessing-fork" in line:
                    children.append(each)
        return found | dict(zip(CHILDREN, children, strict=False))

    def alive(self) -> list[psutil.Process]:
        """Return the descendants seen so far that still run."""
        found = []
        for child in self._known.values():
            with contextlib.suppress(psutil.Error):
                if child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
        return found

    def handles(self, number: signal.Signals) -> bool:
        """Return whether the process has a handler for the signal: its first line of Python has run."""
        with contextlib.suppress(OSError, StopIteration):
            status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
            caught = next(line.split()[1] for line in status if line.startswith("SigCgt"))
            return bool(int(caught, 16) >> (number - 1) & 1)
        return False

    def segments(self) -> list[Path]:
        """Return the segments of shared memory and the semaphores of this run."""
        return [path for path in FOLDER.glob("*launchopt_*") if f"launchopt_{self.process.pid}_" in f"{path.name}_"]

    def hidden(self) -> list[Path]:
        """Return the locks and unfinished files in the folder."""
        return list(self.folder.rglob(".*")) if self.folder.exists() else []

    def phase(self) -> str:
        """Return the phase of the run, from the header of its ring: a key of PHASES in `kills`."""
        for ring in self.segments():
            with contextlib.suppress(OSError):
                words = np.fromfile(ring, np.uint64, count=HeaderWord.TAIL + 1)
                if len(words) <= HeaderWord.TAIL:
                    return "starting"
                pushed, popped = int(words[HeaderWord.HEAD]), int(words[HeaderWord.TAIL])
                if pushed & ~CLOSED_BIT <= WARM_UP_COMMANDS:
                    return "preparing" if self.repeats() == 0 else "checking"
                return "checking" if pushed == popped | CLOSED_BIT else "running"
        if self.jobs_ended():
            return "between"
        return "starting" if self.handles(signal.SIGTERM) else "interpreter"

    def sweep(self) -> dict[str, Any]:
        """Return `sweep.json`; empty before there is one, and for a single run."""
        with contextlib.suppress(OSError, ValueError):
            about: dict[str, Any] = json.loads((self.folder / "sweep.json").read_text())
            return about
        return {}

    def jobs_ended(self) -> int:
        """Return how many jobs of a sweep have ended."""
        return sum(job["status"] == "ok" for job in self.sweep().get("jobs", []))

    def folders(self) -> list[Path]:
        """Return the folder of each job that has one."""
        return sorted(path for path in self.folder.glob("[0-9]*") if path.is_dir()) if self.is_sweep else [self.folder]

    def manifests(self) -> list[Manifest]:
        """Return the manifest of each job; empty for a job without one."""
        found: list[Manifest] = []
        for folder in self.folders():
            try:
                found.append(read_manifest(folder))
            except DataError:
                found.append({})
        return found

    def status(self) -> str:
        """Return the status of the sweep, or of the single job; empty if no file says it."""
        about = self.sweep() if self.is_sweep else self.manifests()[0]
        return str(about.get("status", ""))

    def repeats(self) -> int:
        """Return the number of finished repeats in the manifests."""
        return sum(int(each.get("repeats_done", 0)) for each in self.manifests())

    def readable_repeats(self) -> int:
        """Return the number of repeats in the summaries; -1 if a table cannot be read."""
        repeats = 0
        for folder in self.folders():
            try:
                rows = {path.name: pq.read_table(path).num_rows for path in folder.glob("*.parquet")}
            except (OSError, pa.ArrowException):
                return -1
            repeats += int(rows.get("summary.parquet", 0))
        return repeats

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

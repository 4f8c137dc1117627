"""Files by which the jobs of a sweep and the sweep's process tell each other how things stand.

They lie in a folder of the sweep's folder, so that jobs on other machines reach them, too. The sweep's process makes
and removes it.

    about.json     what every job needs to know of the sweep
    0.json, ...    a job: its entry in sweep.json, and the key of its work
    alive          locked by the sweep's process until the jobs must end; it may hold the number of a signal
    HASH.claim     made by the job that has this folder of results; it holds the number of the job
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from launchopt.errors import RunError
from launchopt.files import read_json, reason, write_atomically
from runner.run.sweep import SweepJob

FOLDER = ".launchopt-jobs"
POLL_S = 1.0
_ABOUT, _ALIVE = "about.json", "alive"
_FIELDS = {each.name for each in fields(SweepJob)}
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class About:
    """What every job needs to know of its sweep."""

    varies_batching: bool
    at_once: int  # most jobs at the same time on one machine
    cores: int  # that a cluster gives each job; 0: jobs divide those of the machine
    is_here: bool  # jobs run on the machine of the sweep's process, with its GPUs
    visible: str | None  # CUDA_VISIBLE_DEVICES of the sweep's process
    working: str  # working directory of the sweep's process

    def on_cores(self, count: int) -> int:
        """Return how many jobs run at the same time on a machine of which a job sees `count` cores."""
        return min(self.at_once, max(1, count // self.cores)) if self.cores else self.at_once


class Records:
    """The records of a sweep. sweep: its folder."""

    def __init__(self, sweep: Path) -> None:
        self.sweep, self.folder = sweep, sweep / FOLDER
        self._alive = -1  # descriptor of the file that this process locks

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Make the folder, and keep the jobs alive during this block; RunError if the disk refuses it."""
        try:
            self._remove()  # of a sweep that was killed
            self.folder.mkdir()
            self._alive = os.open(self.folder / _ALIVE, _OPEN | os.O_CREAT | os.O_EXCL, 0o644)
            with contextlib.suppress(OSError):  # a file system without locks: a notice has said so
                fcntl.flock(self._alive, fcntl.LOCK_EX)
        except OSError as error:
            raise RunError(f"{self.folder}: cannot be written ({reason(error)})") from None
        try:
            yield
        finally:
            self.end(signal.SIGTERM)
            with contextlib.suppress(OSError):
                self._remove()

    def end(self, number: int) -> None:
        """Let the jobs that run get the signal `number`, and let no other job begin."""
        if self._alive >= 0:
            os.pwrite(self._alive, str(number).encode(), 0)
            os.close(self._alive)
            self._alive = -1

    def is_over(self, *, wait: bool = False) -> bool:
        """Return whether the jobs must end. wait: return only then."""
        try:
            alive = os.open(self.folder / _ALIVE, _OPEN)
        except OSError:
            return True
        try:
            fcntl.flock(alive, fcntl.LOCK_SH | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError:  # no locks here: the sweep's process says so, unless it is killed
            while wait and not self._is_told():
                time.sleep(POLL_S)
            return wait or self._is_told()
        finally:
            os.close(alive)
        return True

    def _is_told(self) -> bool:
        """Return whether the sweep's process has written that the jobs must end."""
        try:
            return (self.folder / _ALIVE).stat().st_size > 0
        except OSError:
            return True

    def signal(self) -> int:
        """Return the signal that the jobs get: that of the sweep's process, SIGTERM if it was killed."""
        with contextlib.suppress(OSError, ValueError):
            return signal.Signals(int(read_json(self.folder / _ALIVE)))
        return signal.SIGTERM

    def tell(self, about: About) -> None:
        """Replace about.json, before jobs begin."""
        write_atomically(self.folder / _ABOUT, lambda temporary: temporary.write_text(json.dumps(asdict(about))))

    def about(self) -> About:
        """Return what about.json says."""
        return About(**read_json(self.folder / _ABOUT))

    def claim(self, job: SweepJob) -> bool:
        """Return whether no other job has the folder of results of this one. A job that is begun again keeps it."""
        name = hashlib.sha256(job.folder.encode(errors="surrogateescape")).hexdigest()[:16]
        path = self.folder / f"{name}.claim"
        own = self.folder / f"{job.job}.own"
        own.write_text(str(job.job))
        try:
            os.link(own, path)  # it appears with its text
        except FileExistsError:
            return path.read_text() == str(job.job)
        finally:
            own.unlink()
        return True

    def save(self, job: SweepJob, work: str | None = None) -> None:
        """Replace the record of a job. work: the key of its work."""
        objective = job.objective if math.isfinite(job.objective) else None
        text = json.dumps(asdict(job) | {"objective": objective, "work": work})
        write_atomically(self.folder / f"{job.job}.json", lambda temporary: temporary.write_text(text))

    def read(self, number: int) -> tuple[SweepJob, str | None] | None:
        """Return the record of a job and the key of its work; None if it has not begun."""
        try:
            found = read_json(self.folder / f"{number}.json")
        except (OSError, ValueError):
            return None
        objective = math.inf if found["objective"] is None else found["objective"]
        job = SweepJob(**{name: value for name, value in found.items() if name in _FIELDS} | {"objective": objective})
        return job, found["work"]

    def _remove(self) -> None:
        if self.folder.is_dir() and not self.folder.is_symlink():
            shutil.rmtree(self.folder)

"""Runs the commands of parts, each with all that it starts, for a limited time; Ctrl-C and signals end all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from scripts.reference_machine import Place

ROOT = Path(__file__).parents[1]
GRACE_S = 20  # after an interrupt a run ends its repeat and saves it
NOT_STARTED = 127  # as of a shell


class Running:
    """The commands that run at the moment, in any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: set[subprocess.Popen[str]] = set()
        self.is_over = False  # no other command begins

    def stop(self) -> None:
        """End all commands at once: a part is measured again as a whole. No other begins."""
        with self._lock:
            self.is_over = True
            for process in self._started:
                _signal(process, signal.SIGTERM)

    def ran(self, words: Sequence[str], limit_s: float, place: Place) -> tuple[int | None, str]:
        """Run one command from the root; return its exit code and standard error. None: it was ended by its limit."""
        try:
            with self._lock:
                if self.is_over:
                    return 128 + signal.SIGINT, "interrupted"
                process = _start(words, place)
                self._started.add(process)
        except OSError as error:
            return NOT_STARTED, f"cannot be started: {error}"
        try:
            _, text = process.communicate(timeout=max(limit_s, 0))
            return process.returncode, text
        except subprocess.TimeoutExpired:
            _end(process, signal.SIGINT)
            return None, ""
        finally:  # behind a signal to this process
            _end(process, signal.SIGTERM)
            with self._lock:
                self._started.discard(process)


def _start(words: Sequence[str], place: Place) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHON": sys.executable} | place.environment()
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # set in containers; every process would compile all files again
    return subprocess.Popen(
        place.words(words),
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that a signal reaches what the command starts, once
    )


def _end(process: subprocess.Popen[str], number: int) -> None:
    """End a command that still runs, with all that it started, by a signal."""
    if process.poll() is not None:
        return
    _signal(process, number)
    try:
        process.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)
        process.communicate()


def _signal(process: subprocess.Popen[str], number: int) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)

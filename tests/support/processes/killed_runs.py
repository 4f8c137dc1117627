"""Processes that have ended, and the folders that they left locked."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from runner.run.leftovers import LOCK


def dead_pid() -> int:
    """Return the id of a process that has ended."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


def killed(folder: Path, is_sweep: bool = False) -> Path:
    """Make the folder of a killed run: its lock file, which no process holds."""
    folder.mkdir(parents=True)
    (folder / LOCK).write_text(f"{dead_pid()} on {socket.gethostname()}\n")
    if is_sweep:
        (folder / "sweep.json").write_text("{}")
    return folder

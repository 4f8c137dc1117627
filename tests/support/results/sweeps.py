"""The output of a sweep, its record sweep.json, and its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def sweep_json(folder: Path) -> dict[str, Any]:
    """Return the record of the sweep in `folder`."""
    about: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
    return about


def statuses(folder: Path) -> list[str]:
    """Return the status of each job of the sweep in `folder`, in order."""
    return [job["status"] for job in sweep_json(folder)["jobs"]]


@dataclass(frozen=True)
class Ran:
    """Exit code and output of the application."""

    exit_code: int
    stdout: str
    stderr: str

    def line(self, beginning: str) -> str:
        """Return the only line of its output that begins with `beginning`."""
        (line,) = [line for line in self.stdout.splitlines() if line.startswith(beginning)]
        return line


Run = Callable[[str], Ran]  # starts the application with these arguments


def content(folder: Path) -> dict[str, bytes]:
    """Return name and bytes of every file below `folder`."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

"""Read sweep.json, the record of a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def sweep_json(folder: Path) -> dict[str, Any]:
    """Return the record of the sweep in `folder`."""
    about: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
    return about


def statuses(folder: Path) -> list[str]:
    """Return the status of each job of the sweep in `folder`, in order."""
    return [job["status"] for job in sweep_json(folder)["jobs"]]

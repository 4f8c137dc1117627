"""A job that takes a GPU, in a process of its own: importable by name, as `spawn` needs."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

from launchopt.analysis.device_use import Use
from runner.plan import gpus

BUSY_S = 0.05


def hold(given: tuple[int, int, Path]) -> tuple[Use, bool]:
    """Take one of some GPUs, and keep it for a moment; return its use, and whether another job had it, too."""
    number, count, folder = given
    gpus.visible_gpus = lambda visible: [f"GPU-{gpu}" for gpu in range(count)]
    uuid = gpus.take(None, folder)
    assert uuid is not None
    began = datetime.now(UTC).isoformat()
    time.sleep(BUSY_S)
    return Use(str(number), uuid, began, datetime.now(UTC).isoformat()), bool(os.environ.get(gpus.SHARED))

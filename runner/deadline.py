"""A job's time limit (`job_timeout_s`): looked at wherever the parent waits for its children.

The session reports progress many times a second while it waits; with a limit that report ends the job once its time is
up, so it always ends at a place that puts children, ring and folder in order. Repeats that were finished are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from launchopt.errors import RunError

Progress = Callable[[str, int], None]


def limited(progress: Progress, limit_s: float | None) -> Progress:
    """`progress`, which raises RunError once `limit_s` seconds have passed from now; None is no limit."""
    if limit_s is None:
        return progress
    end_s = time.monotonic() + limit_s

    def report(label: str, popped: int) -> None:
        if time.monotonic() > end_s:
            raise RunError(f"timeout: longer than job_timeout_s={limit_s:g} (at: {label}); finished repeats are kept")
        progress(label, popped)

    return report

"""Pictures, and pages with all columns, of groups of results: goal_pages.py makes them again when a group changes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from launchopt.analysis.tables.rows import build_tables
from launchopt.recording import results
from runner.report import tables
from runner.report.pictures import draw_speedups

SLO_P99_US = 300.0


def _speedups(folder: Path, picture: Path) -> None:
    draw_speedups(build_tables(results.read_summaries([folder])), picture)


def _strategies(folder: Path, picture: Path) -> None:
    tables.strategies([folder], plot=picture)


def _frontiers(folder: Path, picture: Path) -> None:
    tables.frontier([folder], SLO_P99_US, plot=picture)


GROUPS: dict[str, tuple[str, Callable[[Path, Path], None]]] = {  # folder: its picture, and what makes that
    "gpu/gpu_kernel_batcher": ("gpu/speedup.svg", _speedups),
    "gpu/strategies": ("gpu/strategies.svg", _strategies),
    "gpu/timeout_bucket": ("gpu/frontier.svg", _frontiers),
}


def refresh(reference: Path, changed: Sequence[str]) -> list[Path]:
    """Make pictures and pages of all groups that have a changed folder; return the pictures."""
    made: list[Path] = []
    for folder, (picture, make) in GROUPS.items():
        if any(each.startswith(f"{folder}/") for each in changed):
            with contextlib.redirect_stdout(io.StringIO()):  # the same as the page
                make(reference / folder, reference / picture)
            made.append(reference / picture)
    return made

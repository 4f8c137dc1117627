"""Pictures, and pages with all columns, of groups of results: goal_pages.py makes them again when a group changes."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from launchopt.analysis.tables.rows import build_tables, own_bases
from launchopt.errors import DataError, one_line
from launchopt.files import reason
from launchopt.messages import say
from launchopt.recording import results
from runner.report import tables
from runner.report.page import html
from runner.report.pictures import draw_speedups

SLO_P99_US = 300.0
SCREENSHOT, SIZE, LIMIT_S = "report.png", (1400, 1000), 60
CHROMIUM = "chromium", "chromium-browser", "google-chrome"
DRAWN = "--virtual-time-budget=20000"  # ms for the scripts of the page


def _speedups(folder: Path, picture: Path) -> None:
    own = own_bases(results.read_manifests([folder]))
    draw_speedups(build_tables(results.read_summaries([folder]), own), picture)


def _strategies(folder: Path, picture: Path) -> None:
    tables.strategies([folder], plot=picture)
    screenshot(folder, picture.with_name(SCREENSHOT))


def chromium() -> str | None:
    """Return the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


def screenshot(folder: Path, picture: Path) -> None:
    """Show the top of the HTML page of results as Chromium does. Without Chromium the picture stays as it is.

    DataError if Chromium makes no picture.
    """
    program = chromium()
    if program is None:
        say(f"{picture}: not made again, since there is no Chromium on the PATH")
        return
    with tempfile.TemporaryDirectory() as made:
        page, shot = Path(made) / "report.html", Path(made) / SCREENSHOT
        html([folder], page)
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        size = f"--window-size={','.join(map(str, SIZE))}"
        words = [program, "--headless", "--hide-scrollbars", DRAWN, *root, size, f"--screenshot={shot}", page.as_uri()]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise DataError(picture, None, f"Chromium made no picture within {LIMIT_S:g} s") from None
        except OSError as error:
            raise DataError(picture, None, f"Chromium made no picture: {reason(error)}") from None
        if not shot.is_file():
            raise DataError(picture, None, f"Chromium made no picture: {one_line(done.stderr[-200:])}")
        shutil.move(shot, picture)


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

"""Output of a run while it runs: notices and a progress bar. Plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from launchopt.recording.results import Row
from runner.pager import console
from runner.plan.plan import Plan


def print_notices(notices: Sequence[str]) -> None:
    """Print a line for each notice, unwrapped."""
    for notice in notices:
        console().print(notice, soft_wrap=True, markup=False)


class Terminal:
    """The progress bar of one job of `runs` runs, on standard error; silent if that is not a terminal."""

    def __init__(self, plan: Plan, runs: int, notices: Sequence[str]) -> None:
        self._commands = plan.stream.commands
        self._done = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("commands"),
            TimeElapsedColumn(),
            console=console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("starting", total=self._commands * runs)
        print_notices(notices)

    def __enter__(self) -> Terminal:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def progress(self, label: str, popped: int) -> None:
        """Show the phase and the number of commands that this repeat has popped."""
        completed = self._done * self._commands + min(popped, self._commands)
        self._bar.update(self._task, description=label, completed=completed)

    def expects(self, runs: int) -> None:
        """Set the number of runs, which `repeats=auto` can raise."""
        self._bar.update(self._task, total=runs * self._commands)

    def finished(self, repeats: int) -> None:
        """Set the number of finished repeats."""
        self._done = repeats
        self._bar.update(self._task, completed=repeats * self._commands)


def throttled_repeats(rows: Sequence[Row]) -> str | None:
    """Return how many repeats of one mode were throttled, and why; None if NVML reported none."""
    throttled = [row for row in rows if row["throttled"]]
    if not throttled:
        return None
    reasons = dict.fromkeys(reason for row in throttled for reason in row["throttle_reasons"].split(", "))
    return f"{len(throttled)} of {len(rows)} ({', '.join(reasons)})"

"""Progress of a job, on standard error.

On a terminal the progress is a bar. In a pipe it is one line every 30 seconds, without escape codes:

    [1:30] batched 2/5: checking outputs, 9,000 checked; 1 of 5 runs, 20,000 of 50,000 commands, about 6:00 left
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from launchopt.recording.results import Row
from runner.plan.plan import Plan
from runner.run.screens.pace import Pace, clock_text
from runner.run.watchdog import Moved
from runner.screen.pager import console

PROGRESS_EVERY_S = 30.0  # time between two lines of progress in a pipe


class Terminal:
    """The progress of one job of `runs` repeats, on standard error. `name` precedes each phase: `job 3 (4 of 12)`."""

    def __init__(self, plan: Plan, runs: int, name: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._commands, self._runs, self._done = plan.stream.commands, runs, 0
        self._pace, self._name, self._clock = Pace(len(plan.arms), clock), name, clock
        self._began_s = self._printed_s = self._check_since_s = clock()
        self._has_begun = False
        self._is_piped = not sys.stderr.isatty()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("commands"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console(stderr=True),
            transient=True,
            disable=self._is_piped,
        )
        self._task = self._bar.add_task(self._named("starting"), total=self._commands * runs, left="")

    def __enter__(self) -> Terminal:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def progress(self, label: str, moved: Moved) -> None:
        """Show the phase, and how many commands of the run under way were popped, and checked."""
        completed = self._done * self._commands + min(moved.popped, self._commands)
        left_s = self._pace.left_s(self._runs)
        left = "" if left_s is None else f"about {clock_text(left_s)} left"
        if moved.checked:
            label = f"{label}, {moved.checked:,} checked"
            left = left or self._left_of_check(moved.checked)
        else:
            self._check_since_s = self._clock()
        if not self._is_piped:
            self._bar.update(self._task, description=self._named(label), completed=completed, left=left)
        elif self._clock() - self._printed_s >= PROGRESS_EVERY_S:
            self._printed_s = self._clock()
            commands = f"{completed:,} of {self._runs * self._commands:,} commands"
            parts = [f"{self._done} of {self._runs} runs", commands, *([left] if left else [])]
            counts = f"; {', '.join(parts)}" if self._has_begun else ""  # before the first run all of them are 0
            took = clock_text(self._clock() - self._began_s)
            print(f"[{took}] {self._named(label)}{counts}", file=sys.stderr, flush=True)

    def _left_of_check(self, checked: int) -> str:
        """Return how long the first check still takes: without a finished run, nothing more is known."""
        spent_s = self._clock() - self._check_since_s
        left_s = spent_s * max(0, self._commands - checked) / checked
        return f"about {clock_text(left_s)} left of this check"

    def begun(self) -> None:
        """Start the clock of the first run: preparations before it, such as operands and plans, are not repeated."""
        self._has_begun = True
        self._pace.begun()

    def expects(self, runs: int) -> None:
        """Set the number of runs, which `repeats=auto` can raise."""
        self._runs = runs
        self._bar.update(self._task, total=runs * self._commands)

    def finished(self, arm: int) -> None:
        """Count a run of the arm with this index."""
        self._done += 1
        self._pace.finished(arm)
        self._bar.update(self._task, completed=self._done * self._commands)

    def _named(self, label: str) -> str:
        return f"{self._name}: {label}" if self._name else label


def throttled_repeats(rows: Sequence[Row]) -> str | None:
    """Return how many repeats of one mode were throttled, and why; None if NVML reported none."""
    throttled = [row for row in rows if row["throttled"]]
    if not throttled:
        return None
    reasons = dict.fromkeys(reason for row in throttled for reason in row["throttle_reasons"].split(", "))
    return f"{len(throttled)} of {len(rows)} ({', '.join(reasons)})"

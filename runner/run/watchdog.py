"""Ends a run that stands still: a child is stopped or deadlocked, or waits for a GPU that hangs.

The parent reads the rings' words anyway. While they stand still it also reads the children's processor time and context
switches from the operating system, which costs the children nothing. `StalledError` names the child, the time and the
phase. Limits, in multiples of `watchdog_s`:

- 1 for a child that uses no processor: it is stopped, or waits for ever. A child with processes of its own, such as
  compilers, waits for those.
- 10 (`BUSY_TIMED`) for children that run while no command moves in a timed run: spinning for a hung GPU looks like
  computing. An open loop may wait for its next arrival without limit.
- 60 (`BUSY_ELSE`) for a child that runs outside the timed region: it compiles, tunes or writes, or checks one part of
  the outputs.

Time in which the parent itself did not run (Ctrl-Z, a suspended machine) does not count.

`limited` ends a job after `job_timeout_s`, whether or not it makes progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import psutil

from launchopt.errors import RunError

BUSY_TIMED, BUSY_ELSE = 10, 60
CHECKS = 4  # minimum number of checks of the children within one limit
CHECK_S_MAX = 1.0  # between two checks; a longer pause of the parent counts as this much

Pulse = tuple[float, ...]  # a process's times and context switches


class Moved(NamedTuple):
    """How many commands of the run under way were popped, and how many were checked after it; 0 without a run."""

    popped: int = 0
    checked: int = 0


Progress = Callable[[str, Moved], None]  # takes the label of the phase


def limited(progress: Progress, limit_s: float | None) -> Progress:
    """Wrap `progress` to raise RunError once `limit_s` seconds have passed from now; None is no limit.

    The session reports progress many times a second while it waits. So the error is raised where children, ring and
    folder are cleaned up, and finished repeats are kept.
    """
    if limit_s is None:
        return progress
    end_s = time.monotonic() + limit_s

    def report(label: str, moved: Moved) -> None:
        if time.monotonic() > end_s:
            raise RunError(f"timeout: longer than job_timeout_s={limit_s:g} (at: {label}); finished repeats are kept")
        progress(label, moved)

    return report


class Watched(Protocol):
    """The properties of a child that the watchdog uses."""

    name: str

    @property
    def pid(self) -> int:
        """Process id of the child."""


class StalledError(RunError):
    """Nothing moved for too long. The caller kills `child`, which no longer reads its pipe."""

    def __init__(self, text: str, child: Watched) -> None:
        super().__init__(text)
        self.child = child


def pulse_of(pid: int) -> Pulse:
    """Return numbers that change whenever the process runs; empty if it is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times, switches = process.cpu_times(), process.num_ctx_switches()
    except psutil.Error:
        return ()
    return (times.user, times.system, switches.voluntary, switches.involuntary)


def has_helpers(pid: int) -> bool:
    """Return whether a process that is not stopped has live children."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_STOPPED:
            return False
        return any(helper.status() != psutil.STATUS_ZOMBIE for helper in process.children())
    except psutil.Error:
        return False


class Watchdog:
    """The watchdog of one session. `limit_s` of 0 disables it."""

    def __init__(
        self,
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
        pulse: Callable[[int], Pulse] = pulse_of,
        helpers: Callable[[int], bool] = has_helpers,
    ) -> None:
        self._limit_s, self._clock, self._pulse, self._helpers = limit_s, clock, pulse, helpers
        self._check_s = min(CHECK_S_MAX, limit_s / CHECKS)
        self.begin("starting", timed=False)

    def begin(self, label: str, timed: bool) -> None:
        """Begin a phase: time before it no longer counts. With `timed` commands are expected to move."""
        self._label, self._timed = label, timed
        self._last_s = self._clock()
        self._words: tuple[int, ...] = ()
        self._moved()

    def _moved(self) -> None:
        self._still_s = self._checked_s = 0.0  # since the words changed; the part of it before the last check
        self._pulses: dict[str, Pulse] = {}
        self._since_s: dict[str, float] = {}  # value of `_still_s` when a pulse changed

    def look(self, words: tuple[int, ...], owing: Sequence[Watched], may_wait: bool = False) -> None:
        """Raise StalledError if nothing has moved for too long.

        `words` are the rings' heads and tails. `owing` are the children that have yet to answer, the likeliest to hang
        first. With `may_wait` (an open loop whose ring is empty) a child that runs, but moves no command, is no fault.
        """
        if not self._limit_s:
            return
        now_s = self._clock()
        self._still_s += min(now_s - self._last_s, self._check_s)
        self._last_s = now_s
        if words != self._words:
            self._words = words
            self._moved()
        elif self._still_s - self._checked_s >= self._check_s:
            self._checked_s = self._still_s
            self._check(owing, may_wait)

    def _check(self, owing: Sequence[Watched], may_wait: bool) -> None:
        for child in owing:
            pulse = self._pulse(child.pid)
            if self._pulses.get(child.name) != pulse:
                self._pulses[child.name], self._since_s[child.name] = pulse, self._still_s
            quiet_s = self._still_s - self._since_s[child.name]
            if quiet_s >= self._limit_s and not self._helpers(child.pid):
                raise self._stalled(child, f"has not moved for {quiet_s:.3g} s", "")
        times = BUSY_TIMED if self._timed else BUSY_ELSE
        if owing and not may_wait and self._still_s >= times * self._limit_s:
            what = "no command moves" if self._timed else "gets nowhere"
            raise self._stalled(owing[0], f"runs, but {what} for {self._still_s:.3g} s", f" ({times} times that)")

    def _stalled(self, child: Watched, what: str, factor: str) -> StalledError:
        limit = f"watchdog_s={self._limit_s:g}{factor}: raise it if that is no fault; 0 waits for ever"
        return StalledError(f"{child.name} {what} ({self._label}); {limit}", child)

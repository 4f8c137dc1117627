"""Ends a run in which nothing moves any more: a child that was stopped, is deadlocked, or waits for a GPU that hangs.

In: the rings' words, which the parent reads anyhow, and where they stand still what the kernel knows of the children
(processor time, context switches). Out: nothing, or `StalledError`, which names who, for how long and in which
phase. The children do nothing for it. Allowances, in multiples of `watchdog_s`:

- 1 for a child that does not even run: it is stopped, or waits for ever. One with processes of its own, compilers say,
  waits for those.
- 10 (`BUSY_TIMED`) for children that run while commands ought to move and none does: spinning for a hung GPU looks just
  like computing. An open loop may wait for its next arrival for as long as it likes.
- 60 (`BUSY_ELSE`) for one that runs outside the timed region: compiling, tuning, checking, writing.

Time that the parent did not run itself (Ctrl-Z, a machine that slept) counts for nobody.

`limited` ends a job after `job_timeout_s`, whether or not it makes progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import psutil

from launchopt.errors import RunError

BUSY_TIMED, BUSY_ELSE = 10, 60
LOOKS = 4  # at the children within one allowance, at the least
LONGEST_LOOK_S = 1.0  # between two of them; what is longer was no time of ours

Pulse = tuple[float, ...]
Progress = Callable[[str, int], None]  # label of the phase, commands popped so far


def limited(progress: Progress, limit_s: float | None) -> Progress:
    """Wrap `progress` to raise RunError once `limit_s` seconds have passed from now; None is no limit.

    The session reports progress many times a second while it waits. So the error comes where children, ring and folder
    can be cleaned up, and finished repeats are kept.
    """
    if limit_s is None:
        return progress
    end_s = time.monotonic() + limit_s

    def report(label: str, popped: int) -> None:
        if time.monotonic() > end_s:
            raise RunError(f"timeout: longer than job_timeout_s={limit_s:g} (at: {label}); finished repeats are kept")
        progress(label, popped)

    return report


class Watched(Protocol):
    """A child, as far as the watchdog cares."""

    name: str

    @property
    def pid(self) -> int:
        """Of its process."""


class StalledError(RunError):
    """Nothing moved for too long; `child` is to be killed, for it will not end when asked."""

    def __init__(self, text: str, child: Watched) -> None:
        super().__init__(text)
        self.child = child


def pulse_of(pid: int) -> Pulse:
    """Changes while a process runs at all, however shortly; empty when it is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times, switches = process.cpu_times(), process.num_ctx_switches()
    except psutil.Error:
        return ()
    return (times.user, times.system, switches.voluntary, switches.involuntary)


def has_helpers(pid: int) -> bool:
    """Whether a process has live processes of its own."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_STOPPED:
            return False
        return any(helper.status() != psutil.STATUS_ZOMBIE for helper in process.children())
    except psutil.Error:
        return False


class Watchdog:
    """Of one session. `limit_s` 0: never barks."""

    def __init__(
        self,
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
        pulse: Callable[[int], Pulse] = pulse_of,
        helpers: Callable[[int], bool] = has_helpers,
    ) -> None:
        self._limit_s, self._clock, self._pulse, self._helpers = limit_s, clock, pulse, helpers
        self._look_s = min(LONGEST_LOOK_S, limit_s / LOOKS)
        self.begin("starting", timed=False)

    def begin(self, label: str, timed: bool) -> None:
        """A new phase: what was before is held against nobody. `timed`: commands ought to move."""
        self._label, self._timed = label, timed
        self._last_s = self._clock()
        self._words: tuple[int, ...] = ()
        self._moved()

    def _moved(self) -> None:
        self._still_s = self._felt_s = 0.0  # since the words changed; of it until the last feeling of pulses
        self._pulses: dict[str, Pulse] = {}
        self._since_s: dict[str, float] = {}  # when a pulse changed, on the scale of `_still_s`

    def look(self, words: tuple[int, ...], owing: Sequence[Watched], may_wait: bool = False) -> None:
        """Raise StalledError where nothing moves any more.

        `owing`: children of whom something is expected, the likeliest culprit first; `may_wait`: for an arrival.
        """
        if not self._limit_s:
            return
        now_s = self._clock()
        self._still_s += min(now_s - self._last_s, self._look_s)
        self._last_s = now_s
        if words != self._words:
            self._words = words
            self._moved()
        elif self._still_s - self._felt_s >= self._look_s:
            self._felt_s = self._still_s
            self._feel(owing, may_wait)

    def _feel(self, owing: Sequence[Watched], may_wait: bool) -> None:
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

    def _stalled(self, child: Watched, what: str, allowance: str) -> StalledError:
        much = f"watchdog_s={self._limit_s:g}{allowance}: raise it where that is no fault, 0 waits for ever"
        return StalledError(f"{child.name} {what} ({self._label}); {much}", child)

"""Signals during a run.

The first Ctrl-C lets the current repeat finish, with its check, and then ends the run. Outside a repeat it ends the run
at once, as do a second Ctrl-C, SIGTERM and SIGHUP (which nohup disables). Finished repeats are kept. The exit code is
130.

The run ends by a KeyboardInterrupt, which cleans up children, rings and folder within seconds. Further signals are
ignored, since they would interrupt the cleanup.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from runner.run.children import interrupted

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


Handler = Callable[[int, FrameType | None], object] | int | None  # what `signal.signal` takes and returns


class Signals:
    """Handles the signals during a run. A context manager."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Handler] = {}
        self._current: str | None = None  # label of the current repeat
        self._is_ending = self._is_announced = False

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for each in STOPPING:
                if signal.getsignal(each) is not signal.SIG_IGN:
                    self._before[each] = signal.signal(each, self._take)
        if interrupted():
            self._stop()
        return self

    @contextlib.contextmanager
    def finishing(self, label: str) -> Iterator[None]:
        """Let the first Ctrl-C wait for the end of this block."""
        self._current = label
        yield
        self._current = None
        if self._is_ending:
            self._stop()

    def announce(self) -> None:
        """Confirm the first Ctrl-C. Its handler cannot: it may interrupt another print."""
        if self._is_ending and not self._is_announced:
            self._is_announced = True
            print(f"finishing {self._current}; Ctrl-C again stops now", file=sys.stderr, flush=True)

    def _take(self, number: int, frame: object) -> None:
        if number == signal.SIGINT and self._current is not None and not self._is_ending:
            self._is_ending = True
        else:
            self._stop()

    def _stop(self) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_IGN)
        self._before.clear()
        raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

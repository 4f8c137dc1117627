"""What a signal means to a run.

Ctrl-C once: finish the repeat under way, with its check, keep it and end; where none is under way, stop now. Ctrl-C
again, SIGTERM or SIGHUP (the terminal is gone; not under nohup): stop now, which keeps the repeats finished before.
Either way the exit code is 130.

To stop is to raise KeyboardInterrupt: children, rings and folder are put in order then, which takes seconds at most.
Later signals are ignored to the end of the process, or they would undo that order.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from runner.run.children import interrupted

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Takes the signals while a run is on. A context manager."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._under_way: str | None = None
        self._asked = self._said = False

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
        """What is done in here is worth finishing: Ctrl-C waits for its end, once."""
        self._under_way = label
        yield
        self._under_way = None
        if self._asked:
            self._stop()

    def announce(self) -> None:
        """Say that the first Ctrl-C was heard. Not said in its handler: printing must not interrupt printing."""
        if self._asked and not self._said:
            self._said = True
            print(f"finishing {self._under_way}; Ctrl-C again stops now", file=sys.stderr, flush=True)

    def _take(self, number: int, frame: object) -> None:
        if number == signal.SIGINT and self._under_way is not None and not self._asked:
            self._asked = True
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

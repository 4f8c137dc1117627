"""The signals that end a command: SIGINT (Ctrl-C), SIGTERM and SIGHUP.

A signal raises `Stopped`, which cleans up as it passes, and the process ends with 128 plus the signal's number: 130,
143 or 129. Later signals are ignored while the process cleans up, for at most PATIENCE_S.

- Before the command starts there is nothing to clean up: the process ends at once.
- In a block of `signals.held()`, which an exception must not cut in two, a signal waits for the end of the block. Such
  blocks are imports (libraries lose exceptions there), the start of a child, and the record of a repeat.
- In a block of `signals.finishing(label)`, a repeat, the first Ctrl-C waits for the end of the block.
- A signal that was ignored when the process began stays ignored, as nohup asks.

This module imports only modules that the interpreter has loaded already, so that the handlers are installed early.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` takes a third of the interpreter's start
import os
import sys
import time

TYPE_CHECKING = False  # that of `typing` takes 4 ms
if TYPE_CHECKING:
    from types import TracebackType
    from typing import NoReturn

STOPPING = {signal.SIGINT: "SIGINT", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
PATIENCE_S = 20.0  # the ending may take this long; a signal after that ends the process without any further cleanup
RETRY_S = 0.02


class Stopped(KeyboardInterrupt):
    """A signal that ends this process. Libraries let a KeyboardInterrupt pass."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number

    def __str__(self) -> str:
        """Return `interrupted`, with the signal's name unless it is Ctrl-C."""
        return how_stopped(self)


def how_stopped(stop: BaseException) -> str:
    """Return `interrupted`, or `interrupted by SIGTERM`."""
    name = STOPPING.get(stop_code(stop) - 128, "SIGINT")
    return "interrupted" if name == "SIGINT" else f"interrupted by {name}"


def stop_code(stop: BaseException) -> int:
    """Return the exit code of a process that a KeyboardInterrupt ends."""
    return stop.exit_code if isinstance(stop, Stopped) else 128 + signal.SIGINT


class Signals:
    """The signals that end this process, and what they do at the moment."""

    def __init__(self) -> None:
        self._is_standing = self._is_orderly = self._is_over = False
        self._holds = 0
        self._taken = 0  # number of the signal that ends this process
        self._taken_s = 0.0
        self._is_raised = self._is_lost = False  # lost: Python could not raise it, and it is to be raised once more
        self._repeat: str | None = None  # label of the repeat under way
        self._is_last = self._is_announced = False

    def stand(self) -> None:
        """Install the handlers, unless they are there. Only the main thread can."""
        if self._is_standing:
            return
        self._is_standing = True
        for number in STOPPING:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.take)
        signal.signal(signal.SIGALRM, self._again)
        sys.unraisablehook, sys.excepthook = self._unraisable, self._uncaught

    def orderly(self) -> None:
        """From here on a signal raises `Stopped`."""
        self._is_orderly = True

    def over(self) -> None:
        """From here on all signals are ignored: the command has ended and its exit code is known."""
        self._is_over = True
        if self._is_standing:  # Python takes its handlers away as it ends
            for number in (*STOPPING, signal.SIGALRM):
                signal.signal(number, signal.SIG_IGN)

    def take(self, number: int, frame: object = None) -> None:
        """Handle a signal."""
        if self._is_over:
            return
        if self._taken:
            if time.monotonic() - self._taken_s > PATIENCE_S:
                self._end_at_once(number)
            return
        if not self._is_orderly:
            self._end_at_once(number)
        if number == signal.SIGINT and self._repeat is not None and not self._is_last:
            self._is_last = True
            return
        self._taken, self._taken_s = number, time.monotonic()
        if not self._holds:
            self._raise()

    @property
    def is_taken(self) -> bool:
        """Whether a signal ends this process, now or at the end of a block in which signals wait."""
        return bool(self._taken)

    @property
    def is_raised(self) -> bool:
        """Whether `Stopped` was raised: a later error may be what a library made of it."""
        return self._is_raised

    def stopped(self) -> Stopped:
        """Return the exception of the signal that ends this process."""
        return Stopped(self._taken)

    def check(self) -> None:
        """Raise `Stopped` if a signal has been taken: a library may have lost the exception, or made another of it."""
        if self._taken and not self._holds:
            self._raise()

    def check_lost(self) -> None:
        """Raise `Stopped` if it was raised before: the error that was caught may be what a library made of it."""
        if self._is_raised:
            self._raise()

    def held(self) -> Held:
        """Return a context in which signals wait."""
        return Held(self)

    def hold(self) -> None:
        """Begin a block in which signals wait."""
        self._holds += 1

    def release(self) -> None:
        """End such a block; raise `Stopped` if a signal came during it, or was lost."""
        self._holds -= 1
        if self._taken and not self._holds and (self._is_lost or not self._is_raised):
            self._raise()

    def finishing(self, label: str) -> Finishing:
        """Return a context whose end the first Ctrl-C waits for. label: of the repeat."""
        return Finishing(self, label)

    def begin_repeat(self, label: str) -> None:
        """Begin a block whose end the first Ctrl-C waits for."""
        self._repeat = label

    def end_repeat(self, failed: bool) -> None:
        """End such a block; if Ctrl-C came during it, raise `Stopped`. failed: only at the next `check`."""
        self._repeat = None
        if self._is_last and not self._taken:
            self._holds += failed
            try:
                self.take(signal.SIGINT)
            finally:
                self._holds -= failed

    def announce(self) -> None:
        """Confirm the first Ctrl-C. Its handler cannot: it may interrupt another print."""
        if self._is_last and not self._is_announced:
            self._is_announced = True
            print(f"finishing {self._repeat}; Ctrl-C again stops now", file=sys.stderr, flush=True)

    def _raise(self) -> NoReturn:
        self._is_raised, self._is_lost = True, False
        raise Stopped(self._taken)

    def _end_at_once(self, number: int) -> NoReturn:
        try:
            os.write(2, f"error: {Stopped(number)}\n".encode())
        finally:
            os._exit(128 + number)

    def _again(self, number: int, frame: object) -> None:
        """Raise `Stopped` once more, unless another place has done so since Python lost it, or is about to."""
        if self._is_lost and not self._is_over and not self._holds:
            self._raise()

    def _unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """Keep a `Stopped` that Python cannot raise where it is, for example in a `__del__`."""
        if isinstance(lost.exc_value, Stopped):
            self._is_lost = True
            signal.setitimer(signal.ITIMER_REAL, RETRY_S)
        else:
            sys.__unraisablehook__(lost)

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Print no traceback of a `Stopped`: libraries print one as they make another error of it."""
        if not isinstance(error, Stopped):
            sys.__excepthook__(kind, error, trace)


class Held:
    """A block in which signals wait. A context manager."""

    def __init__(self, of: Signals) -> None:
        self._signals = of

    def __enter__(self) -> None:
        self._signals.hold()

    def __exit__(self, *error: object) -> None:
        self._signals.release()


class Finishing:
    """A repeat whose end the first Ctrl-C waits for. A context manager."""

    def __init__(self, of: Signals, label: str) -> None:
        self._signals, self._label = of, label

    def __enter__(self) -> None:
        self._signals.begin_repeat(self._label)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._signals.end_repeat(failed=error is not None)


signals = Signals()

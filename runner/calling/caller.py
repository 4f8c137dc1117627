"""Start a run in a process of its own, show its progress, and raise the error with which it ended.

The process is `child`. It is a new interpreter, which never runs the program's main module again. It has a process
group of its own, so that Ctrl-C reaches the program alone, which sends it on. Standard input is left to the program.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, TypeVar

from launchopt.errors import Interrupted, LaunchoptError, RunError, last_line, one_line
from launchopt.files import reason
from runner.calling.child import STOPPING, Ended
from runner.ending.signals import Stopped, how_stopped
from runner.worker.orphans import mark

ROOT = Path(__file__).parents[2]  # folder with the packages
# The folder of the program is not on the path: a module of the user must not stand for one of ours.
BOOT = (
    "import sys; sys.argv[1] in sys.path or sys.path.insert(0, sys.argv[1]); "
    "from runner.calling.child import main; main()"
)
GRACE_S = 25.0  # to end in order, before the process is killed
READ_BYTES, POLL_S = 1 << 16, 1.0
MOST_STOPS = 2  # a third Ctrl-C waits only until the process has ended


def show(text: str) -> None:
    """Write text to the program's standard error, if there is any and somebody reads it."""
    if text and sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it is closed: the run goes on
            sys.stderr.write(text)
            sys.stderr.flush()


class Screen:
    """Standard error of the run, which the program shows as it comes."""

    def __init__(self, source: IO[bytes], is_quiet: bool) -> None:
        self.source = source
        self._line, self._begun = "", ""  # the last whole line that tells something, and what came of the next one
        self._is_quiet, self._decoder = is_quiet, codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def last(self) -> str:
        """The last line so far that tells something."""
        return last_line(self._begun) or self._line

    def read(self) -> bool:
        """Show what can be read without waiting. Return whether there may be more later."""
        found = os.read(self.source.fileno(), READ_BYTES)
        text = self._decoder.decode(found, final=not found)
        *whole, self._begun = (self._begun + text).split("\n")
        self._line = last_line("\n".join(whole)) or self._line
        if not self._is_quiet:
            show(text)
        return bool(found)


class Call:
    """A run under way."""

    def __init__(self, process: subprocess.Popen[bytes], results: Connection, screen: Screen) -> None:
        self._process, self._results, self._screen = process, results, screen
        self._ended: Ended | None = None

    def interrupt(self) -> None:
        """Send Ctrl-C on to the run."""
        self._process.send_signal(signal.SIGINT)

    def wait(self) -> Ended:
        """Show the run's standard error until it has ended, and return how. After an exception, call it again."""
        self._watch()
        with contextlib.suppress(EOFError):  # the process ended without a word
            if self._ended is None and self._results.poll():
                self._ended = self._results.recv()
        code = self._process.wait()
        if self._ended is not None and (self._ended.error is not None or not self._ended.exit_code):
            return self._ended
        return Ended(code, self._ended.folder if self._ended else None, self._unexplained(code))

    def _watch(self) -> None:
        """Show standard error until the process has sent its `Ended`, or has ended without.

        Its end need not close the pipe: a fork that another thread made meanwhile holds it, too.
        """
        with selectors.DefaultSelector() as ready:
            ready.register(self._results, selectors.EVENT_READ)
            ready.register(self._screen.source, selectors.EVENT_READ)
            while True:
                found = {key.fileobj for key, _ in ready.select(POLL_S)}
                if self._screen.source in found:
                    if not self._screen.read():
                        ready.unregister(self._screen.source)
                elif found or self._process.poll() is not None:
                    return

    def _unexplained(self, code: int) -> LaunchoptError:
        """Return the error of a process that sent none."""
        if code - 128 in STOPPING:
            return Interrupted(how_stopped(Stopped(code - 128)), code)
        if code < 0:
            return RunError(f"the process of the run was ended by {signal.Signals(-code).name}")
        return RunError(self._screen.last.removeprefix("error: ") or f"the process of the run ended with code {code}")


def call(words: Sequence[str], *, is_quiet: bool = False) -> Path:
    """Run the words as `launchopt run` does, and return the folder of the results.

    Raise the LaunchoptError of the run, with a note where results are. On Ctrl-C, wait until the run has saved its
    finished repeats, and raise KeyboardInterrupt. A second Ctrl-C does not wait for the repeat under way.
    """
    stops, stopped = 0, KeyboardInterrupt()
    with _started(words, is_quiet) as run:
        while True:
            try:
                ended = run.wait()
                break
            except KeyboardInterrupt as stop:
                stops, stopped = stops + 1, stop
                if stops > MOST_STOPS:
                    raise
                run.interrupt()
    if isinstance(stopped, Stopped):  # by another signal than Ctrl-C
        raise _noted(Stopped(stopped.exit_code - 128), ended.folder)
    if stops:
        raise _noted(KeyboardInterrupt(str(ended.error or "interrupted, and the run had ended")), ended.folder)
    if ended.error is not None:
        raise _noted(ended.error, ended.folder)
    if ended.folder is None:
        raise RunError(f"these settings run nothing; type: launchopt run {one_line(' '.join(words), 200)}")
    return ended.folder


Raised = TypeVar("Raised", bound=BaseException)


def _noted(error: Raised, folder: Path | None) -> Raised:
    """Return the error with a note that says how to read the finished repeats, if there are some."""
    if folder is not None and any(folder.rglob("summary.parquet")):
        error.add_note(f"finished repeats: launchopt.load({str(folder)!r})")
    return error


@contextlib.contextmanager
def _started(words: Sequence[str], is_quiet: bool) -> Iterator[Call]:
    """Start the process of a run. At the end of the block it has ended."""
    if not sys.executable:
        raise RunError("this interpreter does not say where it is (sys.executable), so it cannot start a run")
    results, other = Pipe(duplex=False)
    with results, contextlib.ExitStack() as stack:
        call = [sys.executable, "-P", "-c", BOOT, str(ROOT), str(other.fileno()), str(os.getpid()), *words]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            with other:
                process = subprocess.Popen(
                    call,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # the result has what the command prints
                    stderr=subprocess.PIPE,
                    env=os.environ | mark(),
                    pass_fds=[other.fileno()],
                    process_group=0,
                )
            stack.callback(_end, process)
        except OSError as error:
            raise RunError(f"the process of the run cannot be started: {reason(error)}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert process.stderr is not None
        yield Call(process, results, Screen(process.stderr, is_quiet))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs: ask it, and kill it after GRACE_S."""
    with process:
        if process.poll() is None:
            try:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
            finally:
                process.kill()

"""Standard output and error that outlive their readers: no command ends halfway because nobody takes its output.

Standard output may be closed, full, or a pipe without a reader. The command continues, and its files are complete. Its
exit code (`settled`) is CLOSED for a pipe without a reader, and 1, with a line on standard error, for any other reason.
A command that fails keeps its own exit code. Failures of standard error are ignored.
"""

from __future__ import annotations

import io
import os
import select
import sys

from runner.ending.signals import signals

TYPE_CHECKING = False  # that of `typing` takes 4 ms
if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CLOSED = 141  # exit code of a program that SIGPIPE ended, in a shell: 128 + 13
PIPE_BYTES = 4096  # PIPE_BUF: a pipe that is ready takes as many
PATIENCE_S, PAUSE_S = 1.0, 0.1
_EPIPE, _ETIMEDOUT = 32, 110  # of the module `errno`


class Output(io.FileIO):
    """A standard stream that goes on when its file takes no more. `failure` is the first error.

    A reader that pauses delays the command, unless a signal ends it: then the stream waits for at most PATIENCE_S.
    """

    failure: OSError | None = None

    def write(self, data: ReadableBuffer) -> int:
        """Write, and return the number of bytes; all of them after a failure."""
        whole = memoryview(data)
        if self.failure is None:
            try:
                self._wait()
                return super().write(whole[:PIPE_BYTES]) or 0  # None: a socket that would block after all
            except OSError as error:
                self.failure = error
        return whole.nbytes

    def _wait(self) -> None:
        """Wait until PIPE_BYTES can be written. A write that blocks would not see a signal."""
        ready, waited_s = select.poll(), 0.0
        ready.register(self, select.POLLOUT)
        while not ready.poll(PAUSE_S * 1e3):
            waited_s += PAUSE_S
            if signals.is_taken and waited_s > PATIENCE_S:
                raise OSError(_ETIMEDOUT, "nobody reads it")


_outputs: list[Output] = []  # standard output, then standard error, once `open_outputs` has been called


def open_outputs() -> None:
    """Make `sys.stdout` and `sys.stderr` streams that outlive their readers. Open standard files that are closed.

    A character that the encoding of a stream lacks is printed as its escape: `\\u2014`.
    """
    if _outputs:
        return
    for number in range(3):
        _open(number)
    for number, name in ((1, "stdout"), (2, "stderr")):
        before = getattr(sys, name)
        raw = Output(number, "w", closefd=False)
        encoding = before.encoding if before else "utf-8"
        lines = number == 2 or raw.isatty() or getattr(before, "write_through", False)  # of -u
        buffer = io.BufferedWriter(raw)
        setattr(sys, name, io.TextIOWrapper(buffer, encoding, "backslashreplace", newline="\n", line_buffering=lines))
        _outputs.append(raw)


def _open(number: int) -> None:
    """Open a standard file that is closed, so that no other file gets its number. It can only be read."""
    try:
        os.fstat(number)
    except OSError:
        file = os.open(os.devnull, os.O_RDONLY)
        if file != number:
            os.dup2(file, number)
            os.close(file)
        os.set_inheritable(number, True)
        if number == 0:
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 (a file number, open until the end)


def settled(code: int) -> int:
    """Flush both outputs, and return the exit code of a command that ends with `code`."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    failure = _outputs[0].failure
    if failure is None or code:
        return code
    if failure.errno == _EPIPE:
        return CLOSED
    why = os.strerror(failure.errno or 0)
    print(
        f"error: standard output: {why}; the command finished, and its files are complete", file=sys.stderr, flush=True
    )
    return 1

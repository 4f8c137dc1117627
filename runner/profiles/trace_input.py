"""Traces that come through standard input: kept in a temporary file, since a reader reads parts of a file twice.

A pipe may hold up to PIPE_BYTES_MAX, and may be silent for PIPE_SILENCE_S.
"""

from __future__ import annotations

import select
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, UnsupportedOperation
from pathlib import Path
from typing import BinaryIO, cast

from launchopt.errors import DataError
from launchopt.files import is_there
from launchopt.scratch import scratch
from launchopt.traces.events import detect
from launchopt.traces.json_stream import BLANK_BYTES_MAX

STDIN = Path("-")
STDIN_NAME = "standard input"
PIPE_BYTES_MAX = 16 << 30
PIPE_SILENCE_S = 60
_READ_BYTES = 1 << 20


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a file with the content of `path`: itself, or a copy of standard input for `-`.

    A DataError that is raised in the block names `path`. Raise DataError for a pipe that has a name.
    """
    if path != STDIN:
        if _is_pipe(path):
            raise DataError(path, None, "a pipe, not a regular file; type: launchopt trace - < PIPE")
        if is_there(path) and path.is_dir():
            raise DataError(path, None, "is a folder; of a run, type: launchopt report RUN --timeline FILE.json")
        yield path
        return
    try:
        with scratch() as folder:
            copy = folder / "trace"
            with copy.open("xb") as target:
                _copy(_standard_input(), target, copy)
            yield copy
    except DataError as error:
        raise DataError(STDIN_NAME, error.line, error.problem) from None
    except (OSError, ValueError) as error:
        raise DataError(STDIN_NAME, None, f"cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _copy(source: BufferedReader, target: BinaryIO, path: Path) -> None:
    """Copy `source` to `target`, the file at `path`. Raise DataError as soon as it is no trace."""
    size = blank_bytes = 0
    while True:
        if _is_silent(source):
            raise DataError(STDIN_NAME, None, f"sent nothing for {PIPE_SILENCE_S} s, after {size:,} bytes")
        if not (block := source.read1(_READ_BYTES)):
            break
        is_known = size > _READ_BYTES
        size += len(block)
        blank_bytes = blank_bytes + len(block) if block.isspace() else 0
        if size > PIPE_BYTES_MAX:
            raise DataError(STDIN_NAME, None, f"over {PIPE_BYTES_MAX >> 30} GiB: save the trace as a file, and name it")
        if blank_bytes > BLANK_BYTES_MAX:
            raise DataError(STDIN_NAME, None, f"over {BLANK_BYTES_MAX // 1_000_000} MB of white space in a row")
        target.write(block)
        if size > _READ_BYTES and not is_known:
            target.flush()
            detect(path)
    target.flush()


def _is_silent(source: BufferedReader) -> bool:
    """Wait until `source` sends something or ends. Return whether it does neither for PIPE_SILENCE_S."""
    try:
        waiting = select.poll()
        waiting.register(source.fileno(), select.POLLIN)
    except UnsupportedOperation:  # no file of the system
        return False
    return not waiting.poll(PIPE_SILENCE_S * 1000)


def _is_pipe(path: Path) -> bool:
    try:
        return stat.S_ISFIFO(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _standard_input() -> BufferedReader:
    if sys.stdin is None or sys.stdin.closed:
        raise DataError(STDIN_NAME, None, "is closed: pipe a trace in")
    if sys.stdin.isatty():
        raise DataError(
            "standard input", None, "is a terminal: pipe a trace in, as in `cat t.json | launchopt trace -`"
        )
    return cast(BufferedReader, sys.stdin.buffer)

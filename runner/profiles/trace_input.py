"""Traces that come through a pipe: kept in a temporary file, since a reader reads parts of a file twice."""

from __future__ import annotations

import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from launchopt.errors import DataError

STDIN = Path("-")
STDIN_NAME = "standard input"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a file with the content of `path`: itself, or a copy of a pipe. `-` is standard input.

    A DataError that is raised in the block names `path`.
    """
    if path != STDIN and not _is_pipe(path):
        yield path
        return
    shown = STDIN_NAME if path == STDIN else path
    with ExitStack() as opened:
        try:
            source = _standard_input() if path == STDIN else opened.enter_context(path.open("rb"))
            copy = opened.enter_context(tempfile.NamedTemporaryFile(prefix="launchopt-trace-"))
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
        except (OSError, ValueError) as error:
            raise DataError(shown, None, f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
        try:
            yield Path(copy.name)
        except DataError as error:
            raise DataError(shown, error.line, error.problem) from None


def _is_pipe(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _standard_input() -> BinaryIO:
    if sys.stdin is None or sys.stdin.closed:
        raise DataError(STDIN_NAME, None, "is closed: pipe a trace in")
    if sys.stdin.isatty():
        raise DataError(
            "standard input", None, "is a terminal: pipe a trace in, as in `cat t.json | launchopt trace -`"
        )
    return cast(BinaryIO, sys.stdin.buffer)

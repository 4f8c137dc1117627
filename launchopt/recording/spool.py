"""Rows of a ring buffer that are written to an anonymous file during a run, and read back after it.

The file never has a name, so that no file remains however the process ends. It is never truncated: a later run
overwrites the pages of an earlier run, which is faster than the allocation of new pages.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from launchopt.errors import RunError
from launchopt.files import reason

Rows = NDArray[np.int64]


class SpooledRows:
    """Numbered rows of int64.

    Row i is at index i % rows of `buffer` until it is overwritten; `spool` copies it to the file. rows: a power of two.
    folder: the folder of the file (None: that of temporary files).
    """

    def __init__(self, rows: int, columns: int, folder: Path | None) -> None:
        # np.full writes every page, so that no page fault occurs in a run.
        self.buffer: Rows = np.full((rows, columns), -1, np.int64)
        self._row_bytes = columns * self.buffer.itemsize
        self._folder = Path(folder or tempfile.gettempdir())
        try:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 (closed by `close`)
        except OSError as error:
            raise self._failed(error) from None
        self.close = weakref.finalize(self, self._file.close)  # safe to call twice, and called when this is dropped

    def spool(self, first: int, stop: int) -> None:
        """Write rows first:stop of the buffer to the file; raise RunError if the disk is full."""
        for row, piece in self._pieces(first, stop):
            rest, offset = memoryview(piece).cast("B"), row * self._row_bytes
            while len(rest):
                try:
                    written = os.pwrite(self._file.fileno(), rest, offset)
                except OSError as error:
                    raise self._failed(error) from None
                rest, offset = rest[written:], offset + written

    def read(self, first: int, stop: int, spooled: int) -> Rows:
        """Return a copy of rows first:stop. Rows before `spooled` come from the file, other rows from the buffer."""
        rows = np.empty((stop - first, self.buffer.shape[1]), np.int64)
        cut = min(max(first, spooled), stop)
        if cut > first:
            rest, offset = memoryview(rows[: cut - first]).cast("B"), first * self._row_bytes
            while len(rest):
                try:
                    got = os.preadv(self._file.fileno(), [rest], offset)
                except OSError as error:
                    raise RunError(f"recorded rows cannot be read in {self._folder}: {reason(error)}") from None
                if got == 0:
                    raise RunError(f"the file of recorded rows in {self._folder} was cut short")
                rest, offset = rest[got:], offset + got
        for row, piece in self._pieces(cut, stop):
            rows[row - first : row - first + len(piece)] = piece
        return rows

    def _pieces(self, first: int, stop: int) -> Iterator[tuple[int, Rows]]:
        """Yield (number of the first row, view) for views that cover rows first:stop of the buffer and do not wrap."""
        while first < stop:
            at = first & (len(self.buffer) - 1)
            piece = self.buffer[at : at + stop - first]
            yield first, piece
            first += len(piece)

    def _failed(self, error: OSError) -> RunError:
        return RunError(f"recorded rows cannot be written in {self._folder}: {reason(error)}")

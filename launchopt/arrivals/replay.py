"""Requests from a file, whichever of the formats it is in.

In: a path and one of `FORMATS`; `auto` looks at how the file begins.
Out: `Requests`, by the reader of that format; what it refuses is its DataError.
"""

from __future__ import annotations

from pathlib import Path

from launchopt.arrivals.azure import read_azure
from launchopt.arrivals.lines import BOM, unreadable
from launchopt.arrivals.mooncake import read_mooncake
from launchopt.arrivals.request_csv import read_request_csv
from launchopt.arrivals.requests import Requests
from launchopt.errors import DataError

FORMATS = ("auto", "azure", "mooncake", "csv")
HEAD_BYTES = 4096  # how far `auto` looks for the first byte that is no white space

_READERS = {"azure": read_azure, "mooncake": read_mooncake, "csv": read_request_csv}
_BEGINNINGS = {b"TIMESTAMP": "azure", b"{": "mooncake", b"arrival_ms": "csv"}


def read_requests(path: Path, file_format: str, limit: int | None) -> Requests:
    """The first `limit` requests (>= 1) of the file at `path`, or all of them if None.

    `file_format` is one of FORMATS; `auto` opens the file twice, so it cannot read from a pipe. Raises DataError
    as the format's reader does, and for a file that `auto` does not recognize.
    """
    assert file_format in FORMATS
    return _READERS[_recognized(path) if file_format == "auto" else file_format](path, limit)


def _recognized(path: Path) -> str:
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error
    head = head.removeprefix(BOM).lstrip()
    for beginning, file_format in _BEGINNINGS.items():
        if head.startswith(beginning):
            return file_format
    raise DataError(
        path,
        None,
        f"{'not recognized' if head else 'the file is empty'}; expected azure (beginning TIMESTAMP), "
        "mooncake (beginning {) or csv (beginning arrival_ms)",
    )

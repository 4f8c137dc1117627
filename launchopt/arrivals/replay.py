"""replay: as in the file at arrival.path: an Azure LLM trace (CSV), a Mooncake trace (JSONL), or our own CSV.

`read_requests` calls the reader of the format. `auto` chooses the reader by the beginning of the file.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launchopt.arrivals.azure import read_azure
from launchopt.arrivals.base import Arrival
from launchopt.arrivals.lines import BOM, unreadable
from launchopt.arrivals.mooncake import Prompt, read_mooncake, read_prompts
from launchopt.arrivals.request_csv import read_request_csv
from launchopt.arrivals.requests import Requests
from launchopt.errors import DataError
from launchopt.files import open_regular, user_path
from launchopt.options import REQUIRED, option


class TraceFormat(enum.Enum):
    """The formats of a file of requests."""

    auto = "auto"  # chosen by the beginning of the file
    azure = "azure"
    mooncake = "mooncake"
    csv = "csv"


FORMATS = tuple(each.value for each in TraceFormat)
HEAD_BYTES = 4096  # `auto` expects the first byte that is no white space within these

_READERS = {"azure": read_azure, "mooncake": read_mooncake, "csv": read_request_csv}
_BEGINNINGS = {b"TIMESTAMP": "azure", b"{": "mooncake", b"arrival_ms": "csv"}


def read_requests(path: Path, file_format: str, limit: int | None) -> Requests:
    """Return the first `limit` requests (>= 1) of the file at `path`; None: all of them.

    `file_format` is one of FORMATS. `auto` opens the file twice, so it cannot read a pipe. Raises the DataError of the
    format's reader, and one for a file that `auto` does not recognize.
    """
    assert file_format in FORMATS
    return _READERS[_recognized(path) if file_format == "auto" else file_format](path, limit)


def _recognized(path: Path) -> str:
    try:
        with open_regular(path) as file:
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


@dataclass(slots=True)
class Replay(Arrival):
    """Requests of a file, due at the times in it."""

    kind: str = "replay"
    path: str = option(REQUIRED, "the file")
    format: TraceFormat = option(TraceFormat.auto, "the file's format; auto: by how it begins")
    requests: int | None = option(None, "number of requests taken, from the first on; null: all", low=1)
    speed: float = option(1.0, "pace; 2: twice that of the trace", is_above_zero=True)

    has_requests: ClassVar[bool] = True

    def read(self) -> Requests:
        """Return the file's requests at the trace's own pace; DataError as `read_requests`."""
        return read_requests(user_path("arrival.path", self.path), self.format.value, self.requests)

    def prompts(self) -> list[Prompt] | None:
        """Return the prompts of the requests; None if the format does not say which blocks are the same."""
        path = user_path("arrival.path", self.path)
        is_auto = self.format is TraceFormat.auto
        if (_recognized(path) if is_auto else self.format.value) != TraceFormat.mooncake.value:
            return None
        return read_prompts(path, self.requests)

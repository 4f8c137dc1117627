"""The types that readers of traces return: the format of a file, detected by its content, and a `Trace`.

A `Trace` holds calls of the CUDA API and events of GPUs in structured arrays of about 60 bytes per event. Instead of
texts, these hold indices into a tuple of names.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.lines import BOM, unreadable
from launchopt.errors import DataError
from launchopt.files import open_regular
from launchopt.traces.json_stream import GZIP_MAGIC

HEAD_BYTES = 4096  # a trace begins within these
SQLITE_MAGIC = b"SQLite format 3\0"
ALLOWED = "expected Kineto or Chrome JSON, plain or gzip, or what `nsys export --type sqlite` writes"
NAME_CHARACTERS_MAX = 1000  # a longer name, such as that of a kernel from C++ templates, is cut
LATEST_NS = 2**62  # times are in (-LATEST_NS, LATEST_NS), so that differences fit into int64
ROWS_A_CHUNK = 1 << 16  # rows that are kept as Python tuples before they are packed into an array
NONE = -1  # an unknown correlation id, process, device, context or stream
EXTERNAL = 2**62  # an `External id` n stands in for a missing correlation id as EXTERNAL + n
NEAR_NS = 1_000_000
FAR_NS = 3_600 * 10**9  # longest pause in a trace; events that lie further before all others have no known time

CALL = np.dtype(
    [
        *(("start_ns", "i8"), ("end_ns", "i8"), ("correlation", "i8"), ("place", "i8")),
        *(("process", "i4"), ("thread", "i4"), ("name", "i4")),
    ]
)
GPU_EVENT = np.dtype(
    [
        *(("start_ns", "i8"), ("end_ns", "i8"), ("correlation", "i8"), ("place", "i8"), ("stream", "i8")),
        *(("process", "i4"), ("track", "i4"), ("device", "i4"), ("context", "i4"), ("name", "i4"), ("kind", "i4")),
        *(("collective", "i4"), ("gpu", "i4")),
    ]
)
OPERATOR = np.dtype([("start_ns", "i8"), ("end_ns", "i8"), ("process", "i4"), ("thread", "i4"), ("name", "i4")])
Rows = NDArray[np.void]


class Kind(IntEnum):
    """The kinds of GPU events. GRAPH: a whole CUDA graph, whose kernels the profiler did not record."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    GRAPH = 3


class Format(Enum):
    """The format of a file of events."""

    JSON = "Kineto or Chrome JSON"
    SQLITE = "nsys SQLite"


def detect(path: Path) -> Format:
    """Return the format of the file at `path`, by its first bytes; DataError if they are not those of a trace."""
    try:
        with open_regular(path) as file:
            head = file.read(HEAD_BYTES)
            if is_gzip := head.startswith(GZIP_MAGIC):
                file.seek(0)
                head = gzip.GzipFile(fileobj=file).read(HEAD_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(path, None, f"the gzip stream is damaged at its start ({error})") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if head.startswith(SQLITE_MAGIC):
        if is_gzip:
            raise DataError(path, None, "SQLite inside gzip: unpack it first, for example with gunzip")
        return Format.SQLITE
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(path, None, "UTF-16 text: convert it, for example with iconv -f UTF-16 -t UTF-8")
    content = head.removeprefix(BOM).lstrip()
    if content[:1] in (b"{", b"["):
        return Format.JSON
    empty = "the file is empty" if len(head) < HEAD_BYTES else f"the first {HEAD_BYTES:,} bytes are white space"
    raise DataError(path, None, f"{'no trace' if content else empty}: {ALLOWED}")


def is_sqlite(path: Path) -> bool:
    """Return whether `detect` finds SQLite."""
    return detect(path) is Format.SQLITE


class Job(NamedTuple):
    """The rank of the process that a trace is of, among the processes of its job."""

    rank: int
    world_size: int


class Collective(NamedTuple):
    """The collective that a kernel does, and the group of processes that do it, as the profiler says.

    A text is empty if it does not say so.
    """

    name: str
    group: str
    ranks: str  # of the processes of the group


@dataclass(frozen=True, slots=True)
class Trace:
    """The events of one file. Columns for texts hold indices into `names`; `place` is the position in the file.

    `stream` is the profiler's number. A stream with a name but no number is -2 - n, where n is its index in `names`.
    `track` is the group of tracks that shows a GPU event; NONE if there is none. `collective` is an index into
    `collectives`, or NONE. `gpu` is the profiler's number of the GPU itself, or NONE; `device` is that of the process.

    Within a process, a call and the GPU events that it started have one correlation id. The process of a GPU event is
    NONE if the file does not name it.
    """

    format: Format
    calls: Rows  # CALL, in any order: all calls of the CUDA API, including calls within other calls
    gpu: Rows  # GPU_EVENT, in any order
    names: tuple[str, ...]
    events: int  # number of events in the file, of any kind
    left_out: int  # number of CUDA events without a usable time or duration
    mended: int = 0  # number of tokens that are not JSON, and were replaced
    first_mended: str = ""  # the first of them, and its place
    other_events: Mapping[str, int] = field(default_factory=dict)  # events of other accelerators, or unknown ones
    diagnostics: tuple[str, ...] = ()  # messages of the profiler about CUDA
    operators: Rows = field(default_factory=lambda: np.zeros(0, OPERATOR))  # operators of the framework, in any order
    collectives: tuple[Collective, ...] = ()
    job: Job | None = None
    base_ns: int = 0  # time since 1970 from which times count; 0 if the file does not say


class Names:
    """A table of texts, numbered in order of appearance."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, int] = {}
        self._texts: list[str] = []

    def code(self, key: Hashable, text: str | None = None) -> int:
        """Return the number of `key`, which is shown as `text`. Two keys may have the same text."""
        found = self._codes.get(key)
        if found is None:
            found = self._codes[key] = len(self._texts)
            shown = str(key) if text is None else text
            cut = shown if len(shown) <= NAME_CHARACTERS_MAX else shown[: NAME_CHARACTERS_MAX - 3] + "..."
            self._texts.append(cut.encode("utf-8", "replace").decode())  # UTF-8 cannot encode half of a surrogate pair
        return found

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts, in the order of their numbers."""
        return tuple(self._texts)


class Gathered:
    """Collects rows one by one, and packs them into structured arrays to save memory."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._chunks: list[Rows] = []
        self._rows: list[tuple[int, ...]] = []

    def add(self, row: tuple[int, ...]) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) == ROWS_A_CHUNK:
            self._pack()

    def _pack(self) -> None:
        self._chunks.append(np.array(self._rows, self._dtype))
        self._rows.clear()

    def array(self) -> Rows:
        """Return all rows."""
        self._pack()
        return np.concatenate(self._chunks)


def without_time(starts_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which events of a trace the profiler had no time for.

    They start within NEAR_NS, at 0 or before, over FAR_NS before every other event: CUPTI writes 0 for an unknown time,
    and profilers may subtract the start of the profile. In a trace with relative times a start of 0 is genuine.
    """
    nothing = np.zeros(len(starts_ns), bool)
    if not len(starts_ns) or (first_ns := int(starts_ns.min())) > NEAR_NS:
        return nothing
    is_first = np.asarray(starts_ns <= first_ns + NEAR_NS)
    if is_first.all() or starts_ns[~is_first].min() <= first_ns + FAR_NS:
        return nothing
    return is_first

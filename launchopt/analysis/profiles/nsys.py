"""Launches of each NVTX range of the `launchopt` domain, from an Nsight Systems profile.

In: a SQLite file of `nsys export --type sqlite` (nsys 2022 to 2025). It is opened read-only, and any table may be
missing. Out: a `Profile` with a row per range name and one for everything outside every range, so that totals are
exact.

A call belongs to the innermost range of its thread that contains its start. A kernel belongs to the range of the call
that submitted it, by correlation id. In nsys, globalTid = process << 24 | thread, and globalPid is the same with thread
0.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.errors import DataError
from launchopt.files import open_regular
from launchopt.timing.nvtx_ranges import DOMAIN
from launchopt.traces.json_stream import VALUE_BYTES_MAX
from launchopt.traces.nsys_sqlite import complete

OUTSIDE = "(outside any range)"

Ints = NDArray[np.int64]
Records = NDArray[np.void]  # rows with named columns


@dataclass(frozen=True, slots=True)
class RangeRow:
    """Times of one range name. None: nothing to measure.

    Calls and kernels of a nested range belong to that range alone.
    """

    name: str
    ranges: int
    launch_calls: int
    kernels: int
    host_ms: float | None  # summed duration of the finished ranges, nested ranges included
    host_us_per_range_p50: float | None
    call_ms: float  # summed time inside launch calls
    call_us_p50: float | None
    call_us_min: float | None
    call_us_max: float | None
    gpu_busy_ms: float  # length of the union of the kernels' intervals, over all GPUs
    kernel_ms: float  # summed duration of the kernels; larger than busy where they overlap
    kernels_per_range: float | None
    launch_delay_us_p50: float | None  # from the call's return to its first kernel's start, clipped at 0


@dataclass(frozen=True, slots=True)
class Profile:
    """Rows by decreasing host time, then everything outside ranges.

    Ranges nest and kernels overlap: the host and busy times of the total are unions, not sums of the rows.
    """

    rows: tuple[RangeRow, ...]
    inside: RangeRow  # everything in ranges; if the user named a mode, only its timed runs
    total: RangeRow
    unfinished_ranges: int  # ranges without an end: counted in `ranges`, not in the host times
    untraced_graphs: int  # CUDA graphs recorded as a whole; no count includes their kernels


# The columns used of each table. An empty one stands in for a missing table, so that no query has two forms.
_TABLES = {
    "StringIds": "id, value",
    "NVTX_EVENTS": 'start, "end", eventType, text, textId, globalTid, domainId',
    "CUPTI_ACTIVITY_KIND_RUNTIME": 'start, "end", globalTid, correlationId, nameId',
    "CUPTI_ACTIVITY_KIND_KERNEL": 'start, "end", globalPid, correlationId',
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": 'start, "end", globalPid, correlationId',
}

# The driver's and the runtime's record of a call share a correlation id: they become one call, with the time of the
# outer record. Other API calls are kept only if they started a kernel. Domain ids are per process, and used again after
# a domain was destroyed: a range's domain is the latest one created under its id before it. Columns of `calls` have
# types because SQLite uses no index of a typeless column to join with an INTEGER one.
_PREPARE = """
CREATE TEMP TABLE calls (
  tid INTEGER, pid INTEGER, correlation INTEGER, start INTEGER, finish INTEGER, is_launch INTEGER);
INSERT INTO calls
  SELECT r.globalTid AS tid, r.globalTid >> 24 AS pid, COALESCE(r.correlationId, -r.rowid) AS correlation,
         MIN(r.start) AS start, MAX(r."end") AS finish, SUM(r.nameId IN launch_names) > 0 AS is_launch
  FROM CUPTI_ACTIVITY_KIND_RUNTIME r GROUP BY 1, 3
  HAVING is_launch OR correlation IN (SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL);
CREATE INDEX temp.calls_by_id ON calls (correlation, pid);
CREATE TEMP TABLE domains AS
  SELECT n.globalTid >> 24 AS pid, n.domainId AS id, n.start AS start, COALESCE(n.text, s.value) AS name
  FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId WHERE n.eventType = 75;
"""
_LAUNCH_NAMES = """
CREATE TEMP TABLE launch_names AS SELECT s.id FROM StringIds s WHERE
  s.value GLOB 'cu*Launch*Kernel*' OR s.value GLOB 'cuGraphLaunch*' OR s.value GLOB 'cudaGraphLaunch*'
"""
_RANGES = """
SELECT n.globalTid, n.start, n."end", COALESCE(n.text, s.value, '(unnamed)')
FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId
WHERE n.eventType IN (59, 60) AND ? = (
  SELECT d.name FROM domains d WHERE d.pid = n.globalTid >> 24 AND d.id = n.domainId AND d.start <= n.start
  ORDER BY d.start DESC LIMIT 1)
"""
_CALLS = "SELECT COALESCE(tid, 0), start, finish FROM calls WHERE is_launch"
# A kernel without a known call gets thread 0, which has no ranges. MIN picks one call where ids collide.
_KERNELS = """
SELECT COALESCE(c.tid, 0), COALESCE(MIN(c.start), 0), COALESCE(c.finish, 0), k.start, k."end"
FROM CUPTI_ACTIVITY_KIND_KERNEL k
LEFT JOIN calls c ON c.correlation = k.correlationId AND c.pid = k.globalPid >> 24
GROUP BY k.rowid
"""

_NEVER_NS = np.iinfo(np.int64).max  # stands for the missing end of an unfinished range
_SPAN = [("tid", "i8"), ("start", "i8"), ("end", "i8")]
_KERNEL = [("tid", "i8"), ("call", "i8"), ("returned", "i8"), ("start", "i8"), ("end", "i8")]  # call, returned: ns


def read_profile(path: Path, mode: str | None = None) -> Profile:
    """Read and join one export; DataError for a missing file or another format. mode: whose ranges `inside` has."""
    try:
        open_regular(path).close()
    except FileNotFoundError:
        raise DataError(path, None, "no such file") from None
    except OSError as error:
        raise DataError(path, None, f"cannot be read: {error.strerror or error}") from None
    try:
        # immutable: SQLite opens no journal beside the file, which could be a pipe.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            # A name may end within a UTF-8 character. That must not make the file unreadable.
            database.text_factory = lambda raw: raw.decode(errors="replace")
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
            _prepare(database, path)
            return _profile(database, mode)
    except sqlite3.OperationalError as error:
        raise DataError(path, None, f"not laid out like an nsys export ({error})") from None
    except sqlite3.DatabaseError as error:
        raise DataError(path, None, f"cannot be read as SQLite ({error})") from None
    except UnicodeDecodeError:  # part of SQLite's message about a damaged schema
        raise DataError(path, None, "cannot be read as SQLite (its schema is damaged)") from None


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    complete(database, path, _TABLES)
    database.execute(_LAUNCH_NAMES)
    database.executescript(_PREPARE)


def _profile(database: sqlite3.Connection, mode: str | None) -> Profile:
    codes: dict[str, int] = {}
    ranges = np.fromiter(_coded_ranges(database, codes), [*_SPAN, ("code", "i8")])
    calls = np.fromiter(database.execute(_CALLS), _SPAN)
    kernels = np.fromiter(database.execute(_KERNELS), _KERNEL)
    graphs = database.execute("SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE").fetchone()[0]

    # Outer before inner where two begin in the same nanosecond.
    ranges = ranges[np.lexsort((-ranges["end"], ranges["start"], ranges["tid"]))]
    parents = _parents(ranges)
    count = len(codes) + 1
    outside_code = count - 1
    of_call = _innermost(ranges, parents, calls["tid"], calls["start"], outside_code)
    of_kernel = _innermost(ranges, parents, kernels["tid"], kernels["call"], outside_code)
    spans = _split(ranges, ranges["code"], count)
    launched, ran = _split(calls, of_call, count), _split(kernels, of_kernel, count)

    rows = [_row(name, spans[code], launched[code], ran[code]) for name, code in codes.items()]
    rows.sort(key=lambda row: -(row.host_ms or 0.0))
    outside = _row(OUTSIDE, spans[-1], launched[-1], ran[-1])
    unfinished = int(np.count_nonzero(ranges["end"] == _NEVER_NS))
    wanted = [code for name, code in codes.items() if mode is None or name.startswith(f"{mode} ")]
    chosen = (ranges[np.isin(ranges["code"], wanted)], calls[np.isin(of_call, wanted)])
    inside = _union_row("in ranges", *chosen, kernels[np.isin(of_kernel, wanted)])
    return Profile((*rows, outside), inside, _union_row("total", ranges, calls, kernels), unfinished, graphs)


def _coded_ranges(database: sqlite3.Connection, codes: dict[str, int]) -> Iterator[tuple[int, int, int, int]]:
    """Return ranges with their name as a number, in order of appearance in `codes`."""
    for tid, start, end, name in database.execute(_RANGES, (DOMAIN,)):
        yield tid, start, _NEVER_NS if end is None else end, codes.setdefault(name, len(codes))


class _Open(NamedTuple):
    """A range that has begun: its end in ns and its row."""

    end: int
    row: int


def _parents(ranges: Records) -> Ints:
    """Return for each range (by thread, then start) the innermost range around its start, or -1."""
    parents = np.full(len(ranges), -1, dtype=np.int64)
    open_ranges: list[_Open] = []
    thread = None
    for index, (tid, start, end, _) in enumerate(ranges.tolist()):
        if tid != thread:
            thread = tid
            open_ranges.clear()
        # Start / end ranges may overlap without nesting. An ended range below the top is removed once it is on top.
        while open_ranges and open_ranges[-1].end < start:
            open_ranges.pop()
        if open_ranges:
            parents[index] = open_ranges[-1].row
        open_ranges.append(_Open(end, index))
    return parents


def _innermost(ranges: Records, parents: Ints, tid: Ints, time_ns: Ints, outside: int) -> Ints:
    """Return the name code of the latest-begun range of thread `tid` that is open at `time_ns`, or `outside`.

    A range that is open now and began before an ended one was open when that one began. So it is an ancestor: climb
    until a range is open.
    """
    if not len(ranges):
        return np.full(len(tid), outside, dtype=np.int64)
    found = np.full(len(tid), -1, dtype=np.int64)
    threads, first = np.unique(ranges["tid"], return_index=True)
    for thread, low, high in zip(threads, first, [*first[1:], len(ranges)], strict=True):
        mine = np.flatnonzero(tid == thread)
        index = low - 1 + np.searchsorted(ranges["start"][low:high], time_ns[mine], side="right")
        found[mine] = np.where(index >= low, index, -1)
    while (over := (found >= 0) & (ranges["end"][found] < time_ns)).any():
        found[over] = parents[found[over]]
    return np.where(found >= 0, ranges["code"][found], outside)


def _split(values: Records, codes: Ints, count: int) -> list[Records]:
    """Return `values` by code, 0 .. count - 1. It sorts once, since there may be as many codes as batches."""
    order = np.argsort(codes, kind="stable")
    return np.split(values[order], np.searchsorted(codes[order], np.arange(1, count)))


def _row(name: str, ranges: Records, calls: Records, kernels: Records) -> RangeRow:
    ended = ranges[ranges["end"] != _NEVER_NS]
    host_ns, call_ns = ended["end"] - ended["start"], calls["end"] - calls["start"]
    delays_ns = _delays_ns(kernels)
    return RangeRow(
        name=name,
        ranges=len(ranges),
        launch_calls=len(calls),
        kernels=len(kernels),
        host_ms=int(host_ns.sum()) / 1e6 if len(ended) else None,
        host_us_per_range_p50=float(np.median(host_ns)) / 1e3 if len(ended) else None,
        call_ms=int(call_ns.sum()) / 1e6,
        call_us_p50=float(np.median(call_ns)) / 1e3 if len(calls) else None,
        call_us_min=int(call_ns.min()) / 1e3 if len(calls) else None,
        call_us_max=int(call_ns.max()) / 1e3 if len(calls) else None,
        gpu_busy_ms=_union_ns(kernels["start"], kernels["end"]) / 1e6,
        kernel_ms=int((kernels["end"] - kernels["start"]).sum()) / 1e6,
        kernels_per_range=len(kernels) / len(ranges) if len(ranges) else None,
        launch_delay_us_p50=float(np.median(delays_ns)) / 1e3 if len(delays_ns) else None,
    )


def _delays_ns(kernels: Records) -> Ints:
    """Return the times from the return of each known call to its first kernel.

    The other kernels of a graph wait for the first.
    """
    known = kernels[kernels["tid"] != 0]
    known = known[np.lexsort((known["start"], known["call"], known["tid"]))]
    is_first = np.ones(len(known), dtype=bool)
    is_first[1:] = (known["tid"][1:] != known["tid"][:-1]) | (known["call"][1:] != known["call"][:-1])
    return np.asarray(np.maximum(known["start"] - known["returned"], 0)[is_first])


def _union_row(name: str, ranges: Records, calls: Records, kernels: Records) -> RangeRow:
    """Return a row over ranges of different names, which may nest."""
    total = _row(name, ranges, calls, kernels)
    if total.host_ms is None:
        return total
    ended = ranges[ranges["end"] != _NEVER_NS]
    _, thread = np.unique(ended["tid"], return_inverse=True)
    covered_ns = sum(_union_ns(mine["start"], mine["end"]) for mine in _split(ended, thread, int(thread.max()) + 1))
    # A median over ranges of different names has no meaning.
    return replace(total, host_ms=covered_ns / 1e6, host_us_per_range_p50=None)


def _union_ns(start: Ints, end: Ints) -> int:
    """Return the length of the union of intervals."""
    if not len(start):
        return 0
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    begin = np.maximum(start[1:], end[:-1])
    return int(end[0] - start[0] + np.maximum(end[1:] - begin, 0).sum())

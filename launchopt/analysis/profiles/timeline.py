"""Recorded launches, commands and kernels as timeline events for Perfetto and chrome://tracing.

In: rows of launches.parquet, commands.parquet and kernels.parquet, in file order. Out: events of the Chrome trace
format, one by one, so that a long run needs little memory. Pure: reads no file.

    process         a repeat of a mode; time 0 is its start barrier, so that modes can be compared
    host: launch    our launch calls
    host: CUDA API  the API calls as CUPTI saw them
    GPU stream N    kernels, copies and fills by CUPTI
    GPU, by events  from the device reaching a launch to its results, if that was timed
    queue wait      enqueue to the launch call of a command (asynchronous: they overlap)

With several GPUs, each has tracks of its own, and each all-reduce that was timed on all of them (`all_reduces`) has two
slices within its own: the wait for the last GPU, and the transfer. Times of the other GPUs are moved to the clock of
the first one. Where a launch on the device is the launch call, as on the cpu device, it has one slice.

An arrow leads from an API call to each kernel that it started; without CUPTI from a launch call to its time on the
device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from launchopt.analysis.collectives.all_reduces import OP, AllReduces, Parts
from launchopt.recording.results import Row

Event = dict[str, object]
Group = tuple[str, int]  # mode, repeat

_HOST, _API, _EVENTS, _STREAMS = 1, 2, 100, 1000
_LANES = 100  # threads reserved for overlapping slices of one track
_OF_GPU = 1_000_000  # threads reserved for the tracks of one GPU


@dataclass(frozen=True, slots=True)
class Size:
    """Recorded rows in all tables, and launch calls, of one repeat of a mode."""

    rows: int
    launches: int


def kept_launches(sizes: Mapping[Group, Size], limit: int) -> dict[Group, int]:
    """Return the launches of each group that fit into about `limit` rows, shared equally; at least one each."""
    kept: dict[Group, int] = {}
    left = limit
    # The smallest group comes first. The others share the rows that it does not need.
    for done, (group, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1].rows)):
        share = left // (len(sizes) - done)
        fits = size.launches if size.rows <= share else share * size.launches // size.rows
        kept[group] = max(1, fits) if size.launches else 0
        left -= min(share, size.rows)
    return kept


class Timeline:
    """Maker of the events. kept: maximum launches of each group and GPU, as `kept_launches` returns it."""

    def __init__(
        self,
        kept: Mapping[Group, int],
        cut: Iterable[Group] = (),
        *,
        has_kernels: bool = False,
        reduced: Mapping[Group, AllReduces] | None = None,
        reduced_kernels: Mapping[Group, AllReduces] | None = None,
    ) -> None:
        self._kept = dict(kept)
        self._cut = set(cut)
        self._has_kernels = has_kernels
        self._pids = {group: index for index, group in enumerate(sorted(self._kept), 1)}
        self._named: set[tuple[int, int]] = set()
        self._ends: dict[tuple[int, int], list[int]] = {}
        self._calls: set[tuple[int, int, int | None]] = set()
        self._arrows = 0
        self._places: dict[int | None, int] = {}  # of each GPU, in the order of the rows
        self._launched, self._ran = Parts(reduced or {}, kept), Parts(reduced_kernels or {}, kept)
        self.rows = 0  # shown so far: launches, commands and kernels

    def processes(self) -> Iterator[Event]:
        """Yield a name for every group, in display order."""
        for (mode, repeat), pid in self._pids.items():
            yield _named("process_name", pid, 0, name=f"{mode}, repeat {repeat}")
            yield _named("process_sort_index", pid, 0, sort_index=pid)

    def launches(self, rows: Iterable[Row]) -> Iterator[Event]:
        """Yield launch calls, and their time on the device if it was measured."""
        for row in rows:
            pid = self._shown(row)
            if pid is not None:
                yield from self._launch(pid, row)

    def _launch(self, pid: int, row: Row) -> Iterator[Event]:
        (first, whose), (name, about) = self._tracks_of(row), _about(row)
        host_ns, start_ns, end_ns = row["submit_start_ns"], row["device_start_ns"], row["device_end_ns"]
        parts_ns, moved_ns, tid = self._launched.of(row, start_ns), self._launched.moved_ns(row), first + _HOST
        about |= _parts(parts_ns)
        yield from self._track(pid, tid, f"{whose}, host: launch calls" if whose else "host: launch calls")
        yield _slice(name, pid, tid, host_ns, row["submit_end_ns"], about)
        if start_ns is None or end_ns is None:
            return
        if start_ns != host_ns:
            start_ns, end_ns = start_ns + moved_ns, end_ns + moved_ns
            tid = self._lane(pid, first + _EVENTS, start_ns, end_ns)
            yield from self._track(pid, tid, f"{whose or 'GPU'}, by events")
            yield _slice(name, pid, tid, start_ns, end_ns, about)
            if not self._has_kernels:
                yield from self._arrow((pid, first + _HOST, host_ns), (pid, tid, start_ns))
        yield from _inner((pid, tid), start_ns, end_ns, parts_ns)

    def commands(self, rows: Iterable[Row]) -> Iterator[Event]:
        """Yield the wait of each command, from its enqueue to its launch call."""
        for row in rows:
            pid = self._shown(row)
            if pid is None:
                continue
            about = {name: row[name] for name in ("seq", "request", "step", "launch", "m", "n", "k")}
            ends = {"cat": "queue wait", "name": "queue wait", "pid": pid, "tid": 0, "id2": {"local": hex(row["seq"])}}
            yield {"ph": "b", "ts": _us(row["enqueue_ns"]), **ends, "args": about}
            yield {"ph": "e", "ts": _us(max(row["submit_start_ns"], row["enqueue_ns"])), **ends}

    def kernels(self, rows: Iterable[Row]) -> Iterator[Event]:
        """Yield the GPU's work, the API call that started it, and an arrow between them."""
        for row in rows:
            pid = self._shown(row)
            if pid is not None:
                yield from self._kernel(pid, row)

    def _kernel(self, pid: int, row: Row) -> Iterator[Event]:
        first, whose = self._tracks_of(row)
        parts_ns, moved_ns = self._ran.of(row, row["start_ns"]), self._ran.moved_ns(row)
        start_ns, end_ns = row["start_ns"] + moved_ns, row["end_ns"] + moved_ns
        about = {name: row[name] for name in ("launch", "batch", "range", "kind", "correlation", "api", "graph")}
        tid = self._lane(pid, first + _STREAMS + _LANES * int(row["stream"] or 0), start_ns, end_ns)
        yield from self._track(pid, tid, f"{whose or 'GPU'} stream {row['stream']}")
        yield _slice(str(row["name"]), pid, tid, start_ns, end_ns, about | _parts(parts_ns))
        yield from _inner((pid, tid), start_ns, end_ns, parts_ns)
        if row["api"] is None or row["api_start_ns"] is None or row["api_end_ns"] is None:
            return
        api, call = first + _API, (pid, first, row["correlation"])
        if call not in self._calls:  # a graph launch starts many kernels
            self._calls.add(call)
            name = "host: CUDA API (CUPTI)"
            yield from self._track(pid, api, f"{whose}, {name}" if whose else name)
            args = {"correlation": row["correlation"]}
            yield _slice(str(row["api"]), pid, api, row["api_start_ns"], row["api_end_ns"], args)
        yield from self._arrow((pid, api, row["api_start_ns"]), (pid, tid, start_ns))

    def _tracks_of(self, row: Row) -> tuple[int, str]:
        """Return the first thread of a row's GPU, and the GPU's name; an empty name if there is one GPU."""
        gpu = row["gpu"]
        return _OF_GPU * self._places.setdefault(gpu, len(self._places)), "" if gpu is None else f"GPU {gpu}"

    def _shown(self, row: Row) -> int | None:
        """Return the process of a row; None for a launch beyond the kept ones."""
        group, launch = (row["mode"], row["repeat"]), row["launch"]
        if (group in self._cut) if launch is None else launch >= self._kept.get(group, 0):
            return None
        self.rows += 1
        return self._pids[group]

    def _track(self, pid: int, tid: int, name: str) -> Iterator[Event]:
        if (pid, tid) not in self._named:
            self._named.add((pid, tid))
            yield _named("thread_name", pid, tid, name=name)
            yield _named("thread_sort_index", pid, tid, sort_index=tid)

    def _lane(self, pid: int, track: int, start_ns: int, end_ns: int) -> int:
        """Return a thread of `track` that is free at `start_ns`: slices of one thread must nest or not overlap."""
        ends = self._ends.setdefault((pid, track), [])
        free = next((lane for lane, end in enumerate(ends) if end <= start_ns), len(ends))
        if free == len(ends) and free < _LANES:
            ends.append(end_ns)
        free = min(free, _LANES - 1)
        ends[free] = end_ns
        return track + free

    def _arrow(self, tail: tuple[int, int, int], head: tuple[int, int, int]) -> Iterator[Event]:
        self._arrows += 1
        common = {"cat": "launch", "name": "launch", "id": self._arrows}
        for phase, (pid, tid, ns) in (("s", tail), ("f", head)):
            bound = {"bp": "e"} if phase == "f" else {}  # binds to the enclosing slice, not to the next one
            yield {"ph": phase, "ts": _us(ns), "pid": pid, "tid": tid, **common, **bound}


def _about(row: Row) -> tuple[str, dict[str, object]]:
    """Return the name of a launch, and the arguments of its slices."""
    shape = "x".join(str(row[name]) for name in ("m", "n", "k") if row[name] is not None) or "several shapes"
    about = {name: row[name] for name in ("launch", "batch", "batch_size", "strategy", "flush_reason", "dtype")}
    about |= {"shape": shape, "packed_bytes": row["packed_bytes"], "op": row["op"]}
    what = f"{row['op']} " if row["op"] == OP else ""
    return f"{what}{row['strategy']} {shape} x{row['batch_size']}", about


def _parts(parts_ns: tuple[int, int] | None) -> dict[str, object]:
    """Return the wait and the transfer of an all-reduce as arguments of its slice."""
    return {} if parts_ns is None else {"wait_us": _us(parts_ns[0]), "transfer_us": _us(parts_ns[1])}


def _inner(track: tuple[int, int], start_ns: int, end_ns: int, parts_ns: tuple[int, int] | None) -> Iterator[Event]:
    """Yield the slices of both parts, within that of an all-reduce."""
    if parts_ns is None:
        return
    if parts_ns[0]:
        yield _slice("wait for the last GPU", *track, start_ns, start_ns + parts_ns[0], {})
    yield _slice("transfer", *track, start_ns + parts_ns[0], end_ns, {})


def _slice(name: str, pid: int, tid: int, start_ns: int, end_ns: int, about: dict[str, object]) -> Event:
    args = {key: value for key, value in about.items() if value is not None}
    duration = _us(max(0, end_ns - start_ns))
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": _us(start_ns), "dur": duration, "args": args}


def _named(what: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _us(ns: int) -> float:
    """Return us with three decimals. They are exact to the ns for runs of up to 100 days."""
    return ns / 1000

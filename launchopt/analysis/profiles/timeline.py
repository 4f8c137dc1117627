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

from launchopt.analysis.profiles.all_reduces import OP, AllReduces
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
    ) -> None:
        self._kept = dict(kept)
        self._cut = set(cut)
        self._has_kernels = has_kernels
        self._pids = {group: index for index, group in enumerate(sorted(self._kept), 1)}
        self._named: set[tuple[int, int]] = set()
        self._ends: dict[tuple[int, int], list[int]] = {}
        self._calls: set[tuple[int, int | None]] = set()
        self._arrows = 0
        self._places: dict[int | None, int] = {}  # of each GPU, in the order of the rows
        self._moved_ns: dict[tuple[str, int, int], int] = {}
        self._parts_ns: dict[tuple[str, int, int, int], tuple[int, int]] = {}  # wait and transfer of a launch
        for group, each in (reduced or {}).items():
            self._take(group, each)
        self.rows = 0  # launches shown so far

    def _take(self, group: Group, found: AllReduces) -> None:
        """Keep the parts of those all-reduces that are shown."""
        for at, gpu in enumerate(found.gpus):
            self._moved_ns[*group, gpu] = found.offsets_ns[at]
            parts = (of[at].tolist() for of in (found.launches, found.waits_ns, found.transfers_ns))
            for launch, wait_ns, transfer_ns in zip(*parts, strict=True):
                if launch < self._kept.get(group, 0):
                    self._parts_ns[*group, gpu, launch] = wait_ns, transfer_ns

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
        gpu, launch = row["gpu"], (*self._group(row), row["gpu"], row["launch"])
        first, of_gpu = _OF_GPU * self._places.setdefault(gpu, len(self._places)), "" if gpu is None else f" {gpu}"
        tid, (name, about) = first + _HOST, _about(row)
        begun_ns, start_ns, end_ns = row["submit_start_ns"], row["device_start_ns"], row["device_end_ns"]
        parts_ns = self._parts_ns.get(launch)
        if parts_ns is not None:
            about |= {"wait_us": _us(parts_ns[0]), "transfer_us": _us(parts_ns[1])}
        yield from self._track(pid, tid, f"GPU{of_gpu}, host: launch calls" if of_gpu else "host: launch calls")
        yield _slice(name, pid, tid, begun_ns, row["submit_end_ns"], about)
        if start_ns is None or end_ns is None:
            return
        if start_ns != begun_ns:
            moved_ns = self._moved_ns.get(launch[:3], 0)
            start_ns, end_ns = start_ns + moved_ns, end_ns + moved_ns
            tid = self._lane(pid, first + _EVENTS, start_ns, end_ns)
            yield from self._track(pid, tid, f"GPU{of_gpu}, by events")
            yield _slice(name, pid, tid, start_ns, end_ns, about)
            if not self._has_kernels:
                yield from self._arrow((pid, first + _HOST, begun_ns), (pid, tid, start_ns))
        if parts_ns is not None:
            if parts_ns[0]:
                yield _slice("wait for the last GPU", pid, tid, start_ns, start_ns + parts_ns[0], {})
            yield _slice("transfer", pid, tid, start_ns + parts_ns[0], end_ns, {})

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
            if pid is None:
                continue
            about = {name: row[name] for name in ("launch", "batch", "range", "kind", "correlation", "api", "graph")}
            track = _STREAMS + _LANES * int(row["stream"] or 0)
            tid = self._lane(pid, track, row["start_ns"], row["end_ns"])
            yield from self._track(pid, tid, f"GPU stream {row['stream']}")
            yield _slice(str(row["name"]), pid, tid, row["start_ns"], row["end_ns"], about)
            if row["api"] is None or row["api_start_ns"] is None or row["api_end_ns"] is None:
                continue
            call = (pid, row["correlation"])
            if call not in self._calls:  # a graph launch starts many kernels
                self._calls.add(call)
                yield from self._track(pid, _API, "host: CUDA API (CUPTI)")
                yield _slice(
                    str(row["api"]), pid, _API, row["api_start_ns"], row["api_end_ns"], {"correlation": call[1]}
                )
            yield from self._arrow((pid, _API, row["api_start_ns"]), (pid, tid, row["start_ns"]))

    def _shown(self, row: Row) -> int | None:
        """Return the process of a row; None for a launch beyond the kept ones."""
        group, launch = self._group(row), row["launch"]
        if (group in self._cut) if launch is None else launch >= self._kept.get(group, 0):
            return None
        self.rows += 1
        return self._pids[group]

    @staticmethod
    def _group(row: Row) -> Group:
        return row["mode"], row["repeat"]

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


def _slice(name: str, pid: int, tid: int, start_ns: int, end_ns: int, about: dict[str, object]) -> Event:
    args = {key: value for key, value in about.items() if value is not None}
    duration = _us(max(0, end_ns - start_ns))
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": _us(start_ns), "dur": duration, "args": args}


def _named(what: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _us(ns: int) -> float:
    """Return us with three decimals. They are exact to the ns for runs of up to 100 days."""
    return ns / 1000

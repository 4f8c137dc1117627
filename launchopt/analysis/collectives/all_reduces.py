"""The skew of each all-reduce of a split model: who came last, how long the others waited, and the transfer behind.

In: rows of launches.parquet, or of kernels.parquet. Out: an `AllReduces` for each repeat. The k-th all-reduce of one
GPU is the k-th of every other. A GPU arrives when its launch, or its kernel, begins on the device. The last arrival
ends the wait of all; the transfer is the rest of each.

On the cpu device all launches have the host's clock. The times of a GPU come from its own clock. Its offset from the
host's is known to microseconds only, about as long as an all-reduce takes. But no all-reduce ends before the last GPU
has begun it. So the begins and ends of all of them bound the offset between each two GPUs: `clocks`.

Only launches with times of their own count. Launches that one pair of events timed together, and those in graphs, have
none. Every kernel has times of its own, in graphs too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from launchopt.analysis.collectives.clocks import Clocks, Times, recorded_or_set, set_clocks
from launchopt.recording.results import Row

NEEDED = ("mode", "repeat", "gpu", "launch", "op", "submit_start_ns", "device_start_ns", "device_end_ns")
NEEDED_OF_KERNELS = ("mode", "repeat", "gpu", "launch", "name", "start_ns", "end_ns")
OP = "all_reduce"  # value of the column op
# Begins of the names of kernels. REDUCE_ADD also adds the residual, and norms; the last one is NCCL's.
KERNELS = "^(ALL_REDUCE|REDUCE_ADD|ncclDevKernel_AllReduce)"
_KEYS, _LISTS = ["mode", "repeat", "gpu"], ("launch", "start_ns", "end_ns", "is_own", "is_call")
_UNKNOWN = np.iinfo(np.int64).min
ROUNDED_NS = 2000  # profilers round begin and duration to whole us

Repeat = tuple[str, int]  # mode, repeat


class AllReduces(NamedTuple):
    """The all-reduces of one repeat that were timed on every GPU."""

    gpus: tuple[int, ...]
    launches: Times  # number of the launch on each GPU; -1: not known
    arrived_ns: Times  # on the clock of the first GPU, as all times here
    ended_ns: Times
    asked: int  # all-reduces of a GPU, timed or not
    offsets_ns: tuple[int, ...]  # what was added to the times of each GPU
    error_ns: int  # largest error of an offset; 0: all GPUs have one clock

    @property
    def waits_ns(self) -> Times:
        """From the arrival of each GPU to that of the last one. The largest of an all-reduce is its skew."""
        waits: Times = self.arrived_ns.max(axis=0) - self.arrived_ns
        return waits

    @property
    def transfers_ns(self) -> Times:
        """From the last arrival to the end on each GPU."""
        transfers: Times = self.ended_ns - self.arrived_ns.max(axis=0)
        return transfers

    @property
    def last_shares(self) -> NDArray[np.float64]:
        """Of each GPU, the share of the all-reduces to which it came last. GPUs that came last together share one."""
        is_last = self.waits_ns == 0
        shares: NDArray[np.float64] = (is_last / is_last.sum(axis=0)).mean(axis=1)
        return shares


class Parts:
    """The parts of all-reduces, by their recorded begin on the device. kept: launches that are shown, as of a timeline.

    found: of launches, or of kernels.
    """

    def __init__(self, found: Mapping[Repeat, AllReduces], kept: Mapping[Repeat, int]) -> None:
        self._moved_ns: dict[tuple[str, int, int | None], int] = {}
        self._parts_ns: dict[tuple[str, int, int | None, int], tuple[int, int]] = {}
        for repeat, each in found.items():
            for at, (gpu, moved_ns) in enumerate(zip(each.gpus, each.offsets_ns, strict=True)):
                self._moved_ns[*repeat, gpu] = moved_ns
                shown = each.launches[at] < kept.get(repeat, 0)
                starts = (each.arrived_ns[at, shown] - moved_ns).tolist()
                waits, transfers = each.waits_ns[at, shown].tolist(), each.transfers_ns[at, shown].tolist()
                for start_ns, *parts_ns in zip(starts, waits, transfers, strict=True):
                    self._parts_ns[*repeat, gpu, start_ns] = (parts_ns[0], parts_ns[1])

    def moved_ns(self, row: Row) -> int:
        """Return what to add to the device times of a row, so that they are on the clock of the first GPU."""
        return self._moved_ns.get((row["mode"], row["repeat"], row["gpu"]), 0)

    def of(self, row: Row, start_ns: int | None) -> tuple[int, int] | None:
        """Return the wait and the transfer of the all-reduce of a row, ns; None if they are not known."""
        return None if start_ns is None else self._parts_ns.get((row["mode"], row["repeat"], row["gpu"], start_ns))


def all_reduces(batches: Iterable[pa.RecordBatch]) -> dict[Repeat, AllReduces]:
    """Return the all-reduces of each repeat of each mode on several GPUs.

    batches: rows of launches.parquet in file order, with NEEDED.
    """
    return _joined(_launches(batches))


def all_reduce_kernels(batches: Iterable[pa.RecordBatch]) -> dict[Repeat, AllReduces]:
    """Return the same from rows of kernels.parquet, with NEEDED_OF_KERNELS."""
    return _joined(map(_kernels, batches))


def of_gpus(starts_ns: Times, ends_ns: Times) -> AllReduces | None:
    """Return the collectives of GPUs in traces of a host's clock, [GPUs, collectives].

    Clocks are taken as they are if no collective ends on a GPU before it begins on another, else they are set. None if
    no offsets reach that: they are not the same collectives.
    """
    found = recorded_or_set(starts_ns, ends_ns, ROUNDED_NS)
    if found is None:
        return None
    moved, count = found.offsets_ns[:, None], starts_ns.shape[1]
    gpus, launches = tuple(range(len(moved))), np.full(starts_ns.shape, -1)
    offsets = tuple(found.offsets_ns.tolist())
    return AllReduces(gpus, launches, starts_ns + moved, ends_ns + moved, count, offsets, found.error_ns)


def _joined(found: Iterable[pa.RecordBatch]) -> dict[Repeat, AllReduces]:
    kept = [each for each in found if len(each)]
    if not kept:
        return {}
    grouped = pa.Table.from_batches(kept).group_by(_KEYS, use_threads=False)
    ranks: dict[Repeat, dict[int, Mapping[str, Times]]] = {}
    for row in grouped.aggregate([(name, "list") for name in _LISTS]).to_pylist():
        own = {name: np.array(row[f"{name}_list"]) for name in _LISTS}
        ranks.setdefault((row["mode"], row["repeat"]), {})[row["gpu"]] = own
    of_each = {repeat: _of_repeat(of) for repeat, of in ranks.items() if len(of) > 1}
    return {repeat: each for repeat, each in of_each.items() if each is not None}


def _kernels(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the kernels of all-reduces on several GPUs, with _KEYS and _LISTS."""
    always = pa.repeat(pa.scalar(True), len(batch))
    columns = {name: batch[name] for name in (*_KEYS, "start_ns", "end_ns")}
    columns |= {"launch": batch["launch"].fill_null(-1), "is_own": always, "is_call": pc.invert(always)}
    wanted = pc.and_(pc.match_substring_regex(batch["name"].cast(pa.string()), KERNELS), batch["gpu"].is_valid())
    return pa.RecordBatch.from_pydict(columns).filter(pc.fill_null(wanted, False))


def _launches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the launches of all-reduces on several GPUs, with _KEYS and _LISTS.

    is_own: whether a launch has times of its own. is_call: whether they are those of the launch call.
    """
    nothing = np.full((1, 3), _UNKNOWN)
    before = nothing
    for batch, following in pairwise(chain(filter(len, batches), [None])):
        starts = _starts(batch)
        around = np.concatenate([before, starts, nothing if following is None else _starts(following)[:1]])
        as_before = (around[1:] == around[:-1]).all(axis=1)  # one pair of events timed both launches
        is_own = (starts[:, 2] != _UNKNOWN) & ~as_before[:-1] & ~as_before[1:]
        columns = {name: batch[name] for name in (*_KEYS, "launch")}
        columns |= {name: batch[f"device_{name}"].fill_null(0) for name in ("start_ns", "end_ns")}
        is_call = pc.equal(batch["submit_start_ns"], columns["start_ns"])
        marked = pa.RecordBatch.from_pydict({**columns, "is_own": pa.array(is_own), "is_call": is_call})
        yield marked.filter(pc.and_(pc.fill_null(pc.equal(batch["op"], OP), False), batch["gpu"].is_valid()))
        before = starts[-1:]


def _starts(batch: pa.RecordBatch) -> Times:
    """Return repeat, GPU, and start on the device of each launch, [launches, 3]."""
    names = ("repeat", "gpu", "device_start_ns")
    columns = [pc.fill_null(batch[name].cast(pa.int64()), _UNKNOWN).to_numpy(zero_copy_only=False) for name in names]
    return np.stack(columns, axis=1)


def _of_repeat(ranks: Mapping[int, Mapping[str, Times]]) -> AllReduces | None:
    """Return the all-reduces of the GPUs of one repeat; None if none was timed on all, or if their counts differ."""
    of_each = list(ranks.values())
    if len({len(each["launch"]) for each in of_each}) > 1:
        return None
    columns = {name: np.stack([each[name] for each in of_each]) for name in _LISTS}
    timed = np.asarray(columns["is_own"].all(axis=0))
    if not timed.any():
        return None
    launches, arrived, ended, _, is_call = (columns[name][:, timed] for name in _LISTS)
    clocks = Clocks(np.zeros(len(of_each), np.int64), 0)
    if not is_call.all():  # else the device is the host
        clocks = set_clocks(arrived, ended)
    moved = clocks.offsets_ns[:, None]
    offsets = tuple(clocks.offsets_ns.tolist())
    return AllReduces(tuple(ranks), launches, arrived + moved, ended + moved, len(timed), offsets, clocks.error_ns)

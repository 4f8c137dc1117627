"""The process of each GPU event of a trace, so that equal correlation ids of two processes are not mixed up.

Correlation ids count the calls of one process. PyTorch's profiler names no process in GPU events, and nsys may leave it
out in a row. In a file merged from several ranks, the same id then stands for a call of each rank.

An event belongs to the process that it names, or else to the only process with its id. If several have the id, all
events of one GPU belong to one process: the one whose calls began before the most of these events, or whose calls are
nearest to them in the file. If there are fewer GPUs than processes, each event is decided alone.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.traces.events import NONE, Rows

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")
_Match = tuple[int, int]  # the number of a GPU, and a process


def owners(calls: Rows, gpu: Rows) -> tuple[Ints, int]:
    """Return the process of each GPU event, or NONE, and the number of events whose id several processes have."""
    process = gpu["process"].astype(np.int64)
    calls = calls[calls["correlation"] > 0]
    unknown = np.flatnonzero((process == NONE) & (gpu["correlation"] > 0))
    first = _first_calls(calls)
    low, high = (np.searchsorted(first["correlation"], gpu["correlation"][unknown], side) for side in SIDES)
    is_only = high - low == 1
    process[unknown[is_only]] = first["process"][low[is_only]]
    several = np.flatnonzero(high - low > 1)
    if not len(several):
        return process, 0

    count = (high - low)[several]
    event = np.repeat(unknown[several], count)
    before = np.repeat(np.cumsum(count) - count, count)
    candidate = first[np.arange(len(event)) - before + np.repeat(low[several], count)]
    began = candidate["start_ns"] <= gpu["start_ns"][event]
    apart = candidate["place"] - gpu["place"][event]
    order = np.lexsort((np.where(apart > 0, 2 * apart + 1, -2 * apart), ~began, event))
    nearest = order[np.concatenate([[0], np.cumsum(count)[:-1]])]

    _, group = ranks(gpu["track"], gpu["device"])
    named = np.flatnonzero(process != NONE)
    fits = _counted(group[named], process[named]) + _counted(group[event[began]], candidate["process"][began])
    votes = _counted(group[event[nearest]], candidate["process"][nearest])
    owner = _one_each(fits, votes)
    groups, processes = np.unique(group[event]), np.unique(candidate["process"])
    process[event[nearest]] = candidate["process"][nearest]
    if len(groups) >= len(processes):
        owner_of_group = np.array([owner.get(each, NONE) for each in range(group.max() + 1)])
        is_owner = candidate["process"] == owner_of_group[group[event]]
        process[event[is_owner]] = candidate["process"][is_owner]
    return process, len(several)


class Gpu(NamedTuple):
    """A GPU of a trace. process: NONE if it is not known, or if several share the GPU. rows: which events ran on it."""

    device: int
    process: int
    rows: Bools


def gpus(rows: Rows) -> list[Gpu]:
    """Return the GPUs of GPU events, by device and process.

    Processes may each number their own GPU 0: without a number of the GPU itself, each process has GPUs of its own.
    An event without a process belongs to the only process with events of its stream, or else of its device.
    """
    process, device = rows["process"].astype(np.int64), rows["device"].astype(np.int64)
    for columns in (("track", "device", "context", "stream"), ("device",)):
        _, key = ranks(*(rows[name] for name in columns))
        least, most = _extremes(key, process, process != NONE)
        is_sure = (process == NONE) & (least == most)[key]
        process[is_sure] = most[key[is_sure]]
    itself = rows["gpu"].astype(np.int64)
    is_known = itself != NONE
    count, key = ranks(itself, np.where(is_known, NONE, process), np.where(is_known, NONE, device))
    (low, high), (first, _) = (_extremes(key, column, np.full(len(rows), True)) for column in (process, device))
    owner = np.where(low == high, low, NONE)
    found = [Gpu(int(first[at]), int(owner[at]), key == at) for at in range(count)]
    return sorted(found, key=lambda gpu: (gpu.device, gpu.process))


def _extremes(key: Ints, values: Ints, counted: Bools) -> tuple[Ints, Ints]:
    """Return the smallest and the largest of the counted values of each key, which differ if there are none."""
    count = int(key.max(initial=-1)) + 1
    least, most = np.full(count, np.iinfo(np.int64).max), np.full(count, NONE)
    np.minimum.at(least, key[counted], values[counted])
    np.maximum.at(most, key[counted], values[counted])
    return least, most


def _first_calls(calls: Rows) -> Rows:
    """Return the first call of each correlation id and process, by id."""
    calls = calls[np.lexsort((calls["start_ns"], calls["process"], calls["correlation"]))]
    columns = (calls[name] for name in ("correlation", "process"))
    is_new = np.any([np.diff(column, prepend=column[:1] - 1) != 0 for column in columns], axis=0)
    return calls[is_new]


def _counted(groups: Ints, processes: Ints) -> Counter[_Match]:
    if not len(groups):
        return Counter()
    pairs, counts = np.unique(np.stack([groups, processes]), axis=1, return_counts=True)
    return Counter(dict(zip(map(tuple, pairs.T.tolist()), counts.tolist(), strict=True)))


def _one_each(fits: Counter[_Match], votes: Counter[_Match]) -> dict[int, int]:
    """Return the process of each group: the best match first, and another process for each group if possible."""
    matches = sorted({*fits, *votes}, key=lambda match: (-fits[match], -votes[match], match))
    owner: dict[int, int] = {}
    taken: set[int] = set()
    for group, process in matches:
        if group not in owner and process not in taken:
            owner[group] = process
            taken.add(process)
    for group, process in matches:
        owner.setdefault(group, process)
    return owner


def ranks(*columns: NDArray[np.integer]) -> tuple[int, Ints]:
    """Return the number of different rows, and a number per row; equal rows have equal numbers."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        _, rank = np.unique(column, return_inverse=True)
        # The numbers are made small again after each column, since the product of three could exceed int64.
        _, key = np.unique(key * (rank.max(initial=0) + 1) + rank, return_inverse=True)
    return int(key.max(initial=-1)) + 1, key

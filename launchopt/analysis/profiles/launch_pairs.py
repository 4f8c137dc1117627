"""Pairs of CUDA API calls and the GPU events that they started, in a trace of another tool.

In: a `Trace`. Out: `Pairs`: each call once, its kind, and the call of each GPU event.

The records of one call by the runtime and by the driver share thread and correlation id, and one encloses the other.
They become one call with the name of the outer one. A call and a GPU event are a pair if they have the same correlation
id, and the same process if the trace names it. If several calls have the id, the latest that began before the event
forms the pair.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.traces.events import NONE, Kind, Rows, Trace

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_LAUNCH = re.compile(r"(cuda|cu|hip)(Ext)?(Module)?(Launch(?!HostFunc)|GraphLaunch)\w*")
_MEMORY = re.compile(r"(cuda|cu|hip)(Memcpy|Memset)\w*")


@dataclass(frozen=True, slots=True)
class Pairs:
    """Calls and GPU events, both by start. `call_of` is a position in `calls`, or NONE.

    A launch call has the name of one, or started a kernel. A memory call copies or fills, and is no launch call.
    """

    calls: Rows
    gpu: Rows
    call_of: Ints
    is_launch: Bools
    is_memory: Bools
    is_kernel: Bools  # which GPU events are kernels, not whole graphs
    doubled: int  # records that another record of the same call encloses

    @property
    def of_kernels(self) -> Ints:
        """Return the positions in `gpu` of kernels and whole graphs that launch calls started, in order of start."""
        is_work = self.is_kernel | (self.gpu["kind"] == Kind.GRAPH)
        return np.flatnonzero(is_work & (self.call_of != NONE))


def pair(trace: Trace) -> Pairs:
    """Return the calls of `trace`, and for each GPU event the call that started it."""
    calls = _outermost(trace.calls)
    gpu = trace.gpu[np.argsort(trace.gpu["start_ns"], kind="stable")]
    call_of = _call_of(calls, gpu)
    is_kernel = gpu["kind"] == Kind.KERNEL
    is_work = (is_kernel | (gpu["kind"] == Kind.GRAPH)) & (call_of != NONE)
    is_launch, is_memory = _named(_LAUNCH, calls, trace.names), _named(_MEMORY, calls, trace.names)
    is_launch[call_of[is_work]] = True
    return Pairs(calls, gpu, call_of, is_launch, is_memory & ~is_launch, is_kernel, len(trace.calls) - len(calls))


def _named(pattern: re.Pattern[str], calls: Rows, names: tuple[str, ...]) -> Bools:
    matches = np.array([pattern.fullmatch(name) is not None for name in names], dtype=bool)
    return matches[calls["name"]] if len(calls) else np.empty(0, dtype=bool)


def _outermost(calls: Rows) -> Rows:
    """Return each call once, by start, from its outer record's start to the latest end of its records."""
    if not len(calls):
        return calls
    # A call without an id shares its record with no other.
    has_id = calls["correlation"] > 0
    _, key = _ranks(calls["process"], calls["thread"], np.where(has_id, calls["correlation"], 0))
    key = np.where(has_id, key, key.max() + 1 + np.arange(len(calls)))
    order = np.lexsort((-calls["end_ns"], calls["start_ns"], key))
    calls, key = calls[order], key[order]

    # Overlapping records of a key are one call. Key and time form one number that grows with the key first.
    times, rank = np.unique(np.concatenate([calls["start_ns"], calls["end_ns"]]), return_inverse=True)
    start, end = (key * len(times) + part for part in np.split(rank, 2))
    covered = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate([[True], start[1:] > covered[:-1]]))
    merged = calls[first]
    merged["end_ns"] = np.maximum.reduceat(calls["end_ns"], first)
    return merged[np.argsort(merged["start_ns"], kind="stable")]


def _ranks(*columns: NDArray[np.integer]) -> tuple[int, Ints]:
    """Return the number of different rows, and a number per row; equal rows have equal numbers."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        _, rank = np.unique(column, return_inverse=True)
        # Ranked after each column: a product of three could exceed int64.
        _, key = np.unique(key * (rank.max(initial=0) + 1) + rank, return_inverse=True)
    return int(key.max(initial=-1)) + 1, key


def _call_of(calls: Rows, gpu: Rows) -> Ints:
    """Return for each GPU event the position in `calls` of its call, or NONE."""
    found = np.full(len(gpu), NONE, dtype=np.int64)
    with_id = np.flatnonzero(calls["correlation"] > 0)
    if not len(with_id) or not len(gpu):
        return found
    sides = calls[with_id], gpu
    knows_process = bool((gpu["process"] != NONE).all())
    process = np.concatenate([side["process"] if knows_process else np.zeros(len(side), np.int32) for side in sides])
    _, key = _ranks(process, np.concatenate([side["correlation"] for side in sides]))
    times, rank = np.unique(np.concatenate([side["start_ns"] for side in sides]), return_inverse=True)
    place = key * len(times) + rank
    called, ran = np.split(key, [len(with_id)])
    order = np.argsort(place[: len(with_id)], kind="stable")
    called = called[order]

    # The latest call of the id before the event's start; where all began later, the first of them.
    before = np.searchsorted(place[: len(with_id)][order], place[len(with_id) :], side="right") - 1
    after = np.minimum(before + 1, len(order) - 1)
    before = np.maximum(before, 0)
    at = np.where(called[before] == ran, before, after)
    is_found = (called[at] == ran) & (gpu["correlation"] > 0)
    found[is_found] = with_id[order[at[is_found]]]
    return found

"""Pairs of CUDA API calls and the GPU events that they started, in a trace of another tool.

In: a `Trace`. Out: `Pairs`: each call once, its kind, and the call of each GPU event.

The records of one call by the runtime and by the driver share thread and correlation id, and one encloses the other.
They become one call with the name of the outer one. A call and a GPU event are a pair if they have the same correlation
id and process (`gpu_event_owners`). If several calls have the id, the latest that began before the event forms the
pair. If as many calls as events have the id, the nth call belongs to the nth event, in the order of the file or else of
time: External ids count operators, and processes of two hosts may have one number. A call that cannot start anything,
such as cudaEventQuery, forms no pair. Calls and GPU events that were recorded wrongly (`event_faults`) are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from launchopt.analysis.profiles.captures import named, within_capture
from launchopt.analysis.profiles.event_faults import overlong, overlong_calls, repeated
from launchopt.analysis.profiles.gpu_event_owners import SIDES, Bools, Ints, owners, ranks
from launchopt.traces.events import NONE, Kind, Rows, Trace

_LAUNCH = re.compile(
    r"(cuda|cu|hip)(Ext)?(Module)?(Launch(?!HostFunc)|GraphLaunch)\w*"
    r"|(ur|pi)Enqueue(Cooperative)?KernelLaunch\w*|zeCommandListAppendLaunch\w*"
)
_MEMORY = re.compile(
    r"(cuda|cu|hip)(Memcpy|Memset)\w*|(ur|pi)Enqueue(USM|Mem)(?!Prefetch|Advise|Unmap)\w*|zeCommandListAppendMemory\w*"
)
_STARTS_NOTHING = re.compile(
    r"(cuda|cu|hip)("
    r"Peek|Get|Set|Event|Device|Ctx|Func|Pointer|Occupancy|Driver|Runtime|Init|Library|Link|Profiler|Thread|LaunchHostFunc"
    r"|Module(?!Launch)|Kernel|Malloc|Free|Host|Array|Choose|Stream(?!WaitValue|WriteValue|BatchMemOp)"
    r"|Graph(?!Launch|Upload)|Mem(Alloc|Free|Get|Pool|Create|Map|Unmap|Address|Set[A-Z]|Release|Advise|Range|Host)"
    r")\w*"
)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Calls and GPU events, both by start. `call_of` is a position in `calls`, or NONE.

    A launch call has the name of one, or started a kernel. A memory call copies or fills, and is no launch call. Calls
    that were recorded into a graph are neither. A GPU event with a call has the call's process.
    """

    calls: Rows
    gpu: Rows
    call_of: Ints
    is_launch: Bools
    is_memory: Bools
    is_captured: Bools  # which calls were recorded into a graph
    is_kernel: Bools  # which GPU events are kernels, not whole graphs
    doubled: int  # records that another record of the same call encloses
    overlong_calls: int  # calls that were left out, since a later one of their thread ended before them
    repeated: int  # GPU events that were left out, since they repeat an earlier one
    overlong: int  # GPU events that were left out, since a later one of their stream ended before them
    shared_ids: int  # GPU events whose correlation id several processes have
    overlong_gpu: Rows  # the GPU events that `overlong` counts

    @property
    def of_kernels(self) -> Ints:
        """Return the positions in `gpu` of kernels and whole graphs that launch calls started, in order of start."""
        is_work = self.is_kernel | (self.gpu["kind"] == Kind.GRAPH)
        return np.flatnonzero(is_work & (self.call_of != NONE))


def pair(trace: Trace) -> Pairs:
    """Return the calls of `trace`, and for each GPU event the call that started it."""
    calls = _outermost(trace.calls)
    doubled = len(trace.calls) - len(calls)
    is_launching = named(_LAUNCH, calls, trace.names) | named(_MEMORY, calls, trace.names)
    too_long_calls = overlong_calls(calls, trace.names, is_launching)
    calls = calls[~too_long_calls]
    twice = repeated(trace.gpu)
    gpu = trace.gpu[~twice]
    gpu = gpu[np.argsort(gpu["start_ns"], kind="stable")]
    able = np.flatnonzero(~named(_STARTS_NOTHING, calls, trace.names))
    process, shared_ids = owners(calls[able], gpu)
    call_of = _call_of(calls[able], gpu, process)
    call_of[call_of != NONE] = able[call_of[call_of != NONE]]
    gpu["process"] = np.where(call_of != NONE, process, gpu["process"])
    too_long = overlong(gpu, call_of)
    overlong_gpu, gpu, call_of = gpu[too_long], gpu[~too_long], call_of[~too_long]

    is_kernel = gpu["kind"] == Kind.KERNEL
    is_work = (is_kernel | (gpu["kind"] == Kind.GRAPH)) & (call_of != NONE)
    is_launch, is_memory = named(_LAUNCH, calls, trace.names), named(_MEMORY, calls, trace.names)
    started = np.zeros(len(calls), bool)
    started[call_of[call_of != NONE]] = True
    is_captured = within_capture(calls, trace.names) & (is_launch | is_memory) & ~started
    is_launch &= ~is_captured
    is_launch[call_of[is_work]] = True
    is_memory &= ~is_captured & ~is_launch
    faults = doubled, int(too_long_calls.sum()), int(twice.sum()), int(too_long.sum()), shared_ids
    return Pairs(calls, gpu, call_of, is_launch, is_memory, is_captured, is_kernel, *faults, overlong_gpu)


def _outermost(calls: Rows) -> Rows:
    """Return each call once, by start, from its outer record's start to the latest end of its records."""
    if not len(calls):
        return calls
    # A call without an id shares its record with no other.
    has_id = calls["correlation"] > 0
    _, key = ranks(calls["process"], calls["thread"], np.where(has_id, calls["correlation"], 0))
    key = np.where(has_id, key, key.max() + 1 + np.arange(len(calls)))
    order = np.lexsort((-calls["end_ns"], calls["start_ns"], key))
    calls, key = calls[order], key[order]

    # Overlapping records of a key are one call. Key and time form one number that grows with the key first.
    times, rank = np.unique(np.concatenate([calls["start_ns"], calls["end_ns"]]), return_inverse=True)
    start, end = (key * len(times) + part for part in np.split(rank, 2))
    covered = np.maximum.accumulate(end)
    # Two of one name that overlap, of which none encloses the other, are calls of two processes with equal numbers.
    is_beside = (end[1:] > covered[:-1]) & (calls["name"][1:] == calls["name"][:-1])
    first = np.flatnonzero(np.concatenate([[True], (start[1:] > covered[:-1]) | is_beside]))
    merged = calls[first]
    merged["end_ns"] = np.maximum.reduceat(calls["end_ns"], first)
    return merged[np.argsort(merged["start_ns"], kind="stable")]


def _call_of(calls: Rows, gpu: Rows, process: Ints) -> Ints:
    """Return for each GPU event, which is of `process`, the position in `calls` of its call, or NONE."""
    found = np.full(len(gpu), NONE, dtype=np.int64)
    with_id = np.flatnonzero(calls["correlation"] > 0)
    if not len(with_id) or not len(gpu):
        return found
    sides = calls[with_id], gpu
    owner = np.concatenate([calls["process"][with_id], process])
    _, key = ranks(owner, np.concatenate([side["correlation"] for side in sides]))
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
    in_order = _in_order(calls[with_id], gpu, *np.split(key, [len(with_id)]))
    return np.where(in_order != NONE, with_id[in_order], found)


def _in_order(calls: Rows, gpu: Rows, called: Ints, ran: Ints) -> Ints:
    """Return the position in `calls` of each GPU event with one of several calls of its key; NONE for others.

    called, ran: the keys of calls and of events. NONE also where a key has more or fewer calls than events, or where
    neither order lets each call begin before its event.
    """
    found = np.full(len(gpu), NONE, dtype=np.int64)
    if np.bincount(called).max() < 2:
        return found
    for by in ("place", "start_ns"):
        order, rows = np.lexsort((calls[by], called)), np.lexsort((gpu[by], ran))
        keys, first, count = np.unique(ran[rows], return_index=True, return_counts=True)
        low, high = (np.searchsorted(called[order], keys, side) for side in SIDES)
        is_even = (high - low == count) & (count > 1)
        match = np.repeat(np.arange(len(keys)), count)
        nth = np.arange(len(rows)) - first[match]
        chosen = is_even[match]
        event, at = rows[chosen], order[(low[match] + nth)[chosen]]
        match = match[chosen]
        is_even[match[calls["start_ns"][at] > gpu["start_ns"][event]]] = False
        is_right = is_even[match] & (gpu["correlation"][event] > 0) & (found[event] == NONE)
        found[event[is_right]] = at[is_right]
    return found

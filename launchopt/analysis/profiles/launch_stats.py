"""Cost of launches in a trace of another tool.

In: a `Trace`. Out: `LaunchStats`, made of figures and texts, so that it can be written as JSON.

    host time      of a launch call, from its start to its end
    launch delay   from the end of a launch call to the start of its first kernel (or whole graph); a start while the
                   call was under way counts as clipped, with a delay of 0
    start to start from the start of a launch call to that of its first kernel; never clipped
    queue length   of a CUDA stream: calls for it that have begun, and whose first event on it has not; sampled when
                   such a call begins, that call included

Percentiles are linear between neighbouring values. None: nothing to measure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from launchopt.analysis.profiles.dispatch import OperatorCost, operator_costs
from launchopt.analysis.profiles.gpu_event_owners import Bools, Ints
from launchopt.analysis.profiles.gpu_time import DeviceTime, device_times, idle_in_operators_ms, total_time
from launchopt.analysis.profiles.launch_pairs import Pairs, pair
from launchopt.analysis.profiles.launch_queues import StreamQueue, queues
from launchopt.traces.events import NONE, Kind, Trace

SHORT_US = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of one duration over `count` calls."""

    count: int
    sum_us: float
    p50_us: float | None
    p99_us: float | None
    min_us: float | None
    max_us: float | None


@dataclass(frozen=True, slots=True)
class Share:
    """A count and its share of a whole."""

    count: int
    share: float | None


class Faults(TypedDict):
    """Fields of `LaunchStats`: what was wrong with the file and its events, or with their ids."""

    doubled_calls: int
    overlong_calls: int
    repeated_events: int
    overlong_events: int
    shared_ids: int
    mended: int
    first_mended: str
    other_events: dict[str, int]
    diagnostics: tuple[str, ...]
    without_id: int


class Memory(TypedDict):
    """Fields of `LaunchStats`: calls that copy, fill or allocate, and copies and fills."""

    memory_calls: int
    memory_calls_by_name: dict[str, int]
    memory_calls_without_gpu_event: int
    memory_host: Spread
    copies: int
    copies_without_call: int


@dataclass(frozen=True, slots=True)
class LaunchStats:
    """Statistics of one trace; the module's docstring defines them."""

    format: str
    events: int
    left_out: int
    api_calls: int
    doubled_calls: int
    overlong_calls: int  # calls that are left out, since a later one of their thread ended before them
    repeated_events: int  # GPU events that are left out, since they repeat an earlier one
    overlong_events: int  # GPU events that are left out, since a later one of their stream ended before them
    shared_ids: int  # GPU events whose correlation id several processes have
    mended: int  # tokens in the file that are not JSON
    first_mended: str
    other_events: dict[str, int]  # events of other accelerators, or of unknown categories
    diagnostics: tuple[str, ...]  # messages of the profiler about CUDA
    without_id: int  # launch calls and GPU events without a correlation id or External id
    launch_calls: int
    launch_calls_by_name: dict[str, int]
    launch_calls_without_kernel: int
    captured_calls: int  # launch and memory calls that were recorded into a graph; no other figure includes them
    kernels: int
    kernels_launched: int  # kernels that a launch call started
    kernels_without_call: int
    kernels_per_call: float | None  # launched kernels over all launch calls
    whole_graphs: int  # graphs recorded as a whole; no count includes their kernels
    host: Spread
    launch_delay: Spread
    launch_delays_clipped: int
    launch_delay_unclipped_sum_us: float
    start_to_start: Spread
    gpu_events: int
    gpu_events_by_kind: dict[str, int]
    gpu_time: DeviceTime | None
    gpu_time_by_device: tuple[DeviceTime, ...]
    idle_in_operators_ms: float | None  # of all GPUs, with nothing launched; None without operators
    queues: tuple[StreamQueue, ...]  # longest queue first
    short_kernels: dict[str, Share]  # under_1_us, ...: share of all kernels
    shorter_than_call: Share  # share of the launched kernels
    memory_calls: int
    memory_calls_by_name: dict[str, int]
    memory_calls_without_gpu_event: int
    memory_host: Spread
    copies: int  # copies and fills that the GPU did
    copies_without_call: int
    operators: tuple[OperatorCost, ...]  # operators that made launch calls; the largest sum first


def launch_stats(trace: Trace, pairs: Pairs | None = None) -> LaunchStats:
    """Return the statistics of `trace`. `pairs` are computed if the caller does not pass them."""
    pairs = pair(trace) if pairs is None else pairs
    calls, gpu, launched = pairs.calls, pairs.gpu, pairs.of_kernels
    host_ns = calls["end_ns"] - calls["start_ns"]
    # Events are in order of start, so the first event of each call is its earliest.
    starting, first = np.unique(pairs.call_of[launched], return_index=True)
    begun = gpu["start_ns"][launched[first]]
    delay_ns = begun - calls["end_ns"][starting]
    times = device_times(pairs, trace.names)
    kernel_ns = (gpu["end_ns"] - gpu["start_ns"])[pairs.is_kernel]
    own_call = pairs.call_of[pairs.is_kernel]
    known = own_call != NONE
    shorter = kernel_ns[known] < host_ns[own_call[known]]
    launch_calls, kernels, kernels_launched = int(pairs.is_launch.sum()), len(kernel_ns), int(known.sum())
    return LaunchStats(
        format=trace.format.value,
        events=trace.events,
        left_out=trace.left_out,
        api_calls=len(calls),
        **_faults(trace, pairs),
        launch_calls=launch_calls,
        launch_calls_by_name=_by_name(trace, pairs, pairs.is_launch),
        launch_calls_without_kernel=launch_calls - len(starting),
        captured_calls=int(pairs.is_captured.sum()),
        kernels=kernels,
        kernels_launched=kernels_launched,
        kernels_without_call=kernels - kernels_launched,
        kernels_per_call=kernels_launched / launch_calls if launch_calls else None,
        whole_graphs=int((gpu["kind"] == Kind.GRAPH).sum()),
        host=_spread(host_ns[pairs.is_launch]),
        launch_delay=_spread(np.maximum(delay_ns, 0)),
        launch_delays_clipped=int((delay_ns < 0).sum()),
        launch_delay_unclipped_sum_us=_sum_us(delay_ns),
        start_to_start=_spread(begun - calls["start_ns"][starting]),
        gpu_events=len(gpu),
        gpu_events_by_kind={kind.name.lower(): n for kind in Kind if (n := int((gpu["kind"] == kind).sum()))},
        gpu_time=total_time(times),
        gpu_time_by_device=times,
        idle_in_operators_ms=idle_in_operators_ms(pairs, trace.operators),
        queues=queues(pairs, trace.names),
        short_kernels={f"under_{us}_us": _share(kernel_ns < us * 1000) for us in SHORT_US},
        shorter_than_call=_share(shorter),
        **_memory(trace, pairs),
        operators=operator_costs(trace, pairs),
    )


def _faults(trace: Trace, pairs: Pairs) -> Faults:
    """Return what was wrong with the file and its events, or with their ids."""
    calls, gpu = pairs.calls, pairs.gpu
    return Faults(
        doubled_calls=pairs.doubled,
        overlong_calls=pairs.overlong_calls,
        repeated_events=pairs.repeated,
        overlong_events=pairs.overlong,
        shared_ids=pairs.shared_ids,
        mended=trace.mended,
        first_mended=trace.first_mended,
        other_events=dict(trace.other_events),
        diagnostics=trace.diagnostics,
        without_id=int((calls["correlation"][pairs.is_launch] <= 0).sum() + (gpu["correlation"] <= 0).sum()),
    )


def _memory(trace: Trace, pairs: Pairs) -> Memory:
    """Return the figures of calls that copy, fill or allocate, and of copies and fills."""
    calls, gpu = pairs.calls, pairs.gpu
    host_ns = calls["end_ns"] - calls["start_ns"]
    is_copy = np.isin(gpu["kind"], (Kind.MEMCPY, Kind.MEMSET))
    has_event = np.bincount(pairs.call_of[pairs.call_of != NONE], minlength=len(calls)) > 0
    return Memory(
        memory_calls=int(pairs.is_memory.sum()),
        memory_calls_by_name=_by_name(trace, pairs, pairs.is_memory),
        memory_calls_without_gpu_event=int((pairs.is_memory & ~has_event).sum()),
        memory_host=_spread(host_ns[pairs.is_memory]),
        copies=int(is_copy.sum()),
        copies_without_call=int((is_copy & (pairs.call_of == NONE)).sum()),
    )


def _spread(values_ns: Ints) -> Spread:
    if not len(values_ns):
        return Spread(0, 0.0, None, None, None, None)
    p50, p99 = np.percentile(values_ns, [50, 99]) / 1e3
    lowest, highest = int(values_ns.min()) / 1e3, int(values_ns.max()) / 1e3
    return Spread(len(values_ns), _sum_us(values_ns), float(p50), float(p99), lowest, highest)


def _sum_us(values_ns: Ints) -> float:
    """Return a sum of ns in us. It is exact up to 104 days, and never wraps around, even for a broken trace."""
    return float(values_ns.sum(dtype=np.float64)) / 1e3


def _share(is_one: Bools) -> Share:
    count = int(is_one.sum())
    return Share(count, count / len(is_one) if len(is_one) else None)


def _by_name(trace: Trace, pairs: Pairs, is_one: Bools) -> dict[str, int]:
    """Return counts by name, the most frequent first."""
    codes, counts = np.unique(pairs.calls["name"][is_one], return_counts=True)
    found: Counter[str] = Counter()
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        found[trace.names[code]] += count
    return dict(found.most_common())

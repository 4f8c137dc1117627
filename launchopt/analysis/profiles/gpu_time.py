"""Busy and idle time of each GPU in a trace, and the causes of the idle time.

In: `Pairs`. Out: a `DeviceTime` per GPU. Its window runs from the start of the first event (kernel, copy, fill, graph)
to the end of the last. Idle time before the first event belongs to the start of the program, not to launches.

Idle time is split by the state of the host, because the strategies against it differ:

    not launched   no call that would start an event was under way or had returned: the host was busy elsewhere, so
                   faster launches alone do not help
    in a call      at least one such call was under way, none had returned: the cost of launch calls, which fewer calls,
                   graphs or batches shorten
    launched       at least one call had returned, and its event had not begun: the delay from launch to start, or a
                   wait for another stream, a copy or an event

An event without a known call counts as not launched before it began. `idle_in_operators_ms` is the part of "not
launched" in which the host was in an operator of the framework: dispatch, which a captured graph or fused kernels save.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from launchopt.analysis.profiles.gpu_event_owners import Bools, Gpu, Ints, gpus
from launchopt.analysis.profiles.launch_pairs import Pairs
from launchopt.traces.events import NONE, Rows


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Times of one GPU, or the sum over all GPUs, whose device is None.

    process: None if the trace does not name it, or if several share the GPU.
    window = busy + idle; idle is the sum of its parts.
    """

    device: int | None
    process: str | None
    window_ms: float
    busy_ms: float  # length of the union of the events' intervals
    idle_ms: float
    idle_not_launched_ms: float
    idle_in_call_ms: float
    idle_launched_ms: float


def device_times(pairs: Pairs, names: Sequence[str]) -> tuple[DeviceTime, ...]:
    """Return one row per GPU, by number. names: of the trace."""
    found = gpus(pairs.gpu)
    return tuple(_device_time(pairs, gpu, None if gpu.process == NONE else names[gpu.process]) for gpu in found)


def total_time(times: tuple[DeviceTime, ...]) -> DeviceTime | None:
    """Return the sum over all GPUs; None without any."""
    if not times:
        return None
    columns = zip(*((t.window_ms, t.busy_ms, t.idle_ms, *_parts(t)) for t in times), strict=True)
    return DeviceTime(None, None, *(sum(column) for column in columns))


def idle_in_operators_ms(pairs: Pairs, operators: Rows) -> float | None:
    """Return the idle time of all GPUs with nothing launched and the host in an operator; None without operators."""
    if not len(operators):
        return None
    return sum(_in_operators_ns(pairs, gpu, operators) for gpu in gpus(pairs.gpu)) / 1e6


def _in_operators_ns(pairs: Pairs, own: Gpu, operators: Rows) -> int:
    gaps = _gaps(pairs.gpu["start_ns"][own.rows], pairs.gpu["end_ns"][own.rows])
    called, begun = _called(pairs, own.rows)
    if own.process != NONE:
        operators = operators[operators["process"] == own.process]
    start = np.concatenate([called["start_ns"], operators["start_ns"]])
    end = np.concatenate([begun, operators["end_ns"]])
    return _common_ns(gaps, start, end) - _common_ns(gaps, called["start_ns"], begun)


def _called(pairs: Pairs, is_here: Bools) -> tuple[Rows, Ints]:
    """Return the calls that started some events, and when these began."""
    is_known = is_here & (pairs.call_of != NONE)
    return pairs.calls[pairs.call_of[is_known]], pairs.gpu["start_ns"][is_known]


def _parts(time: DeviceTime) -> tuple[float, float, float]:
    return time.idle_not_launched_ms, time.idle_in_call_ms, time.idle_launched_ms


def _device_time(pairs: Pairs, own: Gpu, process: str | None) -> DeviceTime:
    is_here = own.rows
    gpu = pairs.gpu[is_here]
    gaps = _gaps(gpu["start_ns"], gpu["end_ns"])
    busy_ns, idle_ns = gaps.covered_ns, gaps.total_ns

    call, begun = _called(pairs, is_here)
    called_ns = _common_ns(gaps, call["start_ns"], begun)
    launched_ns = _common_ns(gaps, call["end_ns"], begun)
    parts = (idle_ns - called_ns, called_ns - launched_ns, launched_ns)
    return DeviceTime(own.device, process, *(ns / 1e6 for ns in (busy_ns + idle_ns, busy_ns, idle_ns, *parts)))


class _Gaps(NamedTuple):
    """Gaps between intervals, and the length of the intervals' union; ns."""

    start: Ints
    end: Ints
    covered_ns: int

    @property
    def total_ns(self) -> int:
        """Length of all gaps."""
        return int((self.end - self.start).sum())


def _gaps(start: Ints, end: Ints) -> _Gaps:
    """Return the gaps between the intervals [start, end). There is at least one interval."""
    order = np.argsort(start, kind="stable")
    covered = np.maximum.accumulate(end[order])
    gap_start, gap_end = covered[:-1], np.maximum(start[order][1:], covered[:-1])
    window_ns = int(covered[-1] - start[order][0])
    return _Gaps(gap_start, gap_end, window_ns - int((gap_end - gap_start).sum()))


def _common_ns(gaps: _Gaps, start: Ints, end: Ints) -> int:
    """Return the length of the intersection of the gaps and the union of [start, end). Empty intervals are skipped."""
    is_span = start < end
    start, end = start[is_span], end[is_span]
    both = _union_ns(np.concatenate([gaps.start, start]), np.concatenate([gaps.end, end]))
    return gaps.total_ns + _union_ns(start, end) - both


def _union_ns(start: Ints, end: Ints) -> int:
    return _gaps(start, end).covered_ns if len(start) else 0

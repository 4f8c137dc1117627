"""Queues of launches: the number of calls that a stream had not begun, at each call for it.

A graph launch is one call, on each stream that its kernels run on. It has begun on a stream when its first kernel there
has. Two contexts, and two processes, have queues of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from launchopt.analysis.profiles.gpu_event_owners import Ints, ranks
from launchopt.analysis.profiles.launch_pairs import Pairs
from launchopt.traces.events import NONE

_STREAM = ("process", "device", "context", "stream")


@dataclass(frozen=True, slots=True)
class StreamQueue:
    """The queue of one CUDA stream. `process`, `context`: None if the trace does not name it."""

    process: str | None
    device: int
    context: int | None
    stream: int | str  # its number, or its name if it has none
    calls: int  # calls that started events on it
    events: int  # GPU events whose call is known
    largest: int
    p50: float


def queues(pairs: Pairs, names: Sequence[str]) -> tuple[StreamQueue, ...]:
    """Return the queue of each stream, the longest first."""
    known = np.flatnonzero(pairs.call_of != NONE)
    if not len(known):
        return ()
    gpu, call = pairs.gpu[known], pairs.call_of[known]
    _, stream = ranks(*(gpu[name] for name in _STREAM))
    # Events are in order of start, so the first one of each stream and call is the earliest.
    _, launch = ranks(stream, call)
    _, first = np.unique(launch, return_index=True)
    first = first[np.argsort(stream[first], kind="stable")]
    events = np.bincount(stream)
    bounds = np.searchsorted(stream[first], np.arange(len(events) + 1))
    found = []
    for low, high, count in zip(bounds[:-1].tolist(), bounds[1:].tolist(), events.tolist(), strict=True):
        rows = first[low:high]
        lengths = _lengths(pairs.calls["start_ns"][call[rows]], gpu["start_ns"][rows])
        process, device, context, number = (int(gpu[name][rows[0]]) for name in _STREAM)
        found.append(
            StreamQueue(
                None if process == NONE else names[process],
                device,
                None if context == NONE else context,
                number if number >= NONE else names[-2 - number],
                calls=high - low,
                events=count,
                largest=int(lengths.max()),
                p50=float(np.median(lengths)),
            )
        )
    return tuple(sorted(found, key=lambda queue: (-queue.largest, -queue.events)))


def _lengths(called: Ints, begun: Ints) -> Ints:
    """Return for each time of `called` the number of calls that had been made, and whose events had not begun."""
    waits = called < begun
    entered, left = np.sort(called[waits]), np.sort(begun[waits])
    return np.searchsorted(entered, called, side="right") - np.searchsorted(left, called, side="right")

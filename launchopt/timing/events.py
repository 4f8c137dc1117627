"""Time a run by CUDA events: its span on the main CUDA stream, and start and end of sampled launches.

Two anchors, before and after the run, convert device times to CLOCK_MONOTONIC. An anchor is an event on an idle stream.
Its host time is known up to the duration of one synchronization, and this error is recorded. Between the anchors, the
drift of the clocks is interpolated linearly. Events come from a pool and are used in turn. An event's time is read just
before the event is used again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.cupy_types import CudaStream

POOL = 1024  # pairs of events, as many as a GPU's launch queue holds launches
ANCHOR_TRIES = 20  # anchors to take; the anchor with the smallest error counts


@dataclass(frozen=True, slots=True)
class Anchor:
    """One moment on the clock of the GPU and on that of the host."""

    event: object  # CuPy event
    host_ns: int  # CLOCK_MONOTONIC
    error_ns: int  # largest error of host_ns


def anchor(stream: CudaStream) -> Anchor:
    """Return the anchor with the smallest error of ANCHOR_TRIES tries on an idle stream."""
    best: Anchor | None = None
    for _ in range(ANCHOR_TRIES):
        event = cupy.cuda.Event()
        stream.synchronize()
        before_ns = time.monotonic_ns()
        event.record(stream)
        event.synchronize()
        after_ns = time.monotonic_ns()
        if best is None or after_ns - before_ns < best.error_ns:
            best = Anchor(event, (before_ns + after_ns) // 2, after_ns - before_ns)
    assert best is not None
    return best


class EventTimer:
    """Times runs on `stream`, with at most `most_samples` sampled launches per run."""

    def __init__(self, stream: CudaStream, most_samples: int) -> None:
        self._stream = stream
        self._pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(POOL)]
        self._elapsed_ms = np.zeros((most_samples, 2))
        self._span = (cupy.cuda.Event(), cupy.cuda.Event())

    def start(self) -> None:
        """Anchor the clocks. The stream must be idle."""
        self._anchor = anchor(self._stream)
        self.count = 0
        self._read = 0

    def mark_start(self) -> None:
        """Mark the start of the run, just before its first launch."""
        self._span[0].record(self._stream)

    @property
    def full(self) -> bool:
        """True if the run has `most_samples` samples, so that no other launch can be sampled."""
        return self.count == len(self._elapsed_ms)

    def begin(self, stream: CudaStream | None = None) -> None:
        """Begin a sample, just before a launch. stream: CUDA stream of the launch; None: the timer's own."""
        if self.count - self._read == POOL:
            self._read_one()
        self._pairs[self.count % POOL][0].record(stream or self._stream)

    def end(self, stream: CudaStream | None = None) -> int:
        """End the sample, just after the launch, and return its number."""
        self._pairs[self.count % POOL][1].record(stream or self._stream)
        self.count += 1
        return self.count - 1

    def _read_one(self) -> None:
        start, end = self._pairs[self._read % POOL]
        end.synchronize()
        elapsed = cupy.cuda.get_elapsed_time
        self._elapsed_ms[self._read] = elapsed(self._anchor.event, start), elapsed(self._anchor.event, end)
        self._read += 1

    def mark_end(self) -> None:
        """Mark the end of the run, just after its last launch."""
        self._span[1].record(self._stream)

    def finish(self) -> tuple[int, NDArray[np.int64], int]:
        """Return the span of the run, the samples, and the largest error of the clocks' offset, all in ns.

        Samples are [samples, 2]: start and end, CLOCK_MONOTONIC. The stream must be idle.
        """
        while self._read < self.count:
            self._read_one()
        last = anchor(self._stream)
        between_ms = cupy.cuda.get_elapsed_time(self._anchor.event, last.event)
        host_ns_per_ms = (last.host_ns - self._anchor.host_ns) / between_ms if between_ms > 100 else 1e6
        samples = self._anchor.host_ns + self._elapsed_ms[: self.count] * host_ns_per_ms
        span_ms = cupy.cuda.get_elapsed_time(*self._span)
        return int(span_ms * 1e6), samples.astype(np.int64), max(self._anchor.error_ns, last.error_ns)

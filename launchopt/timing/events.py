"""CUDA events on the work's stream: the span of a run, and start and end of sampled submissions.

Two anchors, before and after the run, tie device times to CLOCK_MONOTONIC. An anchor is an event on an idle stream
whose host time is known to within one synchronisation; that error is kept. Between the anchors the drift of the clocks
is interpolated. A pool of events is used in turn. Their times are read long after the GPU passed them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

POOL = 1024  # pairs in flight: more than the launch queue of a GPU holds
ANCHOR_TRIES = 20


@dataclass(frozen=True, slots=True)
class Anchor:
    """One moment on both clocks."""

    event: Any
    host_ns: int
    error_ns: int


def anchor(stream: Any) -> Anchor:
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
    """Times one run on `stream`, with at most `most_samples` samples."""

    def __init__(self, stream: Any, most_samples: int) -> None:
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
        """Mark the start of the run: the first submission comes next."""
        self._span[0].record(self._stream)

    @property
    def full(self) -> bool:
        """Whether there is no room for another sample."""
        return self.count == len(self._elapsed_ms)

    def begin(self, stream: Any = None) -> None:
        """Begin a sample: the next submission is timed. stream: of that submission; None: the timer's own."""
        if self.count - self._read == POOL:
            self._read_one()
        self._pairs[self.count % POOL][0].record(stream or self._stream)

    def end(self, stream: Any = None) -> int:
        """End the sample and return its number."""
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
        """Mark the end of the run: the last submission was made."""
        self._span[1].record(self._stream)

    def finish(self) -> tuple[int, NDArray[np.int64], int]:
        """Return the span, start and end of each sample (CLOCK_MONOTONIC, [samples, 2]), and their error; all in ns.

        Call it after the last result.
        """
        while self._read < self.count:
            self._read_one()
        last = anchor(self._stream)
        between_ms = cupy.cuda.get_elapsed_time(self._anchor.event, last.event)
        host_ns_per_ms = (last.host_ns - self._anchor.host_ns) / between_ms if between_ms > 100 else 1e6
        samples = self._anchor.host_ns + self._elapsed_ms[: self.count] * host_ns_per_ms
        span_ms = cupy.cuda.get_elapsed_time(*self._span)
        return int(span_ms * 1e6), samples.astype(np.int64), max(self._anchor.error_ns, last.error_ns)

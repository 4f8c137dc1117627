"""Feeding results of steps back on the CPU: when `feed_back` returns, the next step may come."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.arenas import Arenas
from launchopt.devices.steps import NO_ID, Ends, places_needed
from launchopt.feedback import HostFeedback
from launchopt.sampling import Sampling, SamplingKind
from launchopt.workloads.chain import ChainStream

WITHOUT = Sampling(SamplingKind.none)


class CpuSteps:
    """Over the arenas of a stream."""

    def __init__(self, stream: ChainStream, arenas: Arenas, sampling: Sampling) -> None:
        self._stream, self._itemsize = stream, stream.dtype.itemsize
        self._flat = arenas.arrays[stream.activations].reshape(-1)
        rows = self._flat[: stream.table_rows * stream.row_elements(stream.hidden)]
        table = rows.reshape(stream.table_rows, -1)[:, : stream.hidden]
        self._history = arenas.arrays.get(stream.history)
        self._plain = HostFeedback(stream.dtype, WITHOUT, None)
        self._sampled = None if stream.vocab is None else HostFeedback(stream.dtype, sampling, table)
        self.done: NDArray[np.uint64] = np.zeros(places_needed(stream), np.uint64)
        self.sampling_ns = 0

    def feed_back(self, ends: Ends) -> None:
        """Scale what was computed last, or sample from it; write the next inputs, then say that it is done."""
        of_token = ends.end_tokens
        if self._sampled is None:
            self._scale(ends)
            return
        if not of_token.all():
            self._scale(ends.only(~of_token))
        if of_token.any():
            self._sample(ends.only(of_token), self._sampled)

    def _rows(self, offsets: NDArray[np.uint64], width: int) -> NDArray[np.int64]:
        """Indices of `width` elements from each byte offset on, [rows, width]."""
        first = (offsets // np.uint64(self._itemsize)).astype(np.int64)
        indices: NDArray[np.int64] = first[:, None] + np.arange(width)
        return indices

    def _scale(self, ends: Ends) -> None:
        finals: Any = self._flat[self._rows(ends.sources, self._stream.hidden)]
        inputs, _ = self._plain.advance(finals, ends.requests, ends.tokens)
        self._flat[self._rows(ends.targets, self._stream.hidden)] = inputs
        kept = ends.end_tokens
        if self._history is not None:
            self._history[ends.places[kept], : self._stream.hidden] = finals[kept]
        self.done[ends.places] = NO_ID

    def _sample(self, ends: Ends, feedback: HostFeedback) -> None:
        start_ns = time.monotonic_ns()
        assert self._stream.vocab is not None
        finals = self._flat[self._rows(ends.sources, self._stream.vocab)]
        inputs, ids = feedback.advance(finals, ends.requests, ends.tokens)
        assert ids is not None
        self._flat[self._rows(ends.targets, self._stream.hidden)] = inputs
        self.done[ends.places] = ids.astype(np.int64).view(np.uint64) & np.uint64(0xFFFF_FFFF)
        self.sampling_ns += time.monotonic_ns() - start_ns

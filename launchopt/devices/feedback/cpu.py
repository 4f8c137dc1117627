"""Feed back the results of steps on the CPU. When `feed_back` returns, the requests' next steps may run."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from launchopt.command import HALF_BITS, LOW_HALF
from launchopt.devices.arenas import Arenas
from launchopt.devices.feedback.flights import Flights, Staged, facts_of, places_needed
from launchopt.devices.feedback.host import HostFeedback
from launchopt.devices.feedback.landing import StagedRow
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainStream

WITHOUT = Sampling(SamplingKind.none)
HISTORY_AT = 1  # byte offset at which a history begins; not 0, which means that no history is kept
NO_SAMPLE = 0  # id that `done` gets for a step that samples no token


class CpuSteps:
    """Feeds back the results of the steps of one workload stream."""

    def __init__(self, stream: ChainStream, arenas: Arenas, sampling: Sampling) -> None:
        self._stream, self._itemsize = stream, stream.dtype.itemsize
        self._flat = arenas.arrays[stream.activations].reshape(-1)
        rows = self._flat[: stream.table_rows * stream.row_elements(stream.hidden)]
        table = rows.reshape(stream.table_rows, -1)[:, : stream.hidden]
        self._history = arenas.arrays.get(stream.history)
        self._plain = HostFeedback(stream.dtype, WITHOUT, None)
        self._sampled = None if stream.vocab is None else HostFeedback(stream.dtype, sampling, table)
        self.done: NDArray[np.uint64] = np.zeros(places_needed(stream), np.uint64)
        # On the CPU, facts hold byte offsets into the arrays instead of addresses.
        self._facts = facts_of(stream, 0, 0 if self._history is None else HISTORY_AT, 0)
        self._staged = np.zeros((2, len(StagedRow), stream.requests), np.uint64)
        self.sampling_ns = 0

    def feed_back(self, flights: Flights, count: int) -> None:
        """Scale the last outputs, or sample from them; write the next inputs; then set the steps' words of `done`."""
        samples = flights.take_off(count, self._facts, *self._staged)
        if samples < count:
            self._scale(self._staged[1, :, : count - samples])
        if samples:
            self._sample(self._staged[0, :, :samples])

    def _rows(self, offsets: NDArray[np.uint64], width: int) -> NDArray[np.int64]:
        """Return the indices of `width` elements from each byte offset on, [rows, width]."""
        first = (offsets // np.uint64(self._itemsize)).astype(np.int64)
        indices: NDArray[np.int64] = first[:, None] + np.arange(width)
        return indices

    def _scale(self, staged: Staged) -> None:
        finals = self._flat[self._rows(staged[StagedRow.SOURCE], self._stream.hidden)]
        inputs, _ = self._plain.advance(finals, *_drawn(staged))
        self._flat[self._rows(staged[StagedRow.TARGET], self._stream.hidden)] = inputs
        kept = staged[StagedRow.HISTORY] != 0
        if self._history is not None:
            places = (staged[StagedRow.HISTORY][kept].astype(np.int64) - HISTORY_AT) // self._history[0].nbytes
            self._history[places, : self._stream.hidden] = finals[kept]
        self.done[staged[StagedRow.ID] // np.uint64(8)] = NO_SAMPLE

    def _sample(self, staged: Staged) -> None:
        start_ns = time.monotonic_ns()
        assert self._stream.vocab is not None
        assert self._sampled is not None
        finals = self._flat[self._rows(staged[StagedRow.SOURCE], self._stream.vocab)]
        inputs, ids = self._sampled.advance(finals, *_drawn(staged))
        assert ids is not None
        self._flat[self._rows(staged[StagedRow.TARGET], self._stream.hidden)] = inputs
        self.done[staged[StagedRow.ID] // np.uint64(8)] = ids.astype(np.int64).view(np.uint64) & LOW_HALF
        self.sampling_ns += time.monotonic_ns() - start_ns


def _drawn(staged: Staged) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the requests and the tokens of staged steps, which select the random numbers."""
    drawn = staged[StagedRow.DRAW]
    return (drawn >> HALF_BITS).astype(np.uint32), (drawn & LOW_HALF).astype(np.uint32)

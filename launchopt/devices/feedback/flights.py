"""Ends of steps: whose result is fed back where, and who is told when the device is done with it.

In: records that ended a step, as they were launched. Each is staged for the device (`lt_chain.SOURCE` and so on), and
takes off: a word of `done` belongs to it, which the device fills with the token's id when the result has been fed back.
`Flights` keeps the order of steps, and tells through the ring of those that are done.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.order import OrderArrays
from launchopt.command import WORDS
from launchopt.devices.loops import requests as lc
from launchopt.queue.ring import Ring
from launchopt.workloads.chain import ChainStream

Staged = NDArray[np.uint64]  # [lt_chain.DRAW + 1, rows]


def places_needed(stream: ChainStream) -> int:
    """Words of `done`: one a token, and one a request for its prompt's chunks."""
    return stream.tokens + stream.requests


def facts_of(stream: ChainStream, base: int, history: int, done: int) -> NDArray[np.int64]:
    """What `take_off` must know: where the activations, the history (0: none is kept) and `done` start."""
    facts = np.zeros(lc.FACT_WORDS, np.int64)
    row_bytes = stream.row_elements(stream.hidden) * stream.dtype.itemsize
    facts[lc.TOKENS], facts[lc.COLUMN_BYTES], facts[lc.ROW_BYTES] = stream.tokens, row_bytes, row_bytes
    facts[lc.BASE_BYTES], facts[lc.HISTORY_BYTES], facts[lc.DONE_BYTES] = base, history, done
    facts[lc.HAS_HEAD] = stream.vocab is not None
    return facts


class Flights:
    """Steps that were fed back and not yet told of. `done`: uint64 [places_needed], in memory the device writes to."""

    def __init__(self, stream: ChainStream, back: Ring, done: NDArray[np.uint64]) -> None:
        self._stream, self._back, self.done = stream, back, done
        size = 1 << stream.requests.bit_length()
        self.ended = np.zeros((stream.requests, WORDS), np.uint64)
        self._rows, self._places = np.zeros((size, WORDS), np.uint64), np.zeros(size, np.int64)
        self._cursor = np.zeros(lc.CURSOR_WORDS, np.int64)

    def reset(self) -> None:
        """A new run: nothing is done."""
        self.done[:] = lc.NOT_YET
        self._cursor[:] = 0

    def collect(self, words: NDArray[np.uint64]) -> int:
        """Copy those of a batch that end a step to `ended`; returns how many."""
        return int(lc.collect_ends(words, 0, len(words), self.ended))

    def take_off(self, count: int, facts: NDArray[np.int64], sampled: Staged, plain: Staged) -> int:
        """Stage the first `count` of `ended`: how many are to be sampled from, in `sampled`; the rest is in `plain`."""
        return int(lc.take_off(self.ended, count, self._stream.table, facts, sampled, plain, self.arrays))

    @property
    def count(self) -> int:
        """How many were fed back and not told of."""
        return int(self._cursor[lc.STOP_AT] - self._cursor[lc.FIRST])

    def land(self, order: OrderArrays) -> None:
        """Tell of those that are done, `order` too."""
        lc.land_in_order(self._back.arrays, self.arrays, order)

    def is_quiet(self, now_ns: int, launches: int) -> bool:
        """Whether it is time to ask if the device still lives: see `lt_chain.is_quiet`."""
        return bool(lc.is_quiet(now_ns, launches, self._cursor))

    @property
    def arrays(self) -> tuple[Any, ...]:
        """For compiled loops: rows, places, done, cursor."""
        return self._rows, self._places, self.done, self._cursor

"""Steps in flight: their result is being fed back, and the driver is not yet notified of their end.

`take_off` stages records that ended a step for the device, one column each (rows SOURCE to DRAW of
`devices.loops.requests`), and assigns each a word of `done`. The device writes the token's id there when the result has
been fed back. `land` notifies the driver, through a ring, of steps that are done, in their order.
"""

from __future__ import annotations

import numpy as np

from launchopt.batching.order import OrderArrays
from launchopt.command import WORDS
from launchopt.devices.loops import requests as lc
from launchopt.queue.ring import Ring
from launchopt.types import Table, Words
from launchopt.workloads.chain import ChainStream

Staged = Words  # [DRAW + 1, rows]


def places_needed(stream: ChainStream) -> int:
    """Return the number of words of `done`: one per token, and one per request for the chunks of its prompt."""
    return stream.tokens + stream.requests


def facts_of(stream: ChainStream, base: int, history: int, done: int) -> Table:
    """Return the facts for `take_off`: addresses of the activations, the history (0: none is kept) and `done`."""
    facts = np.zeros(lc.FACT_WORDS, np.int64)
    row_bytes = stream.row_elements(stream.hidden) * stream.dtype.itemsize
    facts[lc.TOKENS], facts[lc.COLUMN_BYTES], facts[lc.ROW_BYTES] = stream.tokens, row_bytes, row_bytes
    facts[lc.BASE_BYTES], facts[lc.HISTORY_BYTES], facts[lc.DONE_BYTES] = base, history, done
    facts[lc.HAS_HEAD] = stream.vocab is not None
    return facts


class Flights:
    """The steps in flight of one stream. done: uint64 [places_needed], in memory that the device writes to."""

    def __init__(self, stream: ChainStream, back: Ring, done: Words) -> None:
        self._stream, self._back, self.done = stream, back, done
        size = 1 << stream.requests.bit_length()
        self.ended = np.zeros((stream.requests, WORDS), np.uint64)
        self._rows, self._places = np.zeros((size, WORDS), np.uint64), np.zeros(size, np.int64)
        self._cursor = np.zeros(lc.CURSOR_WORDS, np.int64)

    def reset(self) -> None:
        """Begin a run: no step is done."""
        self.done[:] = lc.NOT_YET
        self._cursor[:] = 0

    def collect(self, words: Words) -> int:
        """Copy the records of a batch that end a step to `ended`; return how many there are."""
        return int(lc.collect_ends(words, 0, len(words), self.ended))

    def take_off(self, count: int, facts: Table, sampled: Staged, plain: Staged) -> int:
        """Stage the first `count` records of `ended`; return how many are in `sampled`, the rest being in `plain`."""
        return int(lc.take_off(self.ended, count, self._stream.table, facts, sampled, plain, self.arrays))

    @property
    def count(self) -> int:
        """The number of steps in flight."""
        return int(self._cursor[lc.STOP_AT] - self._cursor[lc.FIRST])

    def land(self, order: OrderArrays) -> None:
        """Notify the driver, and `order`, of the steps that are done."""
        lc.land_in_order(self._back.arrays, self.arrays, order)

    def is_quiet(self, now_ns: int, launches: int) -> bool:
        """Return whether to ask if the device is alive: see `devices.loops.requests.is_quiet`."""
        return bool(lc.is_quiet(now_ns, launches, self._cursor))

    @property
    def arrays(self) -> tuple[Words, Table, Words, Table]:
        """Rows, places, done and cursor, for compiled loops."""
        return self._rows, self._places, self.done, self._cursor

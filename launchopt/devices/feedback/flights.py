"""Steps in flight: their result is being fed back, and the driver is not yet notified of their end.

`take_off` stages records that ended a step for the device, one column each (`devices.loops.landing.StagedRow`), and
assigns each a word of `done`. The device writes the token's id there when the result has been fed back. Compiled loops
then notify the driver, through a ring (`devices.loops.landing.land`).
"""

from __future__ import annotations

import numpy as np

from launchopt.command import WORDS
from launchopt.devices.loops.landing import NOT_YET, FeedbackFact, FlightWord, collect_ends, take_off
from launchopt.queue.ring import Ring
from launchopt.types import Table, Words
from launchopt.workloads.chain import ChainStream

Staged = Words  # [StagedRow, rows]


def places_needed(stream: ChainStream) -> int:
    """Return the number of words of `done`: one per token, and one per request for the chunks of its prompt."""
    return stream.tokens + stream.requests


def facts_of(stream: ChainStream, base: int, history: int, done: int) -> Table:
    """Return the facts for `take_off`: addresses of the activations, the history (0: none is kept) and `done`."""
    facts = np.zeros(len(FeedbackFact), np.int64)
    row_bytes = stream.row_elements(stream.hidden) * stream.dtype.itemsize
    facts[FeedbackFact.TOKENS], facts[FeedbackFact.HAS_HEAD] = stream.tokens, stream.vocab is not None
    facts[[FeedbackFact.COLUMN_BYTES, FeedbackFact.ROW_BYTES]] = row_bytes
    facts[FeedbackFact.BASE_BYTES], facts[FeedbackFact.HISTORY_BYTES] = base, history
    facts[FeedbackFact.DONE_BYTES] = done
    return facts


class Flights:
    """The steps in flight of one stream.

    back: the ring that notifies the driver. done: uint64 [places_needed], in memory that the device writes to.
    """

    def __init__(self, stream: ChainStream, back: Ring, done: Words) -> None:
        self._stream, self.back, self.done = stream, back, done
        size = 1 << stream.requests.bit_length()
        self.ended = np.zeros((stream.requests, WORDS), np.uint64)
        self._rows, self._places = np.zeros((size, WORDS), np.uint64), np.zeros(size, np.int64)
        self._cursor = np.zeros(len(FlightWord), np.int64)

    def reset(self) -> None:
        """Begin a run: no step is done."""
        self.done[:] = NOT_YET
        self._cursor[:] = 0

    def collect(self, words: Words) -> int:
        """Copy the records of a batch that end a step to `ended`; return how many there are."""
        return int(collect_ends(words, self.ended))

    def take_off(self, count: int, facts: Table, sampled: Staged, plain: Staged) -> int:
        """Stage the first `count` records of `ended`; return how many are in `sampled`, the rest being in `plain`."""
        return int(take_off(self.ended, count, self._stream.table, facts, sampled, plain, self.arrays))

    @property
    def count(self) -> int:
        """The number of steps in flight."""
        return int(self._cursor[FlightWord.STOP_AT] - self._cursor[FlightWord.FIRST])

    @property
    def arrays(self) -> tuple[Words, Table, Words, Table]:
        """The fields of FlightArrays, for compiled loops."""
        return self._rows, self._places, self.done, self._cursor

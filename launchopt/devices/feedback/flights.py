"""The steps in flight, from the launch of their last command until the driver is notified of their end.

`take_off` adds steps to the steps in flight. It writes the feedback arguments of each step into one column of an array
(`landing.StagedRow`) and assigns the step a word of `done`. The device writes the token's id to this word
when the result is fed back. Compiled loops then notify the driver, through a ring (`landing.land`).
"""

from __future__ import annotations

import numpy as np

from launchopt.command import WORDS
from launchopt.devices.feedback.landing import NOT_YET, FeedbackFact, FlightWord, collect_ends, take_off
from launchopt.queue.ring import Ring
from launchopt.streams.chains.chain import ChainStream
from launchopt.types import Table, Words

Staged = Words  # [StagedRow, steps]: feedback arguments, one column per step


def places_needed(stream: ChainStream) -> int:
    """Return the number of words of `done`: one per token, and one per request that all chunks of its prompt share."""
    return stream.tokens + stream.requests


def facts_of(stream: ChainStream, base: int, history: int, done: int) -> Table:
    """Return the facts for `take_off`, int64 [FeedbackFact].

    base, history, done: addresses of the activations, of the history (0: none is kept) and of `done`.
    """
    facts = np.zeros(len(FeedbackFact), np.int64)
    row_bytes = stream.row_elements(stream.hidden) * stream.dtype.itemsize
    facts[FeedbackFact.TOKENS], facts[FeedbackFact.HAS_HEAD] = stream.tokens, stream.vocab is not None
    facts[[FeedbackFact.COLUMN_BYTES, FeedbackFact.ROW_BYTES]] = row_bytes
    facts[FeedbackFact.BASE_BYTES], facts[FeedbackFact.HISTORY_BYTES] = base, history
    facts[FeedbackFact.DONE_BYTES] = done
    return facts


class Flights:
    """The steps in flight of one workload stream.

    back: the ring that notifies the driver; its capacity is the largest number of steps in flight. done: uint64
    [places_needed], in memory that the device writes to. ended: uint64 [requests, WORDS], last records of the steps
    that a batch ended.
    """

    def __init__(self, stream: ChainStream, back: Ring, done: Words) -> None:
        self._stream, self.back, self.done = stream, back, done
        size = max(1 << stream.requests.bit_length(), back.capacity)
        self.ended = np.zeros((stream.requests, WORDS), np.uint64)
        self._rows, self._places = np.zeros((size, WORDS), np.uint64), np.zeros(size, np.int64)
        self._cursor = np.zeros(len(FlightWord), np.int64)

    def reset(self) -> None:
        """Begin a run: no step is in flight or complete."""
        self.done[:] = NOT_YET
        self._cursor[:] = 0

    def collect(self, words: Words) -> int:
        """Copy those records of a batch that end a step to `ended`; return their number."""
        return int(collect_ends(words, self.ended))

    def take_off(self, count: int, facts: Table, sampled: Staged, plain: Staged) -> int:
        """Add the first `count` steps of `ended` to the steps in flight; return how many of them sample a token.

        The arguments of steps that sample go to `sampled`, those of all other steps to `plain`.
        """
        return int(take_off(self.ended, count, self._stream.table, facts, sampled, plain, self.arrays))

    @property
    def count(self) -> int:
        """Number of steps in flight."""
        return int(self._cursor[FlightWord.STOP_AT] - self._cursor[FlightWord.FIRST])

    @property
    def arrays(self) -> tuple[Words, Table, Words, Table]:
        """Fields of `FlightArrays`, for compiled loops."""
        return self._rows, self._places, self.done, self._cursor

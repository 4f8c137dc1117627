"""Ends of steps: whose result is fed back where, and who is told when the device is done with it.

In: records that ended a step, as they were launched. `places` says which word of `done` belongs to each; a device fills
that word with the token's id when its result has been fed back. `Flights` keeps the order, and tells through the ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import COMMAND_DTYPE, NO_TOKEN, WORDS, Records
from launchopt.devices.lt_chain import NOT_YET, collect_ends, land
from launchopt.ring import Ring
from launchopt.workloads import chain as ch
from launchopt.workloads.chain import UNIT_BYTES, ChainStream

NO_ID = 0  # of a step that ends no token, or is not sampled


@dataclass(frozen=True, slots=True)
class Ends:
    """Steps that ended, a row each."""

    requests: NDArray[np.uint32]
    tokens: NDArray[np.uint32]  # NO_TOKEN for a chunk of a prompt
    sources: NDArray[np.uint64]  # bytes from the activation arena to what was computed last
    targets: NDArray[np.uint64]  # ... to where the next step's input goes
    places: NDArray[np.int64]  # words of `done`; for a token, also its row in the history

    @property
    def end_tokens(self) -> NDArray[np.bool_]:
        """Those that end a token."""
        return np.asarray(self.tokens != NO_TOKEN)

    def only(self, chosen: NDArray[np.bool_]) -> Ends:
        """Some of them."""
        slots = (self.sources[chosen], self.targets[chosen], self.places[chosen])
        return Ends(self.requests[chosen], self.tokens[chosen], *slots)


def places_needed(stream: ChainStream) -> int:
    """Words of `done`: one a token, and one a request for its prompt's chunks."""
    return stream.tokens + stream.requests


def ends_of(stream: ChainStream, words: NDArray[np.uint64]) -> Ends:
    """What the records in `words` [rows, WORDS] ended."""
    records: Records = words.reshape(-1).view(COMMAND_DTYPE)
    requests, tokens = records["request"], records["token"]
    table = stream.table[requests]
    last_column = (records["n"].astype(np.uint64) - np.uint64(1)) * np.uint64(stream.units(stream.hidden))
    chunk = stream.tokens + requests.astype(np.int64)
    places = np.where(tokens == NO_TOKEN, chunk, table[:, ch.FIRST_TOKEN] + tokens.astype(np.int64))
    sources = (records["slot_c"].astype(np.uint64) + last_column) * np.uint64(UNIT_BYTES)
    return Ends(requests, tokens, sources, table[:, ch.LANE].astype(np.uint64) * np.uint64(UNIT_BYTES), places)


class Flights:
    """Steps that were fed back and not yet told of. `done`: uint64 [places_needed], in memory the device writes to."""

    def __init__(self, stream: ChainStream, back: Ring, done: NDArray[np.uint64]) -> None:
        self._stream, self._back, self.done = stream, back, done
        size = 1 << stream.requests.bit_length()
        self.ended = np.zeros((stream.requests, WORDS), np.uint64)
        self.rows, self.places = np.zeros((size, WORDS), np.uint64), np.zeros(size, np.int64)
        self.cursor = np.zeros(2, np.int64)

    def reset(self) -> None:
        """A new run: nothing is done."""
        self.done[:] = NOT_YET
        self.cursor[:] = 0

    def collect(self, words: NDArray[np.uint64]) -> int:
        """Copy those of a batch that end a step to `ended`; returns how many."""
        return int(collect_ends(words, 0, len(words), self.ended))

    def take_off(self, count: int) -> Ends:
        """The first `count` of `ended` are about to be fed back."""
        words = self.ended[:count]
        ends = ends_of(self._stream, words)
        self.done[ends.places] = NOT_YET  # a request's chunks share a word
        at = (self.cursor[1] + np.arange(count)) & (len(self.places) - 1)
        self.rows[at], self.places[at] = words, ends.places
        self.cursor[1] += count
        return ends

    @property
    def count(self) -> int:
        """How many were fed back and not told of."""
        return int(self.cursor[1] - self.cursor[0])

    def land(self) -> None:
        """Tell of those that are done."""
        land(self._back.arrays, self.rows, self.places, self.done, self.cursor)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """For the compiled loop: rows, places, done, cursor."""
        return self.rows, self.places, self.done, self.cursor

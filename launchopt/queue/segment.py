"""The shared memory of a ring: a header of words, and slots for command records.

One process creates the segment (`RingSegment.create`). Other processes `attach` by name.
This module compiles nothing, so that the parent of a run can load it without Numba. `ring.Ring` pushes and pops.
"""

from __future__ import annotations

import enum
from multiprocessing.shared_memory import SharedMemory
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from launchopt.command import RECORD_BYTES, WORDS, RecordWord
from launchopt.errors import ConfigError
from launchopt.files import reason
from launchopt.queue.shared_segment import FOLDER, SharedSegment, new_memory
from launchopt.types import Words


class HeaderWord(enum.IntEnum):
    """Words of a ring's header, uint64. The words of each process are 128 bytes from the words of the others."""

    HEAD = 0  # producer writes: records pushed, and CLOSED_BIT
    START_NS = 1  # producer writes: time at which the run began, CLOCK_MONOTONIC ns
    KNOWN_TAIL = 2  # producer writes: the value of TAIL that it read last
    TAIL = 16  # consumer writes: records popped
    CHECKED = 17  # consumer writes, after the run: commands whose outputs are checked
    STOP = 32  # parent writes: 1 asks both sides to stop
    STEPS_LEFT = 48  # consumer writes: a number n; every step that ends among the first n records was flushed


HEADER_WORDS = 64
CLOSED_BIT = 1 << 63  # bit of HEAD: the producer pushes no more records


class RingWords(NamedTuple):
    """The arrays of a ring, in shared memory."""

    header: Words  # [HEADER_WORDS]
    data: Words  # [capacity, WORDS]


RingArrays = tuple[Words, Words]  # the fields of RingWords, as Python passes them


class RingSegment(SharedSegment):
    """The memory of a ring of `capacity` records (a power of two) of 64 bytes."""

    def __init__(self, memory: SharedMemory, capacity: int, owner: bool) -> None:
        super().__init__(memory, owner)
        self.capacity = capacity
        words: NDArray[np.uint64] = np.ndarray((memory.size // 8,), np.uint64, memory.buf)
        self._header = words[:HEADER_WORDS]
        self._data = words[HEADER_WORDS : HEADER_WORDS + capacity * WORDS].reshape(capacity, WORDS)

    @staticmethod
    def segment_bytes(capacity: int) -> int:
        """Return the bytes of shared memory that a ring of `capacity` records takes."""
        return HEADER_WORDS * 8 + capacity * RECORD_BYTES

    @classmethod
    def create(cls, capacity: int) -> Self:
        """Return a new, empty ring under a unique name; raise ConfigError if `capacity` is not possible."""
        if capacity < 2 or capacity & (capacity - 1):
            raise ConfigError("queue.capacity", capacity, "must be a power of two, at least 2")
        try:
            memory = new_memory(cls.segment_bytes(capacity))
        except OSError as error:
            size = f"{cls.segment_bytes(capacity) / 1e6:.1f} MB"
            why = f"{FOLDER} has no space for a ring of {size} ({reason(error)}): lower it, or make {FOLDER} larger"
            raise ConfigError("queue.capacity", capacity, why) from None
        return cls(memory, capacity, owner=True)

    @classmethod
    def attach(cls, name: str, capacity: int) -> Self:
        """Return the ring that another process created."""
        return cls(SharedMemory(name), capacity, owner=False)

    def drop_views(self) -> None:
        """Drop the views of the header and of the slots."""
        self._header = self._data = np.empty((0, WORDS), np.uint64)

    @property
    def arrays(self) -> RingArrays:
        """The fields of RingWords, for compiled loops."""
        return self._header, self._data

    def word(self, offset: int) -> int:
        """Return a word of the header."""
        return int(self._header[offset])

    def stop(self) -> None:
        """Ask both sides to stop. A plain store is enough, because it publishes no other data."""
        self._header[HeaderWord.STOP] = 1

    def reset(self) -> None:
        """Empty the ring for the next run. Call this only while neither side uses the ring."""
        self._header[:] = 0
        self._data[:, RecordWord.TURN] = 0

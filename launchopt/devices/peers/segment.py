"""The shared memory of the consumers that split a model: words of each, and on the CPU device their activations.

The parent of a run creates it. Each consumer (rank) writes only the words of its own row, which is 256 bytes from the
next one. This module compiles nothing.
"""

from __future__ import annotations

import enum
import time
from multiprocessing.shared_memory import SharedMemory
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from launchopt.errors import ConfigError, Interrupted
from launchopt.files import reason
from launchopt.queue.shared_segment import FOLDER, SharedSegment, new_memory
from launchopt.types import Words

ROW_WORDS = 32  # words of a rank


class PeerWord(enum.IntEnum):
    """Words of a rank's row. Row 0 belongs to the parent, which writes only STOP; rank r has row r + 1."""

    ARRIVED = 0  # all-reduces at which the rank has arrived: its part of the sums is in memory
    WHAT = 2  # two words, of the latest all-reduces in turn: the place and the size of its part
    STOP = 4  # the parent writes 1 to end all waits
    PHASE = 5  # the latest Phase that the rank has reached
    DEVICE = 6  # number of the rank's GPU
    HANDLE = 8  # eight words: the handle of the memory of the rank's GPU
    UNIQUE_ID = 16  # sixteen words, of the first rank: the id of NCCL's group


class Phase(enum.IntEnum):
    """Steps by which ranks come to share the memory of their GPUs, and part again."""

    ALLOCATED = 1  # its own memory
    NAMED = 2  # the group of NCCL
    UNMAPPED = 3  # the memory of all other ranks


class Team(NamedTuple):
    """What a consumer needs to find the others."""

    segment: str  # name of the shared memory
    rank: int
    size: int  # number of consumers
    spin_us: float  # time of spinning for the others
    sleep_us: float  # time of each sleep after the spin
    nccl: bool = False  # NCCL adds the parts of the ranks


class Collectives(NamedTuple):
    """All-reduces of a rank in one run, and their times."""

    calls: int
    total_ns: int  # time within them
    wait_ns: int  # part of this time in which the rank waited for others


class PeerSegment(SharedSegment):
    """The words of `size` ranks, and `memory_bytes` of memory for each."""

    def __init__(self, memory: SharedMemory, size: int, memory_bytes: int, owner: bool) -> None:
        super().__init__(memory, owner)
        words: NDArray[np.uint64] = np.ndarray((1 + size, ROW_WORDS), np.uint64, memory.buf)
        self.words: Words = words
        self._bytes: NDArray[np.uint8] = np.ndarray((size, memory_bytes), np.uint8, memory.buf, words.nbytes)

    @classmethod
    def create(cls, size: int, memory_bytes: int) -> Self:
        """Return new memory, of zeros; raise ConfigError if there is not enough."""
        total = (1 + size) * ROW_WORDS * 8 + size * memory_bytes
        try:
            memory = new_memory(total)
        except OSError as error:
            why = f"{FOLDER} has no space for the activations of all ranks, {total / 1e6:.1f} MB ({reason(error)})"
            raise ConfigError("parallel.tensor", size, f"{why}: lower it, or make {FOLDER} larger") from None
        return cls(memory, size, memory_bytes, owner=True)

    @classmethod
    def attach(cls, name: str, size: int, memory_bytes: int) -> Self:
        """Return the memory that another process created."""
        return cls(SharedMemory(name), size, memory_bytes, owner=False)

    def memory(self, rank: int) -> NDArray[np.uint8]:
        """Return the memory of a rank, uint8 [memory_bytes]."""
        own: NDArray[np.uint8] = self._bytes[rank]
        return own

    def stop(self) -> None:
        """End all waits. A plain store is enough, because it publishes no other data."""
        self.words[0, PeerWord.STOP] = 1

    def drop_views(self) -> None:
        """Drop the views of words and memory."""
        self.words, self._bytes = np.empty((0, ROW_WORDS), np.uint64), np.empty((0, 0), np.uint8)


def meet(segment: PeerSegment, team: Team, phase: Phase) -> None:
    """Announce that a rank has reached a phase, and wait until all have; raise Interrupted if the parent says stop."""
    segment.words[team.rank + 1, PeerWord.PHASE] = phase
    while (segment.words[1:, PeerWord.PHASE] < phase).any():
        if segment.words[0, PeerWord.STOP]:
            raise Interrupted("stopped while other GPUs were made ready")
        time.sleep(team.sleep_us * 1e-6)

"""A single-producer single-consumer ring of command records in shared memory.

One process creates it (`Ring.create`) and unlinks it whatever happens; others `Ring.attach` by name. Each record
carries its own turn: the producer copies a record in and publishes it with a release store of its last word. The
consumer looks at that word of the next record alone. So one record moves one cache line, where a shared `head` would
move two. The consumer gives room back with a release store of `tail`. The producer reads `tail` only when the room it
knows of is used up. Each side writes only its own words, 128 bytes apart, so that neither core takes the other's cache
line, nor its prefetched neighbour. No call blocks: a side that finds no room, or no record, waits with a
`waiter.Waiter`.
"""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import RECORD_BYTES, W_ENQUEUE, W_TURN, WORDS, Records, as_words
from launchopt.errors import ConfigError
from launchopt.files import allocate, reason
from launchopt.native import compiled, cpu_pause, load_acquire, monotonic_ns, store_release
from launchopt.types import Int, Words


class HeaderWord(enum.IntEnum):
    """Words of a ring's header, uint64. Each side writes words of its own, 128 bytes from those of the others."""

    HEAD = 0  # producer: records pushed, and CLOSED_BIT
    START_NS = 1  # producer: when the run began, CLOCK_MONOTONIC
    KNOWN_TAIL = 2  # producer: TAIL when the producer read it last
    TAIL = 16  # consumer: records popped
    STOP = 32  # parent: not 0 tells both sides to give up
    STEPS_LEFT = 48  # consumer: a number of records; all steps that end among the first ones have left their buckets


HEADER_WORDS = 64
CLOSED_BIT = 1 << 63  # of head: no more will come
STAMP_EVERY = 256  # records pushed under one reading of the clock
MOST_AT_ONCE = 4096  # records a consumer takes in one go: bounds what it makes of them in Python
POLLS = 64  # looks at a word between two at the clock
FOLDER = Path("/dev/shm")  # where segments are files; on Linux


class RingWords(NamedTuple):
    """A ring's memory."""

    header: Words  # [HEADER_WORDS]
    data: Words  # [capacity, WORDS]


RingArrays = tuple[Words, Words]  # the fields of RingWords, as Python passes them


@compiled
def room_for(header: Words, data: Words, wanted: Int) -> Int:
    """Return how many of `wanted` records the producer has room for."""
    size, head = np.uint64(len(data)), header[HeaderWord.HEAD]  # not closed: this side closes it
    if head + np.uint64(wanted) - header[HeaderWord.KNOWN_TAIL] > size:
        header[HeaderWord.KNOWN_TAIL] = load_acquire(header, HeaderWord.TAIL)
    return min(np.intp(size - (head - header[HeaderWord.KNOWN_TAIL])), wanted)


@compiled
def push_words(header: Words, data: Words, words: Words, stamp: bool) -> Int:
    """Copy in as many leading records as there is room for; return how many."""
    mask, head = np.uint64(len(data) - 1), header[HeaderWord.HEAD]
    count: Int = room_for(header, data, len(words))
    done = 0
    while done < count:
        now = np.uint64(monotonic_ns()) if stamp else np.uint64(0)
        end = min(done + STAMP_EVERY, count)
        for i in range(done, end):
            place = head + np.uint64(i)
            slot = np.intp(place & mask)
            for w in range(W_TURN):
                data[slot, w] = words[i, w]
            if stamp:
                data[slot, W_ENQUEUE] = now
            store_release(data, (slot, W_TURN), place + np.uint64(1))
        done = end
    store_release(header, HeaderWord.HEAD, head + np.uint64(count))
    return count


@compiled
def pop_words(header: Words, data: Words, out: Words) -> Int:
    """Copy out up to len(out) records, oldest first; return how many."""
    mask = np.uint64(len(data) - 1)
    tail = header[HeaderWord.TAIL]
    count = 0
    while count < len(out):
        place = tail + np.uint64(count)
        slot = np.intp(place & mask)
        if load_acquire(data, (slot, W_TURN)) != place + np.uint64(1):
            break
        for w in range(W_TURN):
            out[count, w] = data[slot, w]
        count += 1
    if count:
        store_release(header, HeaderWord.TAIL, tail + np.uint64(count))
    return count


@compiled
def ready_words(header: Words, data: Words, most: Int) -> Int:
    """Return how many records, up to `most`, lie in a row from the tail on; read them there before `release_words`."""
    tail = header[HeaderWord.TAIL]
    first = np.intp(tail & np.uint64(len(data) - 1))
    most = min(most, len(data) - first)
    count = 0
    while count < most and load_acquire(data, (first + count, W_TURN)) == tail + np.uint64(count + 1):
        count += 1
    return count


@compiled
def release_words(header: Words, count: Int) -> None:
    """Give back the room of the `count` oldest records."""
    store_release(header, HeaderWord.TAIL, header[HeaderWord.TAIL] + np.uint64(count))


@compiled
def has_record(header: Words, data: Words) -> Int:
    """Return whether the consumer would find a record."""
    tail = header[HeaderWord.TAIL]
    return load_acquire(data, (np.intp(tail & np.uint64(len(data) - 1)), W_TURN)) == tail + np.uint64(1)


@compiled
def is_closed(header: Words) -> Int:
    """Return whether no more records will come. Records may be left: look for them after this."""
    return load_acquire(header, HeaderWord.HEAD) >= np.uint64(CLOSED_BIT)


@compiled
def _await_record(header: Words, data: Words, spin_ns: int) -> bool:
    """Spin until there is a record, or none will come; return False where `spin_ns` passed first."""
    limit = monotonic_ns() + spin_ns
    while True:
        for _ in range(POLLS):
            if has_record(header, data):
                return True
            cpu_pause()
        if is_closed(header):
            return True
        if monotonic_ns() >= limit:
            return False


@compiled
def _await_room(header: Words, spin_ns: int) -> bool:
    """Spin until the tail has moved since the producer looked; return False where `spin_ns` passed first."""
    limit = monotonic_ns() + spin_ns
    while True:
        for _ in range(POLLS):
            if load_acquire(header, HeaderWord.TAIL) != header[HeaderWord.KNOWN_TAIL]:
                return True
            cpu_pause()
        if monotonic_ns() >= limit:
            return False


def _allocated(name: str, size: int) -> SharedMemory:
    """Create a segment and allocate all of its memory: without memory, the first write would end in SIGBUS."""
    memory = SharedMemory(name, create=True, size=size)
    if FOLDER.is_dir():
        try:
            file = os.open(FOLDER / name, os.O_RDWR)
            try:
                allocate(file, size)
            finally:
                os.close(file)
        except OSError:
            memory.close()
            memory.unlink()
            raise
    return memory


class Ring:
    """Room for `capacity` records (a power of two) of 64 bytes.

    A context manager: leaving it closes the mapping, and unlinks the segment where this process created it.
    """

    def __init__(self, memory: SharedMemory, capacity: int, owner: bool) -> None:
        self._memory, self._owner = memory, owner
        self.name, self.capacity = memory.name, capacity
        words: NDArray[np.uint64] = np.ndarray((memory.size // 8,), np.uint64, memory.buf)
        self._header = words[:HEADER_WORDS]
        self._data = words[HEADER_WORDS : HEADER_WORDS + capacity * WORDS].reshape(capacity, WORDS)

    @staticmethod
    def segment_bytes(capacity: int) -> int:
        """Return the bytes of shared memory that a ring of `capacity` records takes."""
        return HEADER_WORDS * 8 + capacity * RECORD_BYTES

    @classmethod
    def create(cls, capacity: int) -> Ring:
        """A new, empty ring under a name nobody else has.

        ConfigError for a capacity that is no power of two, and for one that shared memory has no room for.
        """
        if capacity < 2 or capacity & (capacity - 1):
            raise ConfigError("queue.capacity", capacity, "must be a power of two, at least 2")
        name = f"launchopt_{os.getpid()}_{secrets.token_hex(6)}"
        try:
            memory = _allocated(name, cls.segment_bytes(capacity))
        except OSError as error:
            size = f"{cls.segment_bytes(capacity) / 1e6:.1f} MB"
            why = f"{FOLDER} has no room for a ring of {size} ({reason(error)}): lower it, or give {FOLDER} more room"
            raise ConfigError("queue.capacity", capacity, why) from None
        return cls(memory, capacity, owner=True)

    @classmethod
    def attach(cls, name: str, capacity: int) -> Ring:
        """The ring another process created."""
        return cls(SharedMemory(name), capacity, owner=False)

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Drop the mapping; the creator also removes the segment. Safe to call twice."""
        # NumPy views pin the mapping: SharedMemory.close() raises BufferError while one is alive.
        self._header = self._data = np.empty((0, WORDS), np.uint64)
        with contextlib.suppress(BufferError):
            self._memory.close()
        if self._owner:
            self._owner = False
            with contextlib.suppress(FileNotFoundError):
                self._memory.unlink()

    def push(self, records: Records, stamp: bool = False) -> int:
        """Copy in as many leading records as there is room for; return how many.

        stamp: set their enqueue_ns to the time of the copy, which is read once for `STAMP_EVERY` records.
        """
        return int(push_words(self._header, self._data, as_words(records), stamp))

    def pop(self, out: Records) -> int:
        """Copy out up to `len(out)` records, oldest first; return how many (0 when empty)."""
        return int(pop_words(self._header, self._data, as_words(out)))

    @property
    def arrays(self) -> RingArrays:
        """The fields of RingWords, for compiled loops."""
        return self._header, self._data

    def word(self, offset: int) -> int:
        """A control word of the header."""
        return int(self._header[offset])

    def set_word(self, offset: int, value: int) -> None:
        """Publish a control word."""
        _store(self._header, offset, np.uint64(value))

    def stop(self) -> None:
        """Tell both sides to give up: a plain store, since it publishes nothing, and needs nothing compiled."""
        self._header[HeaderWord.STOP] = 1

    def reset(self) -> None:
        """Empty the ring for the next run; only while neither side uses it."""
        self._header[:] = 0
        self._data[:, W_TURN] = 0

    def await_record(self, spin_ns: int) -> bool:
        """Consumer: spin until there is a record or the ring is closed; False when `spin_ns` passed first."""
        return _await_record(self._header, self._data, spin_ns)

    def await_room(self, spin_ns: int) -> bool:
        """Producer: spin until there is more room than the last push found; False when `spin_ns` passed first."""
        return _await_room(self._header, spin_ns)

    def close(self) -> None:
        """Producer: say that no more records will come."""
        self.set_word(HeaderWord.HEAD, self.word(HeaderWord.HEAD) | CLOSED_BIT)

    @property
    def drained(self) -> bool:
        """True when the producer has closed and every record was popped."""
        return self.word(HeaderWord.HEAD) == self.word(HeaderWord.TAIL) | CLOSED_BIT


@compiled
def _store(header: Words, offset: int, value: np.uint64) -> None:
    store_release(header, offset, value)

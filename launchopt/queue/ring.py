"""A single-producer single-consumer ring of command records in shared memory.

`segment` has the memory of a ring. This module pushes and pops.

The last word of a record is its turn: its number in the stream of records, plus 1. The producer copies a record in and
publishes it with a release store of the turn. The consumer polls the turn of the next record only. So one record moves
one cache line between cores; with a shared head it would move two. The consumer frees slots with a release store of
TAIL. The producer reads TAIL only when it has used all slots that it knows to be free.

Each side writes only its own words. They are 128 bytes from the words of the other side, because cores fetch lines in
pairs. No call blocks: a side that finds no free slot, or no record, waits with a `waiter.Waiter`.
"""

from __future__ import annotations

import numpy as np

from launchopt.command import Records, RecordWord, as_words
from launchopt.native import compiled, cpu_pause, load_acquire, monotonic_ns, store_release
from launchopt.queue.segment import CLOSED_BIT, HeaderWord, RingSegment
from launchopt.types import Int, Words

STAMP_EVERY = 256  # records that get their time from one reading of the clock
MOST_AT_ONCE = 4096  # records that a consumer pops at once
POLLS = 64  # polls of a word between two readings of the clock


@compiled
def free_slots(header: Words, data: Words, wanted: Int) -> Int:
    """Return how many of `wanted` records the producer can push now."""
    size, head = np.uint64(len(data)), header[HeaderWord.HEAD]  # without CLOSED_BIT: the producer sets it last
    if head + np.uint64(wanted) - header[HeaderWord.KNOWN_TAIL] > size:
        header[HeaderWord.KNOWN_TAIL] = load_acquire(header, HeaderWord.TAIL)
    return min(np.intp(size - (head - header[HeaderWord.KNOWN_TAIL])), wanted)


@compiled
def push_words(header: Words, data: Words, words: Words, stamp: bool) -> Int:
    """Push as many leading records as the ring has free slots for; return their number."""
    mask, head = np.uint64(len(data) - 1), header[HeaderWord.HEAD]
    count: Int = free_slots(header, data, len(words))
    done = 0
    while done < count:
        now = np.uint64(monotonic_ns()) if stamp else np.uint64(0)
        end = min(done + STAMP_EVERY, count)
        for i in range(done, end):
            place = head + np.uint64(i)
            slot = np.intp(place & mask)
            for w in range(RecordWord.TURN):
                data[slot, w] = words[i, w]
            if stamp:
                data[slot, RecordWord.ENQUEUE_NS] = now
            store_release(data, (slot, RecordWord.TURN), place + np.uint64(1))
        done = end
    store_release(header, HeaderWord.HEAD, head + np.uint64(count))
    return count


@compiled
def pop_words(header: Words, data: Words, out: Words) -> Int:
    """Pop up to len(out) records into `out`, oldest first; return their number."""
    mask = np.uint64(len(data) - 1)
    tail = header[HeaderWord.TAIL]
    count = 0
    while count < len(out):
        place = tail + np.uint64(count)
        slot = np.intp(place & mask)
        if load_acquire(data, (slot, RecordWord.TURN)) != place + np.uint64(1):
            break
        for w in range(RecordWord.TURN):
            out[count, w] = data[slot, w]
        count += 1
    if count:
        store_release(header, HeaderWord.TAIL, tail + np.uint64(count))
    return count


@compiled
def ready_words(header: Words, data: Words, most: Int) -> Int:
    """Return the number of records, up to `most`, that the caller can read in place from slot TAIL on.

    They are contiguous: counting also stops at the end of `data`.
    """
    tail = header[HeaderWord.TAIL]
    first = np.intp(tail & np.uint64(len(data) - 1))
    most = min(most, len(data) - first)
    count = 0
    while count < most and load_acquire(data, (first + count, RecordWord.TURN)) == tail + np.uint64(count + 1):
        count += 1
    return count


@compiled
def release_words(header: Words, count: Int) -> None:
    """Free the slots of the `count` oldest records."""
    store_release(header, HeaderWord.TAIL, header[HeaderWord.TAIL] + np.uint64(count))


@compiled
def has_record(header: Words, data: Words) -> Int:
    """Return whether the ring has a record for the consumer."""
    tail = header[HeaderWord.TAIL]
    return load_acquire(data, (np.intp(tail & np.uint64(len(data) - 1)), RecordWord.TURN)) == tail + np.uint64(1)


@compiled
def is_closed(header: Words) -> Int:
    """Return whether the producer has closed the ring. The ring may still have records: check for them after this."""
    return load_acquire(header, HeaderWord.HEAD) >= np.uint64(CLOSED_BIT)


@compiled
def _await_record(header: Words, data: Words, spin_ns: int) -> bool:
    """Spin until the ring has a record or is closed; return False if `spin_ns` passed first."""
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
def _await_free_slots(header: Words, spin_ns: int) -> bool:
    """Spin until TAIL differs from KNOWN_TAIL; return False if `spin_ns` passed first."""
    limit = monotonic_ns() + spin_ns
    while True:
        for _ in range(POLLS):
            if load_acquire(header, HeaderWord.TAIL) != header[HeaderWord.KNOWN_TAIL]:
                return True
            cpu_pause()
        if monotonic_ns() >= limit:
            return False


class Ring(RingSegment):
    """A ring of `capacity` records (a power of two) of 64 bytes, in shared memory."""

    def push(self, records: Records, stamp: bool = False) -> int:
        """Push as many leading records as the ring has free slots for; return their number.

        stamp: set their enqueue_ns to the time of the push. The clock is read once per `STAMP_EVERY` records.
        """
        return int(push_words(self._header, self._data, as_words(records), stamp))

    def pop(self, out: Records) -> int:
        """Pop up to `len(out)` records into `out`, oldest first; return their number."""
        return int(pop_words(self._header, self._data, as_words(out)))

    def set_word(self, offset: int, value: int) -> None:
        """Write a word of the header, with a release store."""
        _store(self._header, offset, np.uint64(value))

    def await_record(self, spin_ns: int) -> bool:
        """Spin until the ring has a record or is closed; return False after `spin_ns`. Called by a consumer."""
        return _await_record(self._header, self._data, spin_ns)

    def await_free_slots(self, spin_ns: int) -> bool:
        """Spin until more slots are free than at the last push; return False after `spin_ns`. Called by a producer."""
        return _await_free_slots(self._header, spin_ns)

    def close(self) -> None:
        """Record that no more records will come. Called by a producer."""
        self.set_word(HeaderWord.HEAD, self.word(HeaderWord.HEAD) | CLOSED_BIT)

    @property
    def is_closed(self) -> bool:
        """True if the producer has closed the ring."""
        return self.word(HeaderWord.HEAD) >= CLOSED_BIT

    @property
    def drained(self) -> bool:
        """True if the producer has closed the ring and every record was popped."""
        return self.word(HeaderWord.HEAD) == self.word(HeaderWord.TAIL) | CLOSED_BIT


@compiled
def _store(header: Words, offset: int, value: np.uint64) -> None:
    store_release(header, offset, value)

"""The ring against a deque, between two processes, and the removal of its shared memory."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processes import ring_peer

from launchopt.command import COMMAND_DTYPE, RecordWord, as_words
from launchopt.errors import ConfigError
from launchopt.queue.ring import STAMP_EVERY, Ring, ready_words, release_words
from launchopt.queue.segment import HeaderWord
from launchopt.queue.waiter import Waiter

SHM = Path("/dev/shm")
spawn = multiprocessing.get_context("spawn")
needs_shm = pytest.mark.skipif(not SHM.is_dir(), reason="shared memory has no file here")


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([2, 4, 8, 512]),
    st.lists(st.tuples(st.booleans(), st.integers(0, 700)), max_size=30),
)
def test_ring_is_a_bounded_queue(capacity: int, turns: list[tuple[bool, int]]) -> None:
    model: deque[bytes] = deque()
    pushed = 0
    with Ring.create(capacity) as ring:
        for push, size in turns:
            if push:
                records = ring_peer.numbered(pushed, size)
                count = ring.push(records)
                assert count == min(size, capacity - len(model))
                model.extend(record.tobytes() for record in records[:count])
                pushed += count
            else:
                out = np.zeros(size, COMMAND_DTYPE)
                count = ring.pop(out)
                assert count == min(size, len(model))
                assert [record.tobytes() for record in out[:count]] == [model.popleft() for _ in range(count)]
                assert not out[count:].tobytes().strip(b"\0")
            assert not ring.drained
        ring.close()
        assert ring.drained == (not model)
        out = np.zeros(capacity, COMMAND_DTYPE)
        assert ring.pop(out) == len(model)
        assert [record.tobytes() for record in out[: len(model)]] == list(model)
        assert ring.drained
        assert ring.pop(out) == 0


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([2, 4, 8, 64]), st.lists(st.tuples(st.booleans(), st.integers(0, 80)), max_size=30))
def test_records_may_be_read_where_they_are(capacity: int, turns: list[tuple[bool, int]]) -> None:
    """A view has consecutive records, up to the ring's end. They are not overwritten before they are released."""
    pushed = read = 0
    with Ring.create(capacity) as ring:
        header, data = ring.arrays
        for push, size in turns:
            if push:
                pushed += ring.push(ring_peer.numbered(pushed, size))
                continue
            first = read % capacity
            count = ready_words(header, data, size)
            assert count == min(size, pushed - read, capacity - first)
            there = data[first : first + count]
            pushed += ring.push(ring_peer.numbered(pushed, capacity))
            assert ring.word(HeaderWord.TAIL) == read
            expected = as_words(ring_peer.numbered(read, count))
            assert there[:, : RecordWord.TURN].tolist() == expected[:, : RecordWord.TURN].tolist()
            release_words(header, count)
            read += count
        assert ring.word(HeaderWord.TAIL) == read


def test_counters_pass_32_bits() -> None:
    with Ring.create(4) as ring:
        for word in (HeaderWord.HEAD, HeaderWord.TAIL, HeaderWord.KNOWN_TAIL):
            ring.set_word(word, 2**32 - 2)
        out = np.zeros(8, COMMAND_DTYPE)
        assert ring.push(ring_peer.numbered(0, 8)) == 4
        assert ring.pop(out) == 4
        assert out["seq"][:4].tolist() == [0, 1, 2, 3]
        assert ring.word(HeaderWord.TAIL) == 2**32 + 2


def test_stamp_sets_the_time_of_the_copy() -> None:
    count = STAMP_EVERY + 1  # two readings of the clock
    records = ring_peer.numbered(0, count)
    out = np.zeros(count, COMMAND_DTYPE)
    with Ring.create(512) as ring:
        before_ns = time.monotonic_ns()
        ring.push(records, stamp=True)
        after_ns = time.monotonic_ns()
        ring.pop(out)
    assert before_ns <= out["enqueue_ns"].min()
    assert out["enqueue_ns"].max() <= after_ns
    assert np.all(np.diff(out["enqueue_ns"]) >= 0)
    assert records["enqueue_ns"].tolist() == [-i for i in range(count)]
    out["enqueue_ns"] = records["enqueue_ns"]
    assert out.tobytes() == records.tobytes()


@pytest.mark.parametrize("capacity", [-4, 0, 1, 3, 100])
def test_capacity_must_be_a_power_of_two(capacity: int) -> None:
    with pytest.raises(ConfigError, match=rf"queue.capacity={capacity}: must be a power of two"):
        Ring.create(capacity)


def test_reset_makes_it_as_new() -> None:
    with Ring.create(4) as ring:
        ring.push(ring_peer.numbered(0, 3))
        ring.stop()
        assert ring.word(HeaderWord.STOP) == 1
        ring.close()
        ring.reset()
        assert [ring.word(word) for word in (HeaderWord.HEAD, HeaderWord.TAIL, HeaderWord.STOP)] == [0, 0, 0]
        assert not ring.drained
        assert ring.push(ring_peer.numbered(0, 4)) == 4


FOREVER_NS = 60_000_000_000


def test_who_waits_for_records_sees_them_or_the_end_or_times_out() -> None:
    with Ring.create(4) as ring:
        assert not ring.await_record(spin_ns=1000)
        ring.push(ring_peer.numbered(0, 1))
        assert ring.await_record(FOREVER_NS)
        ring.pop(np.zeros(4, COMMAND_DTYPE))
        assert not ring.await_record(spin_ns=1000)
        ring.close()
        assert ring.await_record(FOREVER_NS)


def test_who_waits_for_room_sees_it_or_times_out() -> None:
    with Ring.create(4) as ring:
        assert ring.push(ring_peer.numbered(0, 5)) == 4
        assert not ring.await_free_slots(spin_ns=1000)
        ring.pop(np.zeros(1, COMMAND_DTYPE))
        assert ring.await_free_slots(FOREVER_NS)
        assert ring.push(ring_peer.numbered(4, 2)) == 1


def test_records_of_an_earlier_run_are_not_taken_for_new_ones() -> None:
    with Ring.create(4) as ring:
        ring.push(ring_peer.numbered(0, 3))
        ring.reset()
        assert ring.pop(np.zeros(4, COMMAND_DTYPE)) == 0


def test_records_cross_between_processes_whole_and_in_order() -> None:
    total, capacity = 200_000, 64
    with Ring.create(capacity) as ring:
        peer = spawn.Process(target=ring_peer.push_numbered, args=(ring.name, capacity, total, 1000), daemon=True)
        peer.start()
        waiter = Waiter(ring.await_record, spin_us=20, sleep_us=20)
        buffer = np.zeros(capacity, COMMAND_DTYPE)
        received = 0
        while not ring.drained:
            count = ring.pop(buffer)
            if count:
                assert buffer[:count].tobytes() == ring_peer.numbered(received, count).tobytes()
                received += count
            else:
                assert peer.exitcode in (None, 0)
                waiter.wait()
        peer.join()
    assert (received, peer.exitcode) == (total, 0)


def test_names_are_unique() -> None:
    with Ring.create(2) as one, Ring.create(2) as other:
        assert one.name != other.name


@needs_shm
def test_only_this_user_may_read_it() -> None:
    with Ring.create(2) as ring:
        assert (SHM / ring.name).stat().st_mode & 0o777 == 0o600
        assert (SHM / ring.name).stat().st_size >= Ring.segment_bytes(2)


@needs_shm
def test_creator_unlinks_even_after_an_exception() -> None:
    names = []

    def fail() -> None:
        with Ring.create(2) as ring:
            names.append(ring.name)
            assert (SHM / ring.name).exists()
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert not (SHM / names[0]).exists()


@needs_shm
def test_who_attached_leaves_the_segment_to_its_creator() -> None:
    with Ring.create(4) as ring:
        peer = spawn.Process(target=ring_peer.attach_and_leave, args=(ring.name, ring.capacity))
        peer.start()
        peer.join()
        assert peer.exitcode == 0
        assert (SHM / ring.name).exists()
        out = np.zeros(4, COMMAND_DTYPE)
        assert ring.pop(out) == 1
        assert out["seq"][0] == 7


@needs_shm
def test_release_twice_is_release_once() -> None:
    ring = Ring.create(2)
    ring.release()
    assert not (SHM / ring.name).exists()
    other = SharedMemory(ring.name, create=True, size=64)  # another program has reused the name
    ring.release()
    assert (SHM / ring.name).exists()
    other.close()
    other.unlink()

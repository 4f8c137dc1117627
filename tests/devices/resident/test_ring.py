"""The host's end of the persistent kernel's ring. Its reader uses tags alone and takes each command once, in order."""

from __future__ import annotations

import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.resident.resident_ring import PAYLOAD, OwnRing, Posted

from launchopt.devices.resident import ring as rl
from launchopt.kernels.shared import COMMAND_WORDS, END, OUTPUT_WORDS, KernelState

properties = settings(deadline=None, max_examples=150)
addresses = st.integers(0, PAYLOAD)
# Laps before the first command: none, one, and those around the wrap of the 16-bit tag.
laps = st.sampled_from([0, 1, 0xFFFD, 0xFFFE, 0xFFFF, 0x1_0000, 0x1_FFFE])


class Model:
    """The expected content of the ring, computed by simple rules."""

    def __init__(self, bits: int, requests: int, first: int) -> None:
        self.ring = OwnRing(bits, requests, first)
        self.posted: dict[int, Posted] = {}
        self.open: list[int] = []
        self._last: dict[int, int] = {}

    def post(self, a: int, b: int, c: int, request: int, shape: int) -> None:
        index, ring = self.ring.posted, self.ring
        assert ring.post(a, b, c, request, shape) == rl.OK
        before = 0
        if ring.requests and shape != END:
            shared = request % len(ring.last)
            ago = index - self._last.get(shared, index)
            before = ago if ago < ring.capacity else 0
            self._last[shared] = index
        self.posted[index] = Posted(a, b, c, shape, before)

    def take(self) -> None:
        reader = self.ring.reader
        assert reader.take() == self.posted[reader.next - 1]
        self.open.append(reader.next - 1)

    def complete(self, which: int) -> None:
        self.ring.reader.complete(self.open.pop(which % len(self.open)))

    def assert_nothing_is_seen_that_was_not_posted(self) -> None:
        """No slot holds a word of the next lap, so the reader mistakes no old word for a new one."""
        ring = self.ring
        ahead = range(ring.posted, ring.posted + ring.capacity)
        assert not any(seen for index in ahead for seen in ring.reader.seen(index))

    def choices(self) -> list[str]:
        """Return the actions that are possible without waiting."""
        ready = {
            "post": self.ring.has_space,
            "take": self.ring.reader.next < self.ring.posted,
            "complete": bool(self.open),
        }
        return [name for name, can in ready.items() if can]


steps = st.tuples(st.integers(0, 5), addresses, addresses, addresses, st.integers(0, 2**32 - 1), st.integers(0, 9))


@properties
@given(st.integers(0, 4), st.integers(0, 5), laps, st.integers(0, 15), st.lists(steps, max_size=150))
def test_commands_are_taken_once_whole_and_in_order(
    bits: int, requests: int, lap: int, more: int, todo: list[tuple[int, int, int, int, int, int]]
) -> None:
    """Commands may be completed at any time, in any order, on any lap."""
    model = Model(bits, requests, (lap << bits) + more % (1 << bits))
    for kind, a, b, c, request, shape in todo:
        able = model.choices()
        what = able[kind % len(able)]
        if what == "post":
            model.post(a, b, c, request, END if shape == 9 else shape)
        elif what == "take":
            model.take()
        else:
            model.complete(a)
        model.assert_nothing_is_seen_that_was_not_posted()
        if model.ring.reader.next == model.ring.posted:
            assert model.ring.reader.take() is None
    while model.ring.reader.next < model.ring.posted:
        model.take()
    assert model.ring.reader.take() is None


@pytest.mark.parametrize(("apart", "before"), [(1, 1), (2, 2), (7, 7), (8, 0), (9, 0), (100, 0)])
def test_no_wait_for_a_command_one_ring_earlier(apart: int, before: int) -> None:
    """A slot is overwritten only after its command is complete, so a command one ring earlier needs no wait."""
    ring = OwnRing(3, requests=2)
    requests = [0, *[1] * (apart - 1), 0]
    for index, request in enumerate(requests):
        assert ring.post(index, 0, 0, request, 0) == rl.OK
        taken = ring.reader.take()
        assert taken is not None
        ring.reader.complete(index)
    assert (taken.a, taken.before) == (apart, before)


def test_no_command_waits_for_an_end() -> None:
    ring = OwnRing(3, requests=1)
    for shape in (4, END, 5):
        assert ring.post(1, 2, 3, 0, shape) == rl.OK
    taken = [ring.reader.take() for _ in range(3)]
    assert taken == [Posted(1, 2, 3, 4, 0), Posted(1, 2, 3, END, 0), Posted(1, 2, 3, 5, 2)]


def test_independent_commands_do_not_wait() -> None:
    ring = OwnRing(3)
    for _ in range(5):
        ring.post(1, 2, 3, 77, 4)
    assert [ring.reader.take() for _ in range(6)] == [Posted(1, 2, 3, 4, 0)] * 5 + [None]


@pytest.mark.parametrize("missing", range(COMMAND_WORDS))
def test_a_command_without_one_of_its_words_is_not_taken(missing: int) -> None:
    """Words become visible in any order."""
    ring = OwnRing(2, first=4)
    before = ring.words.copy()
    ring.post(1, 2, 3, 0, 5)
    late = int(ring.words[0, missing])
    ring.words[0, missing] = before[0, missing]
    assert ring.reader.take() is None
    ring.words[0, missing] = late
    assert ring.reader.take() == Posted(1, 2, 3, 5, 0)


@pytest.mark.parametrize("first", [0, (0xFFFF << 3) - 5, (0x1_0000 << 3) - 20])
def test_a_writer_waits_for_its_slot_and_goes_on(first: int) -> None:
    """The host posts 1,000 commands to 8 slots. The reader completes some at a time, the last one first."""
    ring, count = OwnRing(3, requests=3, first=first), 1000
    chooser, taken, faults = random.Random(first), [], []

    def read() -> None:
        open_: list[int] = []
        while not taken or taken[-1].shape != END:
            if (command := ring.reader.take()) is not None:
                taken.append(command)
                open_.append(ring.reader.next - 1)
            if len(open_) == ring.capacity or (command is None and open_):
                chooser.shuffle(open_)
                for index in open_[len(open_) // 2 :]:
                    if index >= first + ring.capacity and int(ring.done[index % ring.capacity]) != index + 1 - 8:
                        faults.append(index)
                    ring.reader.complete(index)
                del open_[len(open_) // 2 :]

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    statuses = {ring.post(i, 2 * i, 3 * i, i % 3, i % 100) for i in range(count)}
    statuses.add(ring.post(0, 0, 0, 0, END))
    reader.join(60)
    assert not reader.is_alive()
    assert (statuses, faults) == ({rl.OK}, [])
    expected = [Posted(i, 2 * i, 3 * i, i % 100, 3 if i > 2 else 0) for i in range(count)]
    assert taken == [*expected, Posted(0, 0, 0, END, 0)]


@pytest.mark.parametrize("posted", [0, 3, 8])
def test_a_post_to_a_kernel_that_gave_up_fails(posted: int) -> None:
    """The post fails whether or not the ring has space."""
    ring = OwnRing(3, requests=1)
    for _ in range(posted):
        assert ring.post(1, 2, 3, 0, 4) == rl.OK
    ring.state[0] = KernelState.GAVE_UP
    before = ring.words.copy(), ring.queue.copy(), ring.last.copy()
    assert ring.post(1, 2, 3, 0, 4) == rl.GONE
    for now, then in zip((ring.words, ring.queue, ring.last), before, strict=True):
        assert now.tolist() == then.tolist()


def waiting(ring: OwnRing) -> tuple[threading.Thread, list[int]]:
    """Start a post that must wait for space. Return its thread and the list that gets its result."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(ring.post(9, 9, 9, 0, 9)), daemon=True)
    thread.start()
    time.sleep(0.05)  # a post that does not wait would have returned by then
    return thread, found


@pytest.mark.parametrize("state", [KernelState.RUNNING, KernelState.ENDED])
def test_a_kernel_that_ended_in_order_may_be_there_again(state: int) -> None:
    """The next kernel may run before the host is notified that the last one has ended."""
    ring = OwnRing(1)
    ring.post(1, 1, 1, 0, 1)
    ring.post(2, 2, 2, 0, 2)
    ring.state[0] = state
    thread, found = waiting(ring)
    assert found == []
    ring.reader.complete(1)  # another slot than the one it waits for
    ring.reader.complete(0)
    thread.join(60)
    assert found == [rl.OK]
    assert ring.reader.seen(2) == [True] * COMMAND_WORDS


def test_a_waiting_post_fails_when_the_kernel_gives_up() -> None:
    ring = OwnRing(1)
    ring.post(1, 1, 1, 0, 1)
    ring.post(2, 2, 2, 0, 2)
    thread, found = waiting(ring)
    assert found == []
    ring.state[0] = KernelState.GAVE_UP
    thread.join(60)
    assert (found, ring.posted) == ([rl.GONE], 2)


@properties
@given(laps, st.integers(0, 15), st.permutations(range(OUTPUT_WORDS)), st.integers(1, OUTPUT_WORDS), st.data())
def test_outputs_are_complete_when_each_has_arrived(
    lap: int, more: int, order: list[int], rows: int, data: st.DataObject
) -> None:
    """Outputs may arrive in any order. The reader ignores those of the ring's last lap, and rows past the last one."""
    ring = OwnRing(4, first=(lap << 4) + more)
    index, slot = ring.posted, ring.posted % ring.capacity
    ring.outputs[slot] = (index + 1 - ring.capacity) % 2**32 << 32 | 5
    ring.state[0] = KernelState.GAVE_UP  # so that a wait returns at once
    for row in [row for row in order if row < rows]:
        assert rl.await_outputs(ring.queue.ctypes.data, index, rows) == rl.GONE
        ring.outputs[slot, row] = (index + 1) % 2**32 << 32 | data.draw(st.integers(0, 2**32 - 1))
    assert rl.await_outputs(ring.queue.ctypes.data, index, rows) == rl.OK


def test_a_wait_for_outputs_ends_if_none_are_sent() -> None:
    ring = OwnRing(4)
    ring.post(1, 2, 3, 0, 4)
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.append(int(rl.await_outputs(ring.queue.ctypes.data, 0, 3))), daemon=True
    )
    thread.start()
    time.sleep(0.01)
    assert found == []
    ring.reader.complete(0)
    thread.join(60)
    assert found == [rl.COMPLETE]

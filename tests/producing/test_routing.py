"""Commands and requests that are routed to several rings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.command import COMMAND_DTYPE, NO_TOKEN
from launchopt.producing.driver_group import roots_of
from launchopt.producing.production import Routing, at_start, by_turns
from launchopt.producing.routing import produce_routed
from launchopt.queue.ring import Ring
from launchopt.queue.waiter import Waiter
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.stream import Block

CAPACITY = 1024


@pytest.fixture
def rings() -> Iterator[list[Ring]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Ring.create(CAPACITY)) for _ in range(3)]


def block(first: int, count: int, due_ns: list[int] | None = None) -> Block:
    records = np.zeros(count, COMMAND_DTYPE)
    records["seq"], records["token"] = np.arange(first, first + count), NO_TOKEN
    return Block(records, None if due_ns is None else np.array(due_ns))


def routed(rings: list[Ring], blocks: list[Block], routing: Routing, together: int) -> list[list[int]]:
    waiters = [Waiter(ring.await_free_slots, 1, 1) for ring in rings]
    produced = produce_routed(blocks, rings, waiters, routing, together)
    assert produced.pushed == sum(len(each.records) for each in blocks)
    assert all(ring.is_closed for ring in rings)
    return [popped(ring) for ring in rings]


def popped(ring: Ring) -> list[int]:
    out = np.zeros(CAPACITY, COMMAND_DTYPE)
    return [int(seq) for seq in out[: ring.pop(out)]["seq"]]


def test_by_turns_each_ring_gets_as_many_commands_in_a_row_as_fill_a_batch(rings: list[Ring]) -> None:
    found = routed(rings, [block(0, 5), block(5, 5)], Routing.round_robin, 2)
    assert found == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5]]


def test_the_ring_with_the_fewest_waiting_commands_gets_the_next(rings: list[Ring]) -> None:
    rings[0].push(block(90, 3).records, stamp=False)
    rings[2].push(block(95, 1).records, stamp=False)
    found = routed(rings, [block(0, 4)], Routing.least_outstanding, 1)
    assert found == [[90, 91, 92], [0, 2], [95, 1, 3]]


def test_commands_that_are_due_are_routed_one_by_one_and_carry_their_times(rings: list[Ring]) -> None:
    found = routed(rings, [block(0, 4, [0, 10, 20, 300_000])], Routing.round_robin, 64)
    assert found == [[0, 3], [1], [2]]


@given(st.integers(1, 300), st.integers(1, 70), st.sampled_from(Routing))
def test_every_command_goes_to_exactly_one_ring_in_order(count: int, together: int, routing: Routing) -> None:
    with ExitStack() as stack:
        rings = [stack.enter_context(Ring.create(CAPACITY)) for _ in range(2)]
        found = routed(rings, [block(0, count)], routing, together)
    assert sorted(found[0] + found[1]) == list(range(count))
    assert all(each == sorted(each) for each in found)


@given(st.integers(0, 100), st.integers(1, 8))
def test_requests_at_the_start_are_shared_out_evenly_with_neighbours_together(requests: int, consumers: int) -> None:
    found = at_start(requests, consumers)
    assert list(found) == sorted(found)
    counts = np.bincount(found, minlength=consumers)
    assert len(counts) == consumers
    assert counts.max() - counts.min() <= 1


def test_later_requests_go_by_turns() -> None:
    assert by_turns(np.array([0, 0, 0, 4, 5, 6, 7]), 2).tolist() == [0, 0, 1, 1, 0, 1, 0]
    assert by_turns(np.array([3, 4, 5]), 2).tolist() == [0, 1, 0]
    assert by_turns(np.zeros(5, np.int64), 1).tolist() == [0] * 5


def test_requests_that_follow_others_are_routed_with_them() -> None:
    table = np.zeros((5, len(ChainColumn)), np.int64)
    table[:, ChainColumn.AFTER] = [-1, 0, -1, 1, -1]
    table[:, ChainColumn.DUE_NS] = [7, 0, 3, 0, 3]
    roots = roots_of(table)
    assert list(roots.requests) == [2, 4, 0]
    assert list(roots.due_ns) == [3, 3, 7]
    assert list(roots.sizes) == [1, 1, 3]

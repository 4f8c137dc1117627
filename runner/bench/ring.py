"""The ring between two processes: records a second in bulk, and one record there and back.

The peer is a spawned process. Bulk: the producer pushes blocks, the consumer pops what is there and checks the last
sequence number. Round trip: one record through one ring and back through another, in a compiled loop on both sides.
Beside it: `multiprocessing.Queue`, and iceoryx2 where it is installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import COMMAND_DTYPE, WORDS
from launchopt.native import compiled, cpu_pause, monotonic_ns
from launchopt.ring import Ring, Waiter, has_record, pop_words, push_words
from runner.bench.figures import Figure

RECORDS = 20_000_000
BLOCK = 4096
TRIPS = 100_000
MESSAGES = 50_000
CAPACITIES = (256, 1024, 4096, 16384, 65536)
DEFAULT_CAPACITY = 4096
GOAL_RECORDS_PER_S, GOAL_TRIP_P50_NS, GOAL_TRIP_P99_NS = 100e6, 400, 600


def suite(repeats: int) -> Iterator[Figure]:
    """Figures of the ring; two cores at least."""
    for capacity in CAPACITIES:
        samples = [_bulk(capacity) for _ in range(repeats)]
        goal = GOAL_RECORDS_PER_S if capacity == DEFAULT_CAPACITY else None
        yield Figure("ring", f"bulk, capacity {capacity}", "records/s", samples, goal, higher_is_better=True)
    trips = [_round_trips() for _ in range(repeats)]
    for percent, goal in ((50, GOAL_TRIP_P50_NS), (99, GOAL_TRIP_P99_NS)):
        samples = [float(np.percentile(each, percent)) for each in trips]
        yield Figure("ring", f"one record there and back, p{percent}", "ns", samples, goal)
    samples = [_queue() for _ in range(repeats)]
    yield Figure("ring", "multiprocessing.Queue, for comparison", "records/s", samples, higher_is_better=True)
    if samples := [rate for rate in (_iceoryx() for _ in range(repeats)) if rate]:
        yield Figure("ring", "iceoryx2, for comparison", "records/s", samples, higher_is_better=True)


def _with_peer(target: Callable[..., None], args: tuple[Any, ...], work: Callable[[], Any]) -> Any:
    peer = get_context("spawn").Process(target=target, args=args, daemon=True)
    peer.start()
    try:
        return work()
    finally:
        peer.join(30)
        peer.kill()


def push_all(name: str, capacity: int, records: int) -> None:
    """Peer: `records` records in blocks."""
    block = np.zeros(BLOCK, COMMAND_DTYPE)
    with Ring.attach(name, capacity) as ring:
        waiter = Waiter(ring.await_room, 200, 50)
        left = records
        while left:
            count = ring.push(block[: min(left, BLOCK)])
            left -= count
            if not count:
                waiter.wait()
        ring.close()


def _bulk(capacity: int) -> float:
    """Records a second from the first record seen to the last."""
    with Ring.create(capacity) as ring:
        out = np.zeros(BLOCK, COMMAND_DTYPE)
        waiter = Waiter(ring.await_record, 200, 50)
        ring.pop(out)  # loads the compiled code

        def work() -> float:
            while not ring.await_record(0):
                waiter.wait()
            start_ns, popped = time.perf_counter_ns(), 0
            while popped < RECORDS:
                count = ring.pop(out)
                popped += count
                if not count:
                    waiter.wait()
            return popped / (time.perf_counter_ns() - start_ns) * 1e9

        return float(_with_peer(push_all, (ring.name, capacity, RECORDS), work))


@compiled
def _receive(header: NDArray[np.uint64], data: NDArray[np.uint64], record: NDArray[np.uint64]) -> None:
    while not has_record(header, data):
        cpu_pause()
    pop_words(header, data, record)


@compiled
def _ping(there: Any, back: Any, record: NDArray[np.uint64], times_ns: NDArray[np.int64]) -> None:
    for i in range(len(times_ns)):
        start_ns = monotonic_ns()
        push_words(there[0], there[1], record, False)
        _receive(back[0], back[1], record)
        times_ns[i] = monotonic_ns() - start_ns


@compiled
def _pong(there: Any, back: Any, record: NDArray[np.uint64], trips: int) -> None:
    for _ in range(trips):
        _receive(there[0], there[1], record)
        push_words(back[0], back[1], record, False)


def echo(there_name: str, back_name: str, capacity: int, trips: int) -> None:
    """Peer: every record back as it came."""
    with Ring.attach(there_name, capacity) as there, Ring.attach(back_name, capacity) as back:
        _pong(there.arrays, back.arrays, np.zeros((1, WORDS), np.uint64), trips)


def _round_trips() -> NDArray[np.int64]:
    """ns of each of TRIPS round trips, the clock's 25 ns included; the first ones, while the peer starts, left out."""
    with ExitStack() as stack:
        there, back = (stack.enter_context(Ring.create(DEFAULT_CAPACITY)) for _ in range(2))
        record, times_ns = np.zeros((1, WORDS), np.uint64), np.zeros(TRIPS + 1000, np.int64)
        args = (there.name, back.name, DEFAULT_CAPACITY, len(times_ns))
        _with_peer(echo, args, lambda: _ping(there.arrays, back.arrays, record, times_ns))
        return times_ns[1000:]


def put_all(queue: Any, messages: int) -> None:
    """Peer: one 64-byte message at a time."""
    for _ in range(messages):
        queue.put(b"x" * 64)


def _queue() -> float:
    queue = get_context("spawn").Queue()

    def work() -> float:
        queue.get()
        start_ns = time.perf_counter_ns()
        for _ in range(MESSAGES - 1):
            queue.get()
        return (MESSAGES - 1) / (time.perf_counter_ns() - start_ns) * 1e9

    return float(_with_peer(put_all, (queue, MESSAGES), work))


def _iceoryx() -> float | None:
    if find_spec("iceoryx2") is None:
        return None
    from runner.bench.iceoryx import rate

    return rate(MESSAGES, _with_peer)

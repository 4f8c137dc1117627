"""Measures the ring between two processes, one of them spawned.

bulk        the producer pushes blocks, and the consumer pops all records that are there
round trip  one record goes through one ring and back through another, in compiled loops on both sides
steps       whole steps of several requests are pushed; the other process gathers them into a batch and reports when.
            The ring's slots are in the producer's cache beforehand or not, alternately. In a further case all records
            of each step but the last are pushed beforehand.
turn        from a step's tokens to the next launch: see `turn`

For comparison it measures `multiprocessing.Queue`, and iceoryx2 if that is installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.queues import Queue

import numpy as np
from numpy.typing import NDArray

from launchopt.batching import step_buckets as sb
from launchopt.batching import step_policy
from launchopt.batching.batch import FlushRules
from launchopt.batching.step_batcher import StepBatcher
from launchopt.command import COMMAND_DTYPE, HALF_BITS, WORDS, RecordWord
from launchopt.distribution import missing
from launchopt.native import compiled, cpu_pause, monotonic_ns
from launchopt.producing.prepared_steps import fetch_free_slots, push_step
from launchopt.queue.ring import Ring, has_record, pop_words, push_words, ready_words, release_words
from launchopt.queue.segment import HeaderWord
from launchopt.queue.waiter import Waiter
from launchopt.records import STEP_END
from launchopt.types import Table, Words
from runner.bench import turn
from runner.bench.figures import Figure, ratios
from runner.bench.peers import with_peer
from runner.worker.lifeline import name_semaphores

RECORDS = 20_000_000
BLOCK = 4096
TRIPS = 100_000
MESSAGES = 50_000
STEPS, ROWS, ROUNDS = 16, 226, 1000  # a decode step of Llama 3.2 1B has 226 records (ROWS)
WAIT_NS = 100_000  # from one batch to the next steps, in place of the GPU's work
AT_ONCE = 512  # records that the consumer reads together, like `loops.steps`
FAR_NS = 1 << 62
CAPACITIES = (256, 1024, 4096, 16384, 65536)
DEFAULT_CAPACITY = 4096
RingArrays = tuple[Words, Words]  # header and data of a ring
GOAL_RECORDS_PER_S, GOAL_TRIP_P50_NS, GOAL_TRIP_P99_NS = 100e6, 400, 600


def suite(repeats: int) -> Iterator[Figure]:
    """Yield the figures of the ring. Needs two cores."""
    for capacity in CAPACITIES:
        samples = [_bulk(capacity) for _ in range(repeats)]
        goal = GOAL_RECORDS_PER_S if capacity == DEFAULT_CAPACITY else None
        yield Figure("ring", f"bulk, capacity {capacity}", "records/s", samples, goal, higher_is_better=True)
    trips = [_round_trips() for _ in range(repeats)]
    for percent, goal in ((50, GOAL_TRIP_P50_NS), (99, GOAL_TRIP_P99_NS)):
        samples = [float(np.percentile(each, percent)) for each in trips]
        yield Figure("ring", f"one record there and back, p{percent}", "ns", samples, goal)
    pushed = [_steps() for _ in range(repeats)]
    fetched, plain = ([pair[is_fetched] for pair in pushed] for is_fetched in (1, 0))
    case = f"{STEPS} steps of {ROWS} records, pushed and gathered"
    yield Figure("ring", case, "us", plain)
    yield Figure("ring", f"{case}, slots owned beforehand", "us", fetched)
    yield Figure("ring", f"{case}, slots owned beforehand over not", "x", ratios(fetched, plain))
    samples = [_steps_ahead() for _ in range(repeats)]
    yield Figure("ring", f"{STEPS} steps of {ROWS} records, all but the last of each pushed before", "us", samples)
    for requests in (1, STEPS):
        case = f"{requests} request{'s' * (requests > 1)} of {turn.ROWS} records a step, from tokens to the next launch"
        yield Figure("ring", case, "us", [turn.turn_us(requests) for _ in range(repeats)])
    samples = [_queue() for _ in range(repeats)]
    yield Figure("ring", "multiprocessing.Queue, for comparison", "records/s", samples, higher_is_better=True)
    if samples := [rate for rate in (_iceoryx() for _ in range(repeats)) if rate]:
        yield Figure("ring", "iceoryx2, for comparison", "records/s", samples, higher_is_better=True)


def push_all(name: str, capacity: int, records: int) -> None:
    """Push `records` records in blocks (the other process)."""
    block = np.zeros(BLOCK, COMMAND_DTYPE)
    with Ring.attach(name, capacity) as ring:
        waiter = Waiter(ring.await_free_slots, 200, 50)
        left = records
        while left:
            count = ring.push(block[: min(left, BLOCK)])
            left -= count
            if not count:
                waiter.wait()
        ring.close()


def _bulk(capacity: int) -> float:
    """Return records per second, from the first record seen to the last."""
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

        return with_peer(push_all, (ring.name, capacity, RECORDS), work)


@compiled
def _receive(header: Words, data: Words, record: Words) -> None:
    while not has_record(header, data):
        cpu_pause()
    pop_words(header, data, record)


@compiled
def _ping(there: RingArrays, back: RingArrays, record: Words, times_ns: Table) -> None:
    for i in range(len(times_ns)):
        start_ns = monotonic_ns()
        push_words(there[0], there[1], record, False)
        _receive(back[0], back[1], record)
        times_ns[i] = monotonic_ns() - start_ns


@compiled
def _pong(there: RingArrays, back: RingArrays, record: Words, trips: int) -> None:
    for _ in range(trips):
        _receive(there[0], there[1], record)
        push_words(back[0], back[1], record, False)


def echo(there_name: str, back_name: str, capacity: int, trips: int) -> None:
    """Send every record back (the other process)."""
    with Ring.attach(there_name, capacity) as there, Ring.attach(back_name, capacity) as back:
        _pong(there.arrays, back.arrays, np.zeros((1, WORDS), np.uint64), trips)


def _round_trips() -> Table:
    """Return the ns of each of TRIPS round trips, including 25 ns to read the clock. The first 1,000 are dropped."""
    with ExitStack() as stack:
        there, back = (stack.enter_context(Ring.create(DEFAULT_CAPACITY)) for _ in range(2))
        record, times_ns = np.zeros((1, WORDS), np.uint64), np.zeros(TRIPS + 1000, np.int64)
        args = (there.name, back.name, DEFAULT_CAPACITY, len(times_ns))
        with_peer(echo, args, lambda: _ping(there.arrays, back.arrays, record, times_ns))
        return times_ns[1000:]


@compiled
def _gather(there: RingArrays, back: RingArrays, record: Words, batcher: sb.StepArrays, rounds: int) -> None:
    header, data = there
    for _ in range(rounds):
        kind: int = sb.KindCode.NONE
        while kind == sb.KindCode.NONE:
            if not has_record(header, data):
                cpu_pause()
                continue
            first = np.intp(header[HeaderWord.TAIL] & np.uint64(len(data) - 1))
            count = ready_words(header, data, AT_ONCE)
            _, kind, _ = step_policy.next_kind(data[first : first + count], 0, 0, False, batcher)
            release_words(header, count)
        if kind < sb.KindCode.NONE:
            return
        record[0, RecordWord.ENQUEUE_NS] = np.uint64(monotonic_ns())
        size, _ = step_policy.let_go(kind, batcher)
        for request in range(size):
            step_policy.land_step(request, batcher)
        push_words(back[0], back[1], record, False)


def gather_all(there_name: str, back_name: str, rounds: int, ahead: bool = False) -> None:
    """Gather each round's steps into a batch and send a record with the time (the other process)."""
    batcher = StepBatcher(np.full(STEPS, rounds), ROWS, STEPS, FlushRules(FAR_NS), ahead=ahead)
    with Ring.attach(there_name, DEFAULT_CAPACITY) as there, Ring.attach(back_name, DEFAULT_CAPACITY) as back:
        _gather(there.arrays, back.arrays, np.zeros((1, WORDS), np.uint64), batcher.arrays, rounds)


@compiled
def _push_rounds(there: RingArrays, back: RingArrays, steps: Words, record: Words, times_ns: Table) -> None:
    """Measure ns from the first push to the whole batch. Odd rounds have the slots in this core's cache beforehand."""
    (header, data), (count, rows, _) = there, steps.shape
    for i in range(len(times_ns)):
        start_ns = monotonic_ns() + WAIT_NS
        if i % 2 == 1:
            fetch_free_slots(header, data, 0, count * rows)
        while monotonic_ns() < start_ns:
            cpu_pause()
        start_ns = monotonic_ns()
        for step in range(count):
            push_step(header, data, steps[step], 0, 0)
        _receive(back[0], back[1], record)
        times_ns[i] = np.int64(record[0, RecordWord.ENQUEUE_NS]) - start_ns


@compiled
def _push_ahead(there: RingArrays, back: RingArrays, steps: Words, record: Words, times_ns: Table) -> None:
    """Measure ns from the first push to the whole batch, with all records of each step but the last pushed before."""
    (header, data), (count, rows, _) = there, steps.shape
    for i in range(len(times_ns)):
        start_ns = monotonic_ns() + WAIT_NS
        for step in range(count):
            push_step(header, data, steps[step, : rows - 1], 0, 0)
        fetch_free_slots(header, data, 0, count)
        while monotonic_ns() < start_ns:
            cpu_pause()
        start_ns = monotonic_ns()
        for step in range(count):
            push_step(header, data, steps[step, rows - 1 :], 0, 0)
        _receive(back[0], back[1], record)
        times_ns[i] = np.int64(record[0, RecordWord.ENQUEUE_NS]) - start_ns


def _step_times_ns(push: Callable[..., None], ahead: bool) -> Table:
    """Return the ns of each round of `push`, without the first ones."""
    steps = np.zeros((STEPS, ROWS, WORDS), np.uint64)
    steps[:, :, RecordWord.SLOT_C_REQUEST] = np.arange(STEPS, dtype=np.uint64)[:, None] << HALF_BITS
    steps[:, -1, RecordWord.K_OP_DTYPE] = STEP_END
    with ExitStack() as stack:
        there, back = (stack.enter_context(Ring.create(DEFAULT_CAPACITY)) for _ in range(2))
        record, times_ns = np.zeros((1, WORDS), np.uint64), np.zeros(2 * ROUNDS + 100, np.int64)
        args = (there.name, back.name, len(times_ns), ahead)
        with_peer(gather_all, args, lambda: push(there.arrays, back.arrays, steps, record, times_ns))
    return times_ns[100:]


def _steps() -> NDArray[np.float64]:
    """Return two medians, in us until all steps are gathered: with the slots not in the cache beforehand, and in it."""
    medians: NDArray[np.float64] = np.median(_step_times_ns(_push_rounds, False).reshape(-1, 2), axis=0) / 1e3
    return medians


def _steps_ahead() -> float:
    """Return the median us until all steps are gathered, if all records but the last of each were pushed before."""
    return float(np.median(_step_times_ns(_push_ahead, True)) / 1e3)


def put_all(queue: Queue[bytes], messages: int) -> None:
    """Put 64-byte messages one at a time (the other process)."""
    for _ in range(messages):
        queue.put(b"x" * 64)


def _queue() -> float:
    name_semaphores()
    queue: Queue[bytes] = get_context("spawn").Queue()

    def work() -> float:
        queue.get()
        start_ns = time.perf_counter_ns()
        for _ in range(MESSAGES - 1):
            queue.get()
        return (MESSAGES - 1) / (time.perf_counter_ns() - start_ns) * 1e9

    return with_peer(put_all, (queue, MESSAGES), work)


def _iceoryx() -> float | None:
    if missing("iceoryx2"):
        return None
    from runner.bench.iceoryx import rate

    return rate(MESSAGES)

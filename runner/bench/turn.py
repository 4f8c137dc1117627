"""From a step's tokens to the batch of the next one: the driver in this process, the consumer's loop in another.

The consumer's loop is the one of runs, and where a GPU would work it does nothing but take what comes early; then all
tokens of the step are there at once. Measured is from there until the next step of all requests leaves its bucket.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt import step_buckets as sb
from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.devices import lt_chain as lc
from launchopt.devices import lt_pump as lp
from launchopt.devices import step_pump as sp
from launchopt.devices.feedback_stages import STAGES, WORDS, FeedbackStages, stage_ends
from launchopt.devices.pump import PumpSettings
from launchopt.devices.steps import Flights, facts_of, places_needed
from launchopt.driver import Driver, Schedule
from launchopt.native import Int, compiled, monotonic_ns
from launchopt.recorder import Recorder
from launchopt.ring import Ring
from launchopt.step_batcher import StepBatcher, steps_of_requests
from launchopt.workloads.chain import ChainStream
from launchopt.workloads.program import linear_program
from runner.bench.peers import with_peer

TURNS = 1000  # steps of each request
LAYERS, LINEARS = 32, 7
ROWS = LAYERS * LINEARS  # a decode step of Llama 3.2 1B has two more
CAPACITY = 4096
STEP_NS = 100_000  # from one batch to its tokens
FAR_NS = 1 << 62
SPIN_US = 1000.0


def stream_of(requests: int, turns: int) -> ChainStream:
    """So many requests of `turns` tokens, all there from the start."""
    sizes = np.zeros(requests, np.int64), np.zeros(requests, np.int64), np.full(requests, turns)
    return ChainStream(linear_program([(64, 64)] * LINEARS), LAYERS, Requests(*sizes), Dtype.fp16, 1)


@compiled
def _take_early(ring: Any, batcher: sb.StepArrays, settings: Any, state: NDArray[np.int64]) -> None:
    """What the loop does with records while the step runs to which they are next."""
    header, data = ring
    if state[lp.NEXT] == state[lp.COUNT]:
        sp.refill(header, data, settings[sp.AT_ONCE], state)
    words = data[state[sp.FIRST] : state[sp.FIRST] + state[lp.COUNT]]
    state[lp.NEXT], _, _ = sb.next_kind(words, state[lp.NEXT], state[lp.NOW_NS], False, batcher)


@compiled
def _turns(pump: Any, staging: Any, words: NDArray[np.uint64], times_ns: NDArray[np.int64]) -> Int:
    """Drive the loop to its end, and fill `times_ns`; returns how many batches left. `words`: where those lie."""
    ring, back, batcher, flights, records, settings, state, _ = pump
    _, places, done, cursor = flights
    ended, table, facts, stages, staged = staging
    told_ns, turns = 0, 0
    while True:
        code = sp.pump_steps(ring, back, batcher, flights, records, settings, state, None)
        if code == lp.DRAINED or code == lp.STOPPED or code == sp.WRONG:
            return turns
        if code != sp.FLUSH:
            continue
        if turns < len(times_ns):
            times_ns[turns] = state[lp.FLUSH_NS] - told_ns
        turns += 1
        size = state[lp.SIZE]
        stage_ends(words[: state[sp.ROWS] * size], size, ended, table, facts, stages, flights, staged)
        told_ns = monotonic_ns() + STEP_NS
        while monotonic_ns() < told_ns:
            _take_early(ring, batcher, settings, state)
        for flight in range(cursor[lc.FIRST], cursor[lc.STOP_AT]):
            done[places[flight & (len(places) - 1)]] = np.uint64(0)
        told_ns = monotonic_ns()


def idle(*_: Any) -> None:
    """What a mode and a device would do."""


def consume(there_name: str, back_name: str, times_name: str, requests: int, turns: int) -> None:
    """Peer: the consumer's loop, and the times of its turns into a ring's records."""
    stream = stream_of(requests, turns)
    batcher = StepBatcher(steps_of_requests(stream.table), ROWS, requests, FAR_NS, ahead=True)
    recorder, settings = Recorder(1, ROWS * requests), PumpSettings(FAR_NS, None, 1 << 40, 0, 0)
    with ExitStack() as stack:
        there, back, out = (stack.enter_context(Ring.attach(n, CAPACITY)) for n in (there_name, back_name, times_name))
        flights = Flights(stream, back, np.zeros(places_needed(stream), np.uint64))
        flights.reset()
        staged = np.zeros((STAGES, WORDS, requests), np.uint64)
        stages = FeedbackStages(flights, stream.table, facts_of(stream, 0, 0, 0), staged, lambda: None)
        pump = sp.StepPump(there, back, batcher, flights, idle, idle, idle, recorder, settings)
        times_ns = out.arrays[1].view(np.int64).reshape(-1)[:turns]
        _turns(pump.arguments, stages.arrays, batcher.arrays[0], times_ns)


def turn_us(requests: int, turns: int = TURNS) -> float:
    """The median of the turns of so many requests, the first ones left out; us."""
    driver = Driver(stream_of(requests, turns), Schedule(ahead=True), SPIN_US, 0.0)
    with ExitStack() as stack:
        there, back, out = (stack.enter_context(Ring.create(CAPACITY)) for _ in range(3))
        with_peer(consume, (there.name, back.name, out.name, requests, turns), lambda: driver.run(there, back))
        times_ns = out.arrays[1].view(np.int64).reshape(-1)[:turns].copy()
    return float(np.median(times_ns[turns // 10 :])) / 1e3

"""Measures the time from a step's tokens to the word that admits the next step.

The driver runs here, and the consumer's loop in another process. STEP_NS stand for the GPU's work on a step. In this
time the loop takes records that come early. Then all tokens of the step are complete together. The time ends when the
next step of all requests has been flushed, and the launch that waits for it (`admission`) is notified.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np

from launchopt.arrivals.requests import Requests
from launchopt.batching.batch import FlushRules
from launchopt.batching.step_batcher import StepBatcher, steps_of_requests
from launchopt.batching.step_buckets import StepBuckets
from launchopt.batching.step_policy import next_kind
from launchopt.command import Dtype
from launchopt.devices.feedback.flights import Flights, facts_of, places_needed
from launchopt.devices.feedback.landing import FlightWord
from launchopt.devices.feedback.stages import STAGES, WORDS, FeedbackStages
from launchopt.devices.loops.admission import Admission, AdmissionArrays, AdmissionFields, ExpectedWord, look
from launchopt.devices.loops.runner import BATCH, Feedback, LoopSettings
from launchopt.devices.loops.state import LoopArrays, LoopExit, LoopWord, SettingWord
from launchopt.devices.loops.steps import StepLoop, look_for_more, pump_steps
from launchopt.devices.steps.keys import StepKeys
from launchopt.errors import RunError
from launchopt.native import compiled, monotonic_ns
from launchopt.producing.driver import Driver
from launchopt.producing.production import Schedule
from launchopt.queue.ring import Ring
from launchopt.queue.segment import RingWords
from launchopt.recording.recorder import Recorder
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.program import linear_program
from launchopt.types import Int, Table, Words
from runner.bench.peers import with_peer

TURNS = 1000  # turns, which are steps of each request
LAYERS, LINEARS = 32, 7
ROWS = LAYERS * LINEARS  # commands of a step; a decode step of Llama 3.2 1B has two more
CAPACITY = 4096
UNLIKE = 2  # untimed steps at the start: the first has inputs of its own; all later ones are like the second
STEP_NS = 100_000  # from a launch to its tokens
FAR_NS = 1 << 62
SPIN_US = 1000.0


def stream_of(requests: int, turns: int) -> ChainStream:
    """Return the stream of `requests` requests of `turns` tokens that all arrive at the start."""
    sizes = np.zeros(requests, np.int64), np.zeros(requests, np.int64), np.full(requests, turns)
    return ChainStream(linear_program([(64, 64)] * LINEARS), LAYERS, Requests(*sizes), Dtype.fp16, 1)


@compiled
def _take_early(ring: RingWords, batcher: StepBuckets, loop: LoopArrays, admission: AdmissionFields) -> None:
    """Take records of the next step while a step runs, like the loop of a run."""
    state = loop.state
    if state[LoopWord.NEXT] == state[LoopWord.COUNT]:
        look_for_more(ring, loop.settings[SettingWord.AT_ONCE], state)
    words = ring.data[state[LoopWord.RING_PLACE] : state[LoopWord.RING_PLACE] + state[LoopWord.COUNT]]
    state[LoopWord.NEXT], _, _ = next_kind(words, state[LoopWord.NEXT], state[LoopWord.NOW_NS], False, batcher)
    if state[LoopWord.COUNT] == 0:
        look(batcher, admission)


@compiled
def _complete(flights: tuple[Words, Table, Words, Table]) -> None:
    """Mark all tokens of the current step as complete."""
    _, places, done, cursor = flights
    for flight in range(cursor[FlightWord.FIRST], cursor[FlightWord.STOP_AT]):
        done[places[flight & (len(places) - 1)]] = np.uint64(0)


@compiled
def _turns(arguments: Any, times_ns: Table) -> Int:
    """Run all turns after the first step. Fill `times_ns` and return the number of admitted launches."""
    ring, batcher, feedback, recording, loop, admission = arguments
    expected, steps = AdmissionArrays(*admission).expected, StepBuckets(*batcher)
    ring_words, arrays = RingWords(*ring), LoopArrays(*loop)
    for turn in range(len(times_ns) + 1):  # after the last turn come tokens alone
        expected[ExpectedWord.WAITS], expected[ExpectedWord.KNOWN] = 1, 0
        until_ns = monotonic_ns() + STEP_NS
        while monotonic_ns() < until_ns:
            _take_early(ring_words, steps, arrays, admission)
        _complete(feedback[2])
        complete_ns = monotonic_ns()
        code = pump_steps(ring, batcher, feedback, recording, loop, admission)
        while code == LoopExit.IDLE or code == LoopExit.QUIET:
            code = pump_steps(ring, batcher, feedback, recording, loop, admission)
        if code != LoopExit.SPECIAL or expected[ExpectedWord.WAITS] != 0:
            break
        times_ns[turn] = monotonic_ns() - complete_ns
    return turn


def idle(*_: object) -> None:
    """Do nothing, in place of a mode and a device."""


def consume(there_name: str, back_name: str, times_name: str, requests: int, turns: int) -> None:
    """Run the consumer's loop (the other process), and store the times of its turns in a ring's records."""
    stream = stream_of(requests, turns)
    batcher = StepBatcher(steps_of_requests(stream.table), ROWS, requests, FlushRules(FAR_NS), ahead=True)
    recorder, settings = Recorder(1, ROWS * requests), LoopSettings(1 << 40, 0)
    with ExitStack() as stack:
        there, back, out = (stack.enter_context(Ring.attach(n, CAPACITY)) for n in (there_name, back_name, times_name))
        flights = Flights(stream, back, np.zeros(places_needed(stream), np.uint64))
        flights.reset()
        staged = np.zeros((STAGES, WORDS, requests), np.uint64)
        stages = FeedbackStages(flights, stream.table, facts_of(stream, 0, 0, 0), staged, lambda: None)
        admission = Admission(np.zeros(1, np.uint64), stages, ROWS + 2 * requests)
        loop = StepLoop(there, batcher, idle, Feedback(flights, idle, idle), recorder, settings, admission)
        state = loop.arguments[4][1]
        for _ in range(UNLIKE):
            _complete(flights.arrays)
            while pump_steps(*loop.arguments) != LoopExit.SPECIAL:
                pass
            rows, size, reason, _ = state[BATCH].tolist()
            last = batcher.left(reason, size, rows)
            stages.stage(last)
        admission.expect(StepKeys(lambda batch: 0).known(last), 0, 1, FAR_NS)
        times_ns = out.arrays[1].view(np.int64).reshape(-1)[: turns - UNLIKE]
        if (notified := _turns(loop.arguments, times_ns)) != turns - UNLIKE:
            there.stop()  # the driver would wait for tokens for ever
            raise RunError(f"step {notified + UNLIKE} was not the one that a launch waited for")


def turn_us(requests: int, turns: int = TURNS) -> float:
    """Return the median time of a turn with `requests` requests, us, without the first tenth of the turns."""
    driver = Driver(stream_of(requests, turns), Schedule(ahead=True), SPIN_US, 0.0)
    with ExitStack() as stack:
        there, back, out = (stack.enter_context(Ring.create(CAPACITY)) for _ in range(3))
        with_peer(consume, (there.name, back.name, out.name, requests, turns), lambda: driver.run(there, back))
        times_ns = out.arrays[1].view(np.int64).reshape(-1)[: turns - UNLIKE].copy()
    return float(np.median(times_ns[turns // 10 :])) / 1e3

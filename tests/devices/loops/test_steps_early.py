"""The loop for whole steps, with a driver that pushes records of a step while the previous one is on the device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.steps.launching import recorded
from support.steps.step_loops import AHEAD, LAYERS, TINY, Loop, looping, pretending, stream_of

from launchopt.batching.step_buckets import StepColumn
from launchopt.devices.feedback.landing import FlightWord
from launchopt.devices.loops.admission import ExpectedWord
from launchopt.queue.segment import HeaderWord
from launchopt.recording.launch_rows import CommandColumn
from launchopt.streams.chains.chain_table import ChainColumn

SIDE_BY_SIDE = [(0, 4)] * 6
MOST_ASKED = 8  # checks of the device, during which the loop has certainly looked at the records once


def has_come_early(loop: Loop, rows: int) -> bool:
    """Return whether all records have come that can come while the previous step is on the device."""
    steps = loop.batcher.arrays[1]
    goes_on = steps[:, StepColumn.LANDED] + 1 < steps[:, StepColumn.TOTAL]
    return bool(loop.flights.count == len(steps) and (steps[goes_on, StepColumn.FILLED] == rows - 1).all())


def finish(loop: Loop) -> None:
    """Make all steps complete that are on the device."""
    _, places, done, cursor = loop.flights.arrays
    done[places[np.arange(cursor[FlightWord.FIRST], cursor[FlightWord.STOP_AT]) & (len(places) - 1)]] = 0


@pytest.mark.parametrize("limit", [64, 3], ids=["all at once", "by halves"])
def test_all_but_the_last_command_of_a_step_come_while_the_previous_step_is_on_the_device(limit: int) -> None:
    """Here the device completes a step only after these commands have come."""
    stream, rows = stream_of(SIDE_BY_SIDE), len(TINY) * LAYERS
    with looping(stream, limit, pretending(never=True), ahead=True) as loop:

        def asked() -> None:
            if has_come_early(loop, rows):
                finish(loop)

        loop.pump._feedback = replace(loop.pump._feedback, check_alive=asked)
        loop.run(AHEAD)
        loop.check()
        run, tokens = recorded(loop.recorder), loop.tokens
        zero_ns = loop.ring.word(HeaderWord.START_NS)
    assert tokens is not None
    order = run.commands[:, CommandColumn.REQUEST_STEP].view(np.uint64)
    for request in range(len(SIDE_BY_SIDE)):
        own = run.commands[order >> np.uint64(32) == request]
        enqueue_ns = (
            own[np.argsort(own[:, CommandColumn.REQUEST_STEP]), CommandColumn.ENQUEUE_NS].reshape(-1, rows) - zero_ns
        )
        first = int(stream.table[request, ChainColumn.FIRST_TOKEN])
        done_ns, issue_ns = tokens.done_ns[first : first + 3], tokens.issue_ns[first : first + 4]
        assert (enqueue_ns[1:, :-1] < done_ns[:, None]).all()
        assert (enqueue_ns[1:, -1] >= done_ns).all()
        assert enqueue_ns[1:, -1].tolist() == issue_ns[1:].tolist()


def test_records_do_not_come_early_if_the_batcher_never_allows_it() -> None:
    """The driver would push them, but waits for a word of the ring that is never set."""
    with looping(stream_of(SIDE_BY_SIDE), device=pretending(0.001)) as loop:
        loop.run(AHEAD)
        loop.check()


def test_early_records_are_compared_with_the_batch_that_a_launch_waits_for() -> None:
    """The loop compares them while it waits for the last record. The third step has the second one's key."""
    stream, rows = stream_of([(0, 3)] * 2, replicas=1), len(TINY) * LAYERS
    known: list[int] = []
    with looping(stream, device=pretending(never=True), ahead=True, expecting=True) as loop:
        assert loop.admission is not None
        expected = loop.admission.arrays[0]

        def asked() -> None:
            if not has_come_early(loop, rows):
                return
            if len(loop.batches) == 2:
                known.append(int(expected[ExpectedWord.KNOWN]))
                if known[-1] != rows - 1 and len(known) < MOST_ASKED:
                    return  # the loop may not have looked since the last record came
            finish(loop)

        loop.pump._feedback = replace(loop.pump._feedback, check_alive=asked)
        loop.run(AHEAD)
        loop.check()
    assert known[-1] == rows - 1

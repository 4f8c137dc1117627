"""Records of a step that a driver pushes while the one before is on the device, through the loop for whole steps."""

from __future__ import annotations

import numpy as np
import pytest
from launching import recorded
from step_loops import AHEAD, LAYERS, TINY, looping, pretending, stream_of

from launchopt import recorder as rec
from launchopt import step_buckets as sb
from launchopt.devices import lt_chain as lc
from launchopt.ring import START_NS
from launchopt.workloads import chain as ch

SIDE_BY_SIDE = [(0, 4)] * 6


@pytest.mark.parametrize("limit", [64, 3], ids=["all at once", "by halves"])
def test_all_but_the_last_command_of_a_step_come_while_the_one_before_is_on_the_device(limit: int) -> None:
    """Which waits for them here: it is not done before they have come."""
    stream, rows = stream_of(SIDE_BY_SIDE), len(TINY) * LAYERS
    with looping(stream, limit, pretending(never=True), ahead=True) as loop:

        def finish() -> None:
            steps = loop.batcher.arrays[1]
            goes_on = steps[:, sb.LANDED] + 1 < steps[:, sb.TOTAL]
            if loop.flights.count == len(SIDE_BY_SIDE) and (steps[goes_on, sb.FILLED] == rows - 1).all():
                _, places, done, cursor = loop.flights.arrays
                done[places[np.arange(cursor[lc.FIRST], cursor[lc.STOP_AT]) & (len(places) - 1)]] = 0

        loop.pump._check_alive = finish
        loop.run(AHEAD)
        loop.check()
        run, tokens = recorded(loop.recorder), loop.tokens
        zero_ns = loop.ring.word(START_NS)
    assert tokens is not None
    order = run.commands[:, rec.REQUEST_STEP].view(np.uint64)
    for request in range(len(SIDE_BY_SIDE)):
        own = run.commands[order >> np.uint64(32) == request]
        enqueue_ns = own[np.argsort(own[:, rec.REQUEST_STEP]), rec.ENQUEUE_NS].reshape(-1, rows) - zero_ns
        first = int(stream.table[request, ch.FIRST_TOKEN])
        done_ns, issue_ns = tokens.done_ns[first : first + 3], tokens.issue_ns[first : first + 4]
        assert (enqueue_ns[1:, :-1] < done_ns[:, None]).all()
        assert (enqueue_ns[1:, -1] >= done_ns).all()
        assert enqueue_ns[1:, -1].tolist() == issue_ns[1:].tolist()


def test_steps_that_no_batch_was_told_of_are_not_ahead() -> None:
    """One whose records may not come early: the driver that would push them waits for a word that never comes."""
    with looping(stream_of(SIDE_BY_SIDE), device=pretending(0.001)) as loop:
        loop.run(AHEAD)
        loop.check()

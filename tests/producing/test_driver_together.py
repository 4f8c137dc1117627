"""Steps that the driver issues together: their number, their marks, and what they wait for."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from support.steps.driver_runs import PATIENCE_S, expected_records, running, stream_of

from launchopt.command import COMMAND_DTYPE, NO_TOKEN, Flag
from launchopt.producing.production import Schedule, Tokens
from launchopt.queue.segment import HeaderWord
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn

TOGETHER = 3


def played(stream: ChainStream, schedule: Schedule, seed: int) -> tuple[dict[int, list[int]], list[list[Any]], Tokens]:
    """Take all records, and end the steps of a request in order, at random times, once all steps together have come.

    Return by request how many steps came together, the records in order of arrival, and the driver's times. In rounds
    no step ends before the round is complete. With steps ahead, early records come, but not the last one.
    """
    generator = np.random.default_rng(seed)
    groups, steps, ready = defaultdict[int, list[int]](list), defaultdict[int, list[Any]](list), list[list[Any]]()
    records, early = [], [0]
    with running(stream, schedule) as run:
        end = time.monotonic() + PATIENCE_S
        is_open = not schedule.continuous
        while not run.ring.drained:
            assert time.monotonic() < end, "the driver and its consumer wait for each other"
            buffer = np.zeros(5, COMMAND_DTYPE)
            for record in buffer[: run.ring.pop(buffer)]:
                records.append(record.copy())
                request = int(record["request"])
                is_early = any(int(each[0]["request"]) == request for each in ready)  # its steps have not ended
                assert schedule.ahead or not is_early
                early[0] += is_early
                if record["flags"] & Flag.STEP_END:
                    steps[request].append(record.copy())
                    if not record["flags"] & Flag.GOES_ON:
                        assert not is_early, "the last record is held back"
                        groups[request].append(len(steps[request]))
                        ready.append(steps.pop(request))
                        is_open = is_open or bool(record["flags"] & Flag.ROUND_END)
                else:
                    assert not record["flags"]
            if schedule.ahead and ready:
                run.ring.set_word(HeaderWord.STEPS_LEFT, len(records))
                patience = time.monotonic() + 0.003  # for the driver's thread to push early
                while not (has_more := run.ring.await_record(100_000)) and time.monotonic() < patience:
                    time.sleep(1e-4)
                if has_more and generator.random() < 0.8:
                    continue  # take most of what is early before a step ends
            if ready and is_open and generator.random() < 0.5:
                own = ready[int(generator.integers(len(ready)))]
                assert run.back.push(np.array([own.pop(0)], COMMAND_DTYPE)) == 1
                ready = [each for each in ready if each]
                is_open = not schedule.continuous or bool(ready)
        tokens, commands, _ = run.finish()
    assert commands == len(records) == stream.commands
    assert (early[0] > 0) == schedule.ahead
    return groups, records, tokens


def check_records(stream: ChainStream, records: list[Any], tokens: Tokens) -> None:
    for request in range(stream.requests):
        own = np.array([each for each in records if each["request"] == request], COMMAND_DTYPE)
        of_request = slice(int(stream.table[request, ChainColumn.FIRST_TOKEN]), None)
        issued, done = (each[of_request][: stream.outputs[request]] for each in (tokens.issue_ns, tokens.done_ns))
        assert (np.diff(issued) >= 0).all()
        assert (np.diff(done) >= 0).all()
        assert (issued <= done).all()
        own["seq"] = own["enqueue_ns"] = own["turn"] = 0
        own["flags"] &= int(Flag.STEP_END)
        assert own.tolist() == expected_records(stream, request).tolist()


@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("seed", range(4))
def test_decode_steps_are_issued_together(seed: int, ahead: bool) -> None:
    stream = stream_of([(0, 8), (5, 4), (0, 1), (2, 7)], chunk=2, replicas=2, vocab=30)
    groups, records, tokens = played(stream, Schedule(together=TOGETHER, ahead=ahead), seed)
    assert groups[0] == [1, 3, 3, 1], "the first step is issued alone"
    assert groups[2] == [1]
    for request, chunks in ((1, 3), (3, 1)):
        ends = sum(bool(each["flags"]) for each in records if each["request"] == request)
        assert sum(groups[request]) == ends
        assert set(groups[request][:chunks]) == {1}, "chunks of prompts are issued one by one"
        assert max(groups[request]) == TOGETHER
    check_records(stream, records, tokens)


@pytest.mark.parametrize("seed", range(4))
def test_in_rounds_each_request_has_as_many_steps(seed: int) -> None:
    """The request with the fewest tokens left, or with a prompt, sets the number."""
    stream = stream_of([(0, 9), (0, 6), (0, 9)])
    groups, records, tokens = played(stream, Schedule(continuous=True, together=TOGETHER), seed)
    assert groups == {0: [1, 3, 2, 3], 1: [1, 3, 2], 2: [1, 3, 2, 3]}
    ends = [int(each["request"]) for each in records if each["flags"] & Flag.ROUND_END]
    assert ends == [2, 2, 2, 2], "the last record of the round's last request"
    check_records(stream, records, tokens)


def test_tokens_of_steps_together_follow_each_other() -> None:
    stream = stream_of([(0, 8)], replicas=3)
    _, records, _ = played(stream, Schedule(together=TOGETHER), 1)
    tokens = [int(each["token"]) for each in records if each["token"] != NO_TOKEN and each["flags"]]
    assert tokens == list(range(8))

"""Pushed, popped, executed, recorded: a run in which two of them differ is failed, and says by how much."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from launchopt.command import Dtype
from launchopt.ring import START_NS, TAIL, Ring
from launchopt.summary import differences
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import job
from runner.consumer import Consumer
from runner.job import Arm

COMMANDS, BATCH = 96, 16


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ((5, 5, 5, 5), []),
        ((5, 4, 4, 4), ["5 commands pushed, 4 popped: 1 lost"]),
        ((5, 5, 6, 5), ["5 commands popped, 6 executed: 1 too many", "6 commands executed, 5 recorded: 1 lost"]),
    ],
)
def test_differences_are_named(counts: tuple[int, ...], found: list[str]) -> None:
    assert differences(dict(zip(("pushed", "popped", "executed", "recorded"), counts, strict=True))) == found


def outcome(break_it: Callable[[Consumer, Ring], None]) -> tuple[dict[str, int], str]:
    """Counts and status of a run; `break_it` comes between the last result and the count."""
    stream = gemv(16, 1, 64, COMMANDS, Dtype.fp32, 32, False, 0)
    records = np.concatenate([block.records for block in stream.blocks()])
    with Ring.create(128) as ring, Consumer(job(stream, ring, "cpu", (Arm("batched", BATCH, 1e6, None),))) as consumer:
        consumer.arm(0, rehearsal=False)
        ring.set_word(START_NS, time.monotonic_ns())
        ring.push(records, stamp=True)
        ring.close()
        consumer.consume()
        break_it(consumer, ring)
        result = consumer.result(0, 0)
        return result["extra"]["counts"], result["row"]["status"]


def nothing(consumer: Consumer, ring: Ring) -> None:
    """All is well."""


def pop_less(consumer: Consumer, ring: Ring) -> None:
    ring.set_word(TAIL, COMMANDS - 3)


def record_one_twice(consumer: Consumer, ring: Ring) -> None:
    consumer.recorder.commands[5] = consumer.recorder.commands[4]


@pytest.mark.parametrize(
    ("break_it", "expected", "status"),
    [
        (nothing, {}, "ok"),
        (pop_less, {"popped": COMMANDS - 3}, "failed: 96 commands pushed, 93 popped: 3 lost"),
        (record_one_twice, {"recorded": COMMANDS - 1}, "failed: 96 commands executed, 95 recorded: 1 lost"),
    ],
)
def test_a_run_that_lost_a_command_is_failed(break_it: Any, expected: dict[str, int], status: str) -> None:
    counts, said = outcome(break_it)
    assert counts == dict.fromkeys(("pushed", "popped", "executed", "recorded"), COMMANDS) | expected
    assert said.partition(";")[0] == status


def test_a_launch_that_never_was_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Consumer._launch
    left = iter([True])

    def forgetful(self: Consumer, batch: Any) -> None:
        if not next(left, False):
            launch(self, batch)

    monkeypatch.setattr(Consumer, "_launch", forgetful)
    counts, status = outcome(nothing)
    assert (counts["popped"], counts["executed"]) == (COMMANDS, COMMANDS - BATCH)
    assert status.startswith("failed: 96 commands popped, 80 executed: 16 lost; 16 of 96 commands never ran; ")

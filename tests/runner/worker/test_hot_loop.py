"""The consumer's loop allocates nothing that grows with the stream, and collects no garbage."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from launchopt.command import Dtype
from launchopt.modes import MODES, mode_class
from launchopt.queue.ring import MOST_AT_ONCE, Ring
from launchopt.queue.segment import HeaderWord
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import job
from runner.plan.job import Arm
from runner.worker.consumer import Consumer
from runner.worker.messages import RepeatResult

FEW, MANY = 2 * MOST_AT_ONCE, 20 * MOST_AT_ONCE
SLACK_BYTES = 16 << 10


def peak_bytes(mode: str, commands: int) -> tuple[int, RepeatResult]:
    """Most bytes that Python held at once in the timed part, over what it held before; and the run's result."""
    stream = gemv(16, 1, 64, commands, Dtype.fp32, 64)
    records = np.concatenate([block.records for block in stream.blocks()])
    capacity = 1 << (len(records) - 1).bit_length()
    with Ring.create(capacity) as ring, Consumer(job(stream, ring, "cpu", (Arm(mode, 64, 1e6, None),))) as consumer:
        consumer.arm(0)
        ring.set_word(HeaderWord.START_NS, time.monotonic_ns())
        assert ring.push(records, stamp=True) == commands
        ring.close()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            consumer.consume()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return peak - before, consumer.result(0, 0)


def cannot(mode: str) -> str | None:
    """Why a mode cannot run this stream here."""
    kind = mode_class(mode)
    return kind.refusal("cpu", gemv(16, 1, 64, FEW, Dtype.fp32, 64)) or kind.lacks()


@pytest.mark.parametrize("mode", [mode for mode in MODES if cannot(mode) is None])
def test_ten_times_the_commands_take_no_more_memory(mode: str) -> None:
    peak_bytes(mode, FEW)  # compiles, and fills what is filled once
    few, _ = peak_bytes(mode, FEW)
    many, result = peak_bytes(mode, MANY)
    assert result.row["status"] == "ok"
    assert result.row["commands"] == MANY
    assert result.extra["gc_collections"] == 0
    assert many < few + SLACK_BYTES


def test_the_measure_sees_what_a_loop_keeps() -> None:
    tracemalloc.start()
    try:
        kept = list(range(1000, 1000 + MANY - FEW))
        assert tracemalloc.get_traced_memory()[1] > SLACK_BYTES
    finally:
        tracemalloc.stop()
    assert kept

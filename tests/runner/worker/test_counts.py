"""Announced, pushed, popped, executed, recorded: where two of them differ the run is failed, and says by how much."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import current_process
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.config.composing import planned

from launchopt.command import Dtype, Records
from launchopt.devices.loops.runner import BatchLoop
from launchopt.errors import RunError
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from launchopt.recording import results
from launchopt.recording.summary import differences
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.streams.stream import BLOCK_RECORDS, Block
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import job
from runner.plan.job import Arm
from runner.run import run as run_module
from runner.worker.consumer import Consumer

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


def as_announced(records: Records) -> Records:
    """All is well."""
    return records


def outcome(
    break_it: Callable[[Consumer, Ring], None], pushed: Callable[[Records], Records] = as_announced
) -> tuple[dict[str, int], str]:
    """Counts and status of a run that is given `pushed`; `break_it` comes between the last result and the count."""
    stream = gemv(16, 1, 64, COMMANDS, Dtype.fp32, 32)
    records = pushed(np.concatenate([block.records for block in stream.blocks()]))
    with Ring.create(128) as ring, Consumer(job(stream, ring, "cpu", (Arm("batched", BATCH, 1e6, None),))) as consumer:
        consumer.arm(0)
        ring.set_word(HeaderWord.START_NS, time.monotonic_ns())
        ring.push(records, stamp=True)
        ring.close()
        consumer.consume()
        break_it(consumer, ring)
        result = consumer.result(0, 0)
        return result.extra["counts"], result.row["status"]


def nothing(consumer: Consumer, ring: Ring) -> None:
    """All is well."""


def pop_less(consumer: Consumer, ring: Ring) -> None:
    ring.set_word(HeaderWord.TAIL, COMMANDS - 3)


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
    counts, message = outcome(break_it)
    assert counts == dict.fromkeys(("pushed", "popped", "executed", "recorded"), COMMANDS) | expected
    assert message.partition(";")[0] == status


def test_a_launch_that_never_was_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = BatchLoop._launch
    left = iter([True])

    def forgetful(self: BatchLoop) -> None:
        if not next(left, False):
            launch(self)

    monkeypatch.setattr(BatchLoop, "_launch", forgetful)
    counts, status = outcome(nothing)
    assert (counts["popped"], counts["executed"]) == (COMMANDS, COMMANDS - BATCH)
    assert status.startswith("failed: 96 commands popped, 80 executed: 16 lost; 16 of 96 commands never ran; ")


def again(records: Records) -> Records:
    """The first of them twice."""
    return np.concatenate([records, records[:BATCH]])


def beyond(records: Records) -> Records:
    """As if the stream went on."""
    more = records[:BATCH].copy()
    more["seq"] += len(records)
    return np.concatenate([records, more])


@pytest.mark.parametrize(
    ("pushed", "why"), [(again, "16 commands ran twice"), (beyond, "16 commands were not of this stream")]
)
def test_more_commands_than_were_announced_fail_the_run(pushed: Callable[[Records], Records], why: str) -> None:
    counts, status = outcome(nothing, pushed)
    assert (counts["pushed"], counts["executed"], counts["recorded"]) == (COMMANDS + BATCH, COMMANDS + BATCH, COMMANDS)
    assert status.startswith("failed: 96 commands announced, 112 pushed: 16 too many; ")
    assert why in status


def test_fewer_commands_than_were_announced_fail_the_run() -> None:
    counts, status = outcome(nothing, lambda records: records[:-BATCH])
    assert set(counts.values()) == {COMMANDS - BATCH}
    assert status.startswith("failed: 96 commands announced, 80 pushed: 16 lost; 16 of 96 commands never ran; ")


class Flood(GemmStream):
    """In the producer's process its first commands come again and again after the last, `more` in all."""

    more = 0

    def blocks(self, block_records: int = BLOCK_RECORDS) -> Iterator[Block]:
        yield from super().blocks(BATCH)
        if current_process().name == "launchopt-producer":
            for _ in range(self.more // BATCH):
                yield next(super().blocks(BATCH))


@pytest.mark.parametrize("more", [BATCH, 10**12], ids=["some", "without end"])
def test_a_producer_that_floods_ends_the_run(more: int, tmp_path: Path) -> None:
    plan = planned("workload.cache=hot", "workload.m=16", "workload.k=64", "queue.capacity=128")
    flood = Flood([(16, 64)], 1, [Segment(1, COMMANDS)], Dtype.fp32, 32, CommandOrder(independent=True))
    flood.more = more
    with pytest.raises(RunError, match=r"96 commands announced, \d+ pushed: \d+ too many"):
        run_module.execute(replace(plan, stream=flood), tmp_path, [])
    manifest = results.read_manifest(tmp_path)
    assert manifest["status"] == "failed"
    # Who sees it first: the parent while it runs, or the check when it has ended.
    manifest_error = manifest.get("error") or results.read_summaries([tmp_path])[0]["status"]
    assert "96 commands announced, " in manifest_error
    assert not list(tmp_path.glob(".*"))

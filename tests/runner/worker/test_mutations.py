"""Mutations of the memory or the results of a run, one at a time: the consumer's check fails the run, and says why.

A run is one of this process: the consumer of a run on the CPU, with the mutation at the time that its name says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from launchopt.command import Dtype
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from launchopt.recording.launch_rows import LaunchColumn
from launchopt.streams.gemm_stream import CommandOrder, GemmStream
from launchopt.types import Array
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import job
from runner.plan.job import Arm
from runner.worker.consumer import Consumer
from runner.worker.messages import RepeatResult

COMMANDS = 200
Mutation = Callable[[Consumer], None]


def stream_of(dtype: Dtype) -> GemmStream:
    return gemv(48, 2, 64, COMMANDS, dtype, 32, CommandOrder(shuffle=True, seed=5))


def results_of(
    dtype: Dtype, filled: Mutation | None = None, armed: Mutation | None = None, ended: Mutation | None = None
) -> list[RepeatResult]:
    """Return the results of three repeats.

    filled, armed, ended: what happens once, when the operands are filled, before the clock of the second repeat, and
    behind its last result.
    """
    stream = stream_of(dtype)
    records = np.concatenate([block.records for block in stream.blocks()])
    found = []
    with Ring.create(256) as ring, Consumer(job(stream, ring, "cpu", (Arm("batched", 16, 1e6, None),))) as consumer:
        if filled:
            filled(consumer)
        for repeat in range(3):
            ring.reset()
            consumer.arm(0)
            if armed and repeat == 1:
                armed(consumer)
            ring.set_word(HeaderWord.START_NS, time.monotonic_ns())
            assert ring.push(records, stamp=True) == stream.commands
            ring.close()
            consumer.consume()
            if ended and repeat == 1:
                ended(consumer)
            found.append(consumer.result(0, repeat))
    return found


def of_role(change: Callable[[Array], None], *roles: str) -> Mutation:
    """The change to the arrays of these roles, [slots, elements]."""

    def mutation(consumer: Consumer) -> None:
        for arena, array in consumer.device.arenas.arrays.items():
            if arena.role in roles:
                change(array)

    return mutation


def zero(array: Array) -> None:
    array[...] = 0


def copy_the_first(array: Array) -> None:
    array[...] = array[0]


def scatter(array: Array) -> None:
    array.reshape(-1)[::97][:64] = 1


OPERANDS = {
    "all zero": of_role(zero, "a", "b"),
    "weights zero": of_role(zero, "a"),
    "inputs zero": of_role(zero, "b"),
    "every slot a copy of the first": of_role(copy_the_first, "a", "b"),
    "64 stray values in the weights": of_role(scatter, "a"),
}


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
def test_without_a_mutation_all_is_right(dtype: Dtype) -> None:
    assert [(each.row["status"], each.row["verified"]) for each in results_of(dtype)] == [("ok", True)] * 3


@pytest.mark.parametrize("mutation", OPERANDS.values(), ids=OPERANDS)
def test_operands_that_the_seed_does_not_give_fail_every_repeat(mutation: Mutation) -> None:
    for each in results_of(Dtype.fp16, filled=mutation):
        assert not each.row["verified"]
        assert each.row["status"].startswith("failed: operands are not what the seed gives: ")


@pytest.mark.parametrize("when", ["armed", "ended"])
@pytest.mark.parametrize("mutation", OPERANDS.values(), ids=OPERANDS)
def test_operands_changed_later_fail_from_then_on(mutation: Mutation, when: str) -> None:
    found = results_of(Dtype.fp16, **{when: mutation})
    assert [each.row["verified"] for each in found] == [True, False, False]
    assert "operands are not what the seed gives: " in found[1].row["status"]


def nan(array: Array) -> None:
    array[5, 3] = np.nan


def one_sign(array: Array) -> None:
    array[7, 11] *= -1


def one_slot_zero(array: Array) -> None:
    array[100] = 0


def two_exchanged(array: Array) -> None:
    array[[3, 90]] = array[[90, 3]]


def a_little_too_large(array: Array) -> None:
    array[44] *= 1.02


RESULTS = {
    "not written": of_role(nan, "c"),
    "one sign": of_role(one_sign, "c"),
    "one output zero": of_role(one_slot_zero, "c"),
    "two outputs exchanged": of_role(two_exchanged, "c"),
    "one output scaled by 1.02": of_role(a_little_too_large, "c"),
}


@pytest.mark.parametrize("dtype", [Dtype.fp32, Dtype.fp16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("mutation", RESULTS.values(), ids=RESULTS)
def test_a_wrong_output_fails_its_repeat_and_no_other(mutation: Mutation, dtype: Dtype) -> None:
    found = results_of(dtype, ended=mutation)
    assert [each.row["verified"] for each in found] == [True, False, True]
    assert f"of {COMMANDS} outputs wrong (first: " in found[1].row["status"]


def ends_early(consumer: Consumer) -> None:
    timing = consumer._timing
    consumer._timing = replace(timing, span=replace(timing.span, end_ns=timing.start_ns + 1_000))


def launches_take_no_time(consumer: Consumer) -> None:
    launches = consumer.recorder.launches
    launches[:, LaunchColumn.SUBMIT_END_NS] = launches[:, LaunchColumn.SUBMIT_START_NS]


@pytest.mark.parametrize("mutation", [ends_early, launches_take_no_time])
def test_clocks_that_cannot_be_fail_their_repeat_and_no_other(mutation: Mutation) -> None:
    statuses = [each.row["status"] for each in results_of(Dtype.fp32, ended=mutation)]
    assert statuses[0] == statuses[2] == "ok"
    assert statuses[1].startswith("failed: clocks: ")

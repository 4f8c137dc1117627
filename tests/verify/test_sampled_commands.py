"""A check that compares a sample: which columns and commands, how many, and how often it finds a fault."""

from __future__ import annotations

import numpy as np
import pytest
from support.steps.straight import layers, multiply, operands, output, records_of, small

from launchopt.command import Dtype
from launchopt.verify import commands as checking
from launchopt.verify.commands import CheckSettings, verify
from launchopt.workloads.gemv import gemv

COLUMNS = 16
VICTIM = 7  # the command that a fault befalls


def test_of_many_columns_the_first_and_the_last_are_always_compared_and_the_rest_by_chance() -> None:
    stream = small(n=12)
    arenas, records = operands(stream), records_of(stream)
    multiply(stream, arenas, records)
    target = output(stream, arenas, records[VICTIM])
    caught = np.zeros((12, 20), int)
    for column in range(12):
        target[column, 3] += 9
        caught[column] = [verify(stream, arenas, CheckSettings(4, seed)).wrong for seed in range(20)]
        target[column, 3] -= 9
    assert caught[[0, -1]].all()
    assert (caught.sum(axis=0) == 4).all()
    assert (caught.sum(axis=1) > 0).all()


@pytest.mark.parametrize("most", [1, 2, 11])
def test_as_many_columns_as_asked_for_but_never_less_than_two(most: int) -> None:
    stream = small(n=12)
    arenas = operands(stream)
    multiply(stream, arenas, records_of(stream))
    found = verify(stream, arenas, CheckSettings(most))
    assert found.ok
    assert found.compared_share == pytest.approx(max(2, most) / 12)


class Clock:
    """A clock on which each command takes a second to check."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self._counted = 0
        monkeypatch.setattr(checking.time, "monotonic", lambda: self.now_s)

    def report(self, checked: int) -> None:
        self.now_s += checked - self._counted
        self._counted = checked


@pytest.mark.parametrize(("budget_s", "low", "high"), [(1, 10, 10), (100, 90, 100), (10_000, 400, 400)])
def test_as_many_as_the_time_allows_but_never_none(
    budget_s: float, low: int, high: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = gemv(8, 1, 32, 400, Dtype.fp32, 6)
    arenas = operands(stream)
    multiply(stream, arenas, records_of(stream))
    monkeypatch.setattr(checking, "FIRST_FLOPS", 10 * 2 * 8 * 32)  # ten commands
    found = verify(stream, arenas, CheckSettings(COLUMNS, report=Clock(monkeypatch).report, budget_s=budget_s))
    assert found.ok
    assert low <= found.checked <= high
    assert found.compared_share == pytest.approx(found.checked / 400)


def test_a_sample_is_random_and_finds_one_fault_as_often_as_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = gemv(8, 1, 32, 100, Dtype.fp32, 6)
    arenas, records = operands(stream), records_of(stream)
    multiply(stream, arenas, records)
    output(stream, arenas, records[VICTIM])[:] = 0
    monkeypatch.setattr(checking, "FIRST_FLOPS", 25 * 2 * 8 * 32)
    settings = [CheckSettings(COLUMNS, seed, budget_s=1e-9) for seed in range(200)]
    found = [verify(stream, arenas, each) for each in settings]
    assert {each.checked for each in found} == {25}
    assert np.mean([each.wrong for each in found]) == pytest.approx(0.25, abs=0.1)


def test_of_several_shapes_each_is_sampled() -> None:
    stream = layers(Dtype.fp16)
    arenas, records = operands(stream), records_of(stream)
    multiply(stream, arenas, records)
    found = verify(stream, arenas, CheckSettings(COLUMNS, budget_s=1e-9))
    assert len(stream.shapes) <= found.checked <= stream.commands

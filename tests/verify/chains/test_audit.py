"""An audit finds what a check after the run cannot: faults in the middle of a run that its tokens hide.

What runs is `program_interpreter.Run`. Behind each step it tells the audit that the step has ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.steps.program_interpreter import NONE, Change, Run, unchanged
from support.steps.programs import PROGRAMS, stream_of
from support.steps.stream_steps import steps_of

from launchopt.command import Dtype, Records
from launchopt.devices.arenas import from_float32, to_float32
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainStream
from launchopt.verify.chains import audit as auditing
from launchopt.verify.chains.audit import Audit, Audited
from launchopt.verify.chains.steps import StepCheck, Steps
from launchopt.verify.commands import CheckSettings
from launchopt.verify.findings import Findings

GREEDY = Sampling(SamplingKind.greedy)
SIZES = [(0, 6), (7, 8), (5, 3), (1, 9)]
LAYERS = 4
VICTIM, STEP, LAYER = 1, 5, 2  # request, step and layer with a fault: in the middle of each
FULL = CheckSettings(16, full=True)


class AuditedRun(Run):
    """A run whose steps are audited. It has the findings once it is made."""

    def __init__(
        self, stream: ChainStream, sampling: Sampling, change: Change = unchanged, settings: CheckSettings = FULL
    ) -> None:
        self._settings, self._audit = settings, None
        super().__init__(stream, sampling, change)
        assert self._audit is not None
        self.found: Audited = self._audit.result()

    def _feed_back(self, record: Records, is_stale: bool) -> None:
        super()._feed_back(record, is_stale)
        if self._audit is None:
            given = (self.stream, self.arenas, self.stream.table, self._steps.done, self._settings)
            self._audit: Audit | None = Audit(*given, frozenset())
        self._audit.steps_ended(np.array([record["request"][0]], np.int64))


Spoil = Callable[[Any], Any]


def spoiled(name: str, spoil: Spoil, victim: int = VICTIM, steps: tuple[int, ...] = (STEP,)) -> Change:
    """Change the output of a node of the layer LAYER, in these steps of a request, before anything reads it."""

    def change(run: Run, request: int, step: int, records: Records) -> Records:
        if request != victim or step not in steps:
            return records
        rows = run.stream.rows(run.stream.kinds.index(steps_of(run.stream, request)[step]))
        for row, record in zip(rows, records, strict=True):
            run.execute(record)
            if (row.name, row.layer) == (name, LAYER):
                output = run.operands(record)[2]
                output[:] = from_float32(spoil(to_float32(output, run.stream.dtype)), run.stream.dtype)
        return records[:0]

    return change


def one_element_zero(output: Any) -> Any:
    output[0, np.abs(output[0]).argmax()] = 0
    return output


def one_head_scaled(output: Any) -> Any:
    output[:, :8] *= np.float32(0.98)
    return output


def one_activation_larger(output: Any) -> Any:
    output[0, np.abs(output[0]).argmax()] *= np.float32(1.5)
    return output


SPOILS = {
    "an element is zero": ("o", one_element_zero),
    "a head is scaled by 0.98": ("av", one_head_scaled),
    "an activation is 1.5 times too large": ("silu_mul", one_activation_larger),
}


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("sampling", [NONE, GREEDY], ids=lambda sampling: sampling.kind.name)
def test_all_parts_of_a_right_run_pass(name: str, sampling: Sampling, dtype: Dtype) -> None:
    for replicas, chunk in ((1, None), (3, 2)):
        vocab = None if sampling is NONE else 150
        stream = stream_of(name, SIZES, dtype, LAYERS, replicas, vocab, chunk)
        found = AuditedRun(stream, sampling).found
        assert (found.wrong, found.first_wrong, found.fault) == (0, None, None)
        assert 0.6 < found.share < 1, (
            "of a prompt, only the last layer and the commands outside of the layers can be compared"
        )
        assert found.parts >= sum(len(steps_of(stream, request)) for request in range(len(SIZES))) * LAYERS


def test_steps_that_the_audit_run_leaves_out_count_as_not_compared() -> None:
    stream = stream_of("layer", SIZES, layers=LAYERS, vocab=150, chunk=2)
    arenas = AuditedRun(stream, GREEDY).arenas
    audit = Audit(stream, arenas, stream.table[:1], np.zeros(stream.tokens, np.uint64), FULL, frozenset())
    steps = [steps_of(stream, request) for request in range(len(SIZES))]
    outside = sum(LAYERS + 1 for kinds in steps for kind in kinds)  # a slot map or an LM head, or both
    assert audit.result() == Audited(outside, 0, 0, None)
    assert audit.result().share == 0


def test_all_parts_of_decode_steps_can_be_compared() -> None:
    stream = stream_of("layer", [(0, 5)] * 3, layers=LAYERS, vocab=150)
    found = AuditedRun(stream, GREEDY).found
    assert (found.parts, found.checked) == (15 * (LAYERS + 1),) * 2


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_a_fault_in_the_middle_that_tokens_hide_is_found_and_named(spoil: tuple[str, Spoil], dtype: Dtype) -> None:
    run = AuditedRun(stream_of("layer", SIZES, dtype, LAYERS, vocab=20), GREEDY, spoiled(*spoil))
    assert run.found.wrong >= 1
    assert run.found.first_wrong is not None
    assert f" of step {STEP} of request {VICTIM}: error " in run.found.first_wrong
    assert run.found.fault == f"{run.found.wrong} outputs wrong in the audit run (first: {run.found.first_wrong})"


def test_one_random_layer_finds_a_fault_as_often_as_its_share_says() -> None:
    stream = stream_of("linear_epilogue", [(0, 8)], layers=LAYERS)
    node = stream.program.layer[0].name
    finds, share = 0, 0.0
    for seed in range(60):
        settings = CheckSettings(16, seed)
        run = AuditedRun(stream, NONE, spoiled(node, one_element_zero, 0), settings)
        finds, share = finds + (run.found.wrong > 0), run.found.share
    assert share == 1 / LAYERS
    assert abs(finds - 60 * share) < 4 * math.sqrt(60 * share * (1 - share))


def test_a_fault_in_every_step_is_always_found() -> None:
    stream = stream_of("layer", [(0, 24)], layers=LAYERS, vocab=20)
    change = spoiled("o", one_element_zero, 0, tuple(range(24)))
    for seed in range(5):
        assert AuditedRun(stream, GREEDY, change, CheckSettings(16, seed)).found.wrong


def test_too_little_time_leaves_steps_out_at_random_but_never_all(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stream_of("linear", [(0, 100), (0, 100)], layers=LAYERS)
    now_s = [0.0]
    check = StepCheck.check

    def a_second_a_step(self: StepCheck, findings: Findings, steps: Steps, *rest: Any) -> None:
        now_s[0] += len(steps.requests)
        check(self, findings, steps, *rest)

    monkeypatch.setattr(StepCheck, "check", a_second_a_step)
    monkeypatch.setattr(auditing, "COPIED_BYTES", 8 * stream.lane_units * 256)

    class Slow(AuditedRun):
        def _feed_back(self, record: Records, is_stale: bool) -> None:
            if self._audit is None:
                given = (stream, self.arenas, stream.table, self._steps.done, CheckSettings(16, budget_s=50.0))
                self._audit = Audit(*given, frozenset(), clock=lambda: now_s[0])
            super()._feed_back(record, is_stale)

    found = Slow(stream, NONE).found
    assert found.parts == 200 * LAYERS
    assert 25 <= found.checked <= 60, "a step takes a second"

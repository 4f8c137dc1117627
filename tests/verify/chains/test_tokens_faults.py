"""The token check against one planted fault at a time: it fails and names the wrong token."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from support.steps.checked_tokens import (
    GEMMS,
    GREEDY,
    LAST,
    LINEARS,
    SIZES,
    STEP,
    VICTIM,
    assert_wrong,
    in_each_dtype,
    stream_of,
)
from support.steps.program_interpreter import NONE, Change, Run
from support.steps.stream_steps import steps_of

from launchopt.command import Dtype, Records
from launchopt.sampling import Sampling
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.verify.chains import tokens as checking


def test_the_same_twice_and_whatever_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(stream_of(Dtype.fp16, chunk=2, replicas=2), NONE, only(leave_out(2), VICTIM, STEP))
    whole = run.verify()
    assert whole.wrong == 1
    assert run.verify() == whole
    for chunk_bytes in (1, 3000):
        monkeypatch.setattr(checking, "CHUNK_BYTES", chunk_bytes)
        found = run.verify()
        approximate = {name: getattr(whole, name) for name in ("max_rel_error", "tolerance")}
        for name, value in approximate.items():
            assert getattr(found, name) == pytest.approx(value)  # BLAS adds up in another order
        assert dataclasses.replace(found, **approximate) == whole


def leave_out(at: int) -> Change:
    return lambda run, request, step, records: np.delete(records, at)


def too_early(at: int) -> Change:
    """A command and its successor in the wrong order."""

    def change(run: Run, request: int, step: int, records: Records) -> Records:
        order = np.arange(len(records))
        order[[at, at + 1]] = at + 1, at
        return records[order]

    return change


def other_lane(at: int) -> Change:
    def change(run: Run, request: int, step: int, records: Records) -> Records:
        records["slot_b"][at] -= run.stream.lane_units
        return records

    return change


def other_output(at: int) -> Change:
    """What it gives goes to where nobody looks for it."""

    def change(run: Run, request: int, step: int, records: Records) -> Records:
        records["slot_c"][at] = records["slot_c"][at - 1]
        return records

    return change


def other_weight(at: int) -> Change:
    """That of the next layer."""

    def change(run: Run, request: int, step: int, records: Records) -> Records:
        records["slot_a"][at] += 1
        return records

    return change


def other_replica(at: int) -> Change:
    def change(run: Run, request: int, step: int, records: Records) -> Records:
        token = int(records["token"][-1])
        moves = run.stream.replica_moves[: len(records)]  # decode steps are the first kind
        replica = token % run.stream.replicas
        records["slot_a"][at] += (((replica + 1) % run.stream.replicas) - replica) * moves[at]
        return records

    return change


def nan(at: int) -> Change:
    """A command gives one NaN: its successor reads it."""

    def change(run: Run, request: int, step: int, records: Records) -> Records:
        for record in records[: at + 1]:
            run.execute(record)
        run.set(run.operands(records[at])[2], (0, 3), math.nan)
        return records[at + 1 :]

    return change


FAULTS: dict[str, Callable[[int], Change]] = {
    "left out": leave_out,
    "before the one it reads": too_early,
    "reads another's lane": other_lane,
    "writes elsewhere": other_output,
    "wrong layer": other_weight,
    "wrong replica": other_replica,
    "NaN": nan,
}


def only(change: Change, request: int, step: int) -> Change:
    """The change to that step alone."""

    def changed(run: Run, of: int, at: int, records: Records) -> Records:
        return change(run, of, at, records) if (of, at) == (request, step) else records

    return changed


@in_each_dtype
@pytest.mark.parametrize("sampling", [NONE, GREEDY], ids=lambda sampling: sampling.kind.name)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", [1, 3, GEMMS - 2])
def test_a_fault_in_the_middle_of_a_request_is_found_in_its_token(
    fault: str, at: int, dtype: Dtype, sampling: Sampling
) -> None:
    """Only there: what follows goes on from what was computed, so that it is right again."""
    if (fault, at) == ("wrong layer", GEMMS - 2):
        at -= len(LINEARS)
    stream = stream_of(dtype, sampling, replicas=3)
    run = Run(stream, sampling, only(FAULTS[fault](at), VICTIM, STEP))
    if fault == "NaN" and sampling is NONE:  # without an id there is no way back from it
        assert_wrong(run, wrong=None)
    else:
        assert_wrong(run)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_first_step_is_found_in_the_first_token(fault: str) -> None:
    run = Run(stream_of(replicas=3), NONE, only(FAULTS[fault](1), VICTIM, 0))
    found = run.verify()
    assert not found.ok
    assert found.first_wrong is not None
    assert found.first_wrong.startswith(f"token 0 of request {VICTIM}: error ")


@pytest.mark.parametrize("at", range(GEMMS))
@pytest.mark.parametrize("fault", ["left out", "wrong replica", "NaN"])
def test_a_fault_in_the_last_step_is_found_in_its_token_and_in_its_commands(fault: str, at: int) -> None:
    run = Run(stream_of(replicas=3), NONE, only(FAULTS[fault](at), VICTIM, LAST))
    assert_wrong(run, token=LAST, wrong=None)
    assert run.verify().wrong >= 2


def test_a_head_left_out_gives_the_token_before() -> None:
    """Its logits are those of the step before, which are right for another input."""
    run = Run(stream_of(sampling=GREEDY), GREEDY, only(leave_out(GEMMS), VICTIM, STEP))
    first = int(run.stream.table[VICTIM, ChainColumn.FIRST_TOKEN])
    assert run.ids[first + STEP] == run.ids[first + STEP - 1]
    assert_wrong(run)


@in_each_dtype
@pytest.mark.parametrize("sampling", [NONE, GREEDY], ids=lambda sampling: sampling.kind.name)
def test_what_was_not_fed_back_is_found_in_the_token_after(dtype: Dtype, sampling: Sampling) -> None:
    stream = stream_of(dtype, sampling)
    assert_wrong(Run(stream, sampling, stale=(VICTIM, STEP)), token=STEP + 1)


@in_each_dtype
def test_commands_in_any_order_fail(dtype: Dtype) -> None:
    """As `ordering=violated` has it: by shape instead of one after another."""

    def by_shape(run: Run, request: int, step: int, records: Records) -> Records:
        return records[np.lexsort((records["m"], records["k"]))]

    run = Run(stream_of(dtype), NONE, by_shape)
    assert_wrong(run, token=0, request=0, wrong=None)
    assert run.verify().wrong >= run.stream.tokens


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("at", range(GEMMS))
def test_a_command_left_out_of_a_prompt_is_found_in_the_first_token(at: int, chunk: int | None) -> None:
    """Of the prompt's last step, whose last column the token comes from."""
    stream = stream_of(chunk=chunk)
    step = len(steps_of(stream, 2)) - SIZES[2][1]
    run = Run(stream, NONE, only(leave_out(at), 2, step))
    assert_wrong(run, token=0, request=2, wrong=None)  # all after it, too, where it was never written


def test_a_row_without_an_id_is_named() -> None:
    """NaN among the logits: the id is -1, and the next token starts from row 0."""
    run = Run(stream_of(sampling=GREEDY), GREEDY, only(nan(GEMMS), VICTIM, STEP))
    number = int(run.stream.table[VICTIM, ChainColumn.FIRST_TOKEN]) + STEP
    assert run.ids[number] == -1
    found = run.verify()
    assert found.wrong == 1
    assert found.first_wrong == f"token {STEP} of request {VICTIM}: id -1 does not follow from its logits"

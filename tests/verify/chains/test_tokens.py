"""The check of tokens and last steps: correct runs pass, and one wrong element or id is found and named."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.steps.checked_tokens import (
    GEMMS,
    GREEDY,
    LAST,
    LINEARS,
    SAMPLINGS,
    STEP,
    VICTIM,
    VOCAB,
    assert_wrong,
    in_each_dtype,
    stream_of,
)
from support.steps.program_interpreter import NONE, Run

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.devices.arenas import to_float32
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.model import ModelShape
from launchopt.verify.chains import tokens as checking
from launchopt.verify.commands import CheckSettings, Verification

READ = 16  # features of qkv that the next GEMM reads; k and v are the 16 behind them


def assert_right(run: Run) -> Verification:
    found = run.verify()
    assert found.ok
    assert (found.commands, found.wrong, found.first_wrong) == (run.stream.commands, 0, None)
    # In half precision an op with exact inputs may use up the one rounding that is allowed.
    assert 0 < found.max_rel_error < found.tolerance / (2 if run.stream.dtype is Dtype.fp32 else 1)
    return found


@in_each_dtype
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("chunk", [None, 2, 1], ids=lambda chunk: f"chunk {chunk}")
def test_what_is_right_passes(dtype: Dtype, sampling: Sampling, chunk: int | None) -> None:
    for replicas in (1, 3):
        stream = stream_of(dtype, sampling, replicas=replicas, chunk=chunk)
        found = assert_right(Run(stream, sampling))
        assert 0 < found.compared_share < 1


@in_each_dtype
def test_what_is_right_passes_whatever_its_size(dtype: Dtype) -> None:
    """Room is left, with more layers than rounding errors need to add up."""
    model = ModelShape("deep", 256, 12, 4, 2, 64, 512).linear_sizes()
    requests = Requests(np.zeros(3, np.int64), np.arange(3) * 3, np.full(3, 4))
    assert_right(Run(ChainStream(model, 12, requests, dtype, 2)))


@pytest.mark.parametrize("sampling", [NONE, GREEDY], ids=lambda sampling: sampling.kind.name)
@pytest.mark.parametrize("sizes", [[(0, 1)], [(6, 1)], [(1, 1)], [(6, 0)], [(0, 9)]], ids=str)
def test_the_smallest_streams_pass(sampling: Sampling, sizes: list[tuple[int, int]]) -> None:
    assert_right(Run(stream_of(sampling=sampling, sizes=sizes), sampling))


def test_every_command_of_the_last_decode_step_is_compared() -> None:
    requests = 3
    found = assert_right(Run(stream_of(sizes=[(0, 1)] * requests)))
    assert found.compared_share == 1
    found = assert_right(Run(stream_of(sizes=[(0, 4)] * requests)))
    assert found.compared_share == pytest.approx(1 / 4)


def test_as_many_columns_of_a_prompt_as_asked_for() -> None:
    """Each by chance: none is safe from being looked at."""
    run = Run(stream_of(sizes=[(12, 1)]))
    *_, down = run.records(0, 0)
    output = run.operands(down)[2]
    caught = np.zeros((12, 30), int)
    for column in range(11):  # the last is a token, too
        kept = output[column, 3]
        output[column, 3] += 9
        caught[column] = [run.verify(columns=4, seed=seed).wrong for seed in range(30)]
        output[column, 3] = kept
    assert (caught[:11].sum(axis=1) > 0).all()
    assert (caught[:11].sum(axis=1) < 30).all()
    assert run.verify(columns=4).ok


@pytest.mark.parametrize("at", range(GEMMS))
@in_each_dtype
def test_one_wrong_element_of_a_last_step_is_found_wherever_it_is(at: int, dtype: Dtype) -> None:
    """Also where no later GEMM reads it, as in k and v."""
    run = Run(stream_of(dtype, replicas=2))
    record = run.records(VICTIM, LAST)[at]
    output = run.operands(record)[2]
    name = f"{record['m']}x1x{record['k']}, command {at} of the last step of request {VICTIM}: error "
    for feature in {0, READ - 1, int(record["m"]) - 1}:
        kept = output[0, feature]
        for value in (to_float32(output[0, feature : feature + 1], dtype)[0] + 0.5, math.nan):
            run.set(output, (0, feature), value)
            found = run.verify()
            assert 1 <= found.wrong <= 2  # its successor may read it, too
            assert found.first_wrong is not None
            assert found.first_wrong.startswith(name)
        output[0, feature] = kept
    assert run.verify().ok


@pytest.mark.parametrize("sampling", [NONE, GREEDY], ids=lambda sampling: sampling.kind.name)
def test_one_wrong_element_of_a_prompt_without_further_tokens_is_found(sampling: Sampling) -> None:
    """In any column of the last layer, where nothing was written over what was read."""
    request = 3
    run = Run(stream_of(sampling=sampling), sampling)
    records = run.records(request, 0)
    for at in range(GEMMS - len(LINEARS) + 1, len(records)):
        record = records[at]
        output = run.operands(record)[2]
        for column in range(int(record["n"])):
            kept = output[column, 5]
            output[column, 5] += 1
            found = run.verify()
            assert 1 <= found.wrong <= 2
            assert found.first_wrong is not None
            assert f"command {at} of the last step of request {request}: error " in found.first_wrong
            output[column, 5] = kept
    assert run.verify().ok


@in_each_dtype
@pytest.mark.parametrize("token", range(LAST + 1))
def test_a_token_that_was_not_kept_is_named(dtype: Dtype, token: int) -> None:
    run = Run(stream_of(dtype))
    number = int(run.stream.table[VICTIM, ChainColumn.FIRST_TOKEN]) + token
    run.set(run.arenas.arrays[run.stream.history], (number, 7), math.nan)
    found = run.verify()
    assert found.max_rel_error == math.inf
    assert_wrong(run, token=token, wrong=None)
    # The token after it is judged from what is no number; so is the last step's first command, where that is next.
    assert found.wrong == (1 if token == LAST else 2 if token < LAST - 1 else 3)


@pytest.mark.parametrize("sampling", [value for value in SAMPLINGS.values() if value is not NONE], ids=str)
@pytest.mark.parametrize("dtype", [Dtype.fp32, Dtype.fp16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("by", [-1, 1, VOCAB, -VOCAB, 2**31 - 1 - VOCAB])
def test_another_id_than_was_sampled_is_named(sampling: Sampling, dtype: Dtype, by: int) -> None:
    run = Run(stream_of(dtype, sampling), sampling)
    number = int(run.stream.table[VICTIM, ChainColumn.FIRST_TOKEN]) + STEP
    run.ids[number] += by
    found = run.verify()
    assert not found.ok
    assert found.first_wrong is not None
    here, after = (
        f"token {STEP + i} of request {VICTIM}: id {run.ids[number + i]} does not follow from its logits"
        for i in (0, 1)
    )
    # A drawn id's neighbour may be as good as itself; what comes after it was not computed from its row.
    assert found.first_wrong == here or (
        sampling.kind in (SamplingKind.top_k, SamplingKind.top_p) and found.first_wrong == after
    )


def test_not_more_is_wrong_than_there_is() -> None:
    run = Run(stream_of(sizes=[(0, 1), (4, 1)]))
    for name in (run.stream.history, run.stream.activations):
        filled, _ = run.stream.fills.get(name, (0, 0.0))
        run.arenas.arrays[name][filled:] = np.nan
    found = run.verify()
    assert not found.ok
    assert found.wrong <= found.commands


def test_of_many_sampled_tokens_some_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "SAMPLED_IDS", 8)
    run = Run(stream_of(sampling=GREEDY, sizes=[(0, 10)] * 3), GREEDY)
    assert run.verify().ok
    run.ids += 1
    wrong = [run.verify(seed=seed) for seed in range(5)]
    assert {found.wrong for found in wrong} == {8 + 3}  # and the first command of each request's last step
    assert len({found.first_wrong for found in wrong}) > 1


def test_one_wrong_id_of_thousands_is_always_found() -> None:
    run = Run(stream_of(sampling=GREEDY, sizes=[(0, 1_000)] * 3), GREEDY)
    run.ids[1_234] += 1
    assert [run.verify(seed=seed).wrong > 0 for seed in range(3)] == [True] * 3


def test_all_ids_are_checked_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "SAMPLED_IDS", 2)
    run = Run(stream_of(sampling=GREEDY, sizes=[(0, 10)] * 3), GREEDY)
    run.ids += 1
    settings = CheckSettings(16, full=True)
    assert checking.verify_chain(run.stream, run.arenas, run.sampling, run.ids, settings).wrong == 30 + 3

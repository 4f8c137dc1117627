"""The check of requests passes what is right and, one fault at a time, fails what is wrong and says where."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from support.steps.program_interpreter import NONE, Change, Run, steps_of

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype, Records
from launchopt.devices.arenas import to_float32
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams import chain as ch
from launchopt.streams.chain import ChainSettings, ChainStream
from launchopt.streams.model import ModelShape
from launchopt.verify import tokens as checking
from launchopt.verify.commands import Verification

LAYERS = 2
SMALL = ModelShape("small", 16, LAYERS, 2, 1, 8, 24)
LINEARS = SMALL.linear_sizes()  # qkv 32x16, o 16x16, gate and up 48x16, down 16x24
GEMMS = LAYERS * len(LINEARS)
READ = 16  # features of qkv that the next GEMM reads; k and v are the 16 behind them
VOCAB = 256
COLUMNS = 16
SIZES = [(0, 4), (0, 5), (5, 4), (3, 1)]  # prompt and output tokens of each request
VICTIM, STEP = 1, 2  # the request that a fault befalls, and in which of its steps: neither its first nor its last
LAST = 4

GREEDY = Sampling(SamplingKind.greedy)
SAMPLINGS = {
    "none": NONE,
    "greedy": GREEDY,
    "top_k": Sampling(SamplingKind.top_k, 0.7, top_k=8, seed=3),
    "top_p": Sampling(SamplingKind.top_p, 1.3, top_p=0.9, seed=4),
}
in_each_dtype = pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)


def stream_of(
    dtype: Dtype = Dtype.fp32,
    sampling: Sampling = NONE,
    sizes: Sequence[tuple[int, int]] = SIZES,
    replicas: int = 1,
    chunk: int | None = None,
) -> ChainStream:
    prompts, outputs = (np.array(column, np.int64) for column in zip(*sizes, strict=True))
    requests = Requests(np.zeros(len(sizes), np.int64), prompts, outputs)
    vocab = None if sampling is NONE else VOCAB
    return ChainStream(LINEARS, LAYERS, requests, dtype, replicas, ChainSettings(vocab, chunk, 5))


def assert_right(run: Run) -> Verification:
    found = run.verify()
    assert found.ok
    assert (found.commands, found.wrong, found.first_wrong) == (run.stream.commands, 0, None)
    assert 0 < found.max_rel_error < found.tolerance / 2
    return found


def assert_wrong(run: Run, *, token: int = STEP, request: int = VICTIM, wrong: int | None = 1) -> None:
    found = run.verify()
    assert not found.ok
    assert wrong is None or found.wrong == wrong
    assert found.first_wrong is not None
    assert found.first_wrong.startswith(f"token {token} of request {request}: ")
    if run.sampling is NONE:
        assert found.max_rel_error > found.tolerance


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
    "before its predecessor": too_early,
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
    first = int(run.stream.table[VICTIM, ch.FIRST_TOKEN])
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
    number = int(run.stream.table[VICTIM, ch.FIRST_TOKEN]) + token
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
    number = int(run.stream.table[VICTIM, ch.FIRST_TOKEN]) + STEP
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


def test_a_row_without_an_id_is_named() -> None:
    """NaN among the logits: the id is -1, and the next token starts from row 0."""
    run = Run(stream_of(sampling=GREEDY), GREEDY, only(nan(GEMMS), VICTIM, STEP))
    number = int(run.stream.table[VICTIM, ch.FIRST_TOKEN]) + STEP
    assert run.ids[number] == -1
    found = run.verify()
    assert found.wrong == 1
    assert found.first_wrong == f"token {STEP} of request {VICTIM}: id -1 does not follow from its logits"


def test_not_more_is_wrong_than_there_is() -> None:
    run = Run(stream_of(sizes=[(0, 1), (4, 1)]))
    for name in (run.stream.history, run.stream.activations):
        filled, _ = run.stream.fills.get(name, (0, 0.0))
        run.arenas.arrays[name][filled:] = np.nan
    found = run.verify()
    assert not found.ok
    assert found.wrong <= found.commands


def test_of_many_sampled_tokens_some_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MOST_SAMPLED", 8)
    run = Run(stream_of(sampling=GREEDY, sizes=[(0, 10)] * 3), GREEDY)
    assert run.verify().ok
    run.ids += 1
    wrong = [run.verify(seed=seed) for seed in range(5)]
    assert {found.wrong for found in wrong} == {8 + 3}  # and the first command of each request's last step
    assert len({found.first_wrong for found in wrong}) > 1

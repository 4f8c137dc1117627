"""The check of programs passes what is right and, one fault at a time, fails what is wrong and says where."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.steps.program_interpreter import NONE, Run
from support.steps.programs import PROGRAMS, stream_of
from support.steps.stream_steps import steps_of

from launchopt.command import Dtype, Op
from launchopt.devices.arenas import to_float32
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.chains.lengths import StepKind
from launchopt.verify.chains import tokens as checking
from launchopt.verify.chains.tokens import verify_chain
from launchopt.verify.commands import CheckSettings, Verification

GREEDY = Sampling(SamplingKind.greedy)
SIZES = [(0, 4), (7, 5), (5, 3), (1, 6)]
LAYERS = 3
VICTIM, STEP, LAST = 1, 3, 4  # its prompt is step 0, its last token's step 4
in_each_dtype = pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
with_attention = pytest.mark.parametrize("name", ["layer", "paged"])


def assert_right(run: Run, unwritten: frozenset[str] = frozenset()) -> Verification:
    found = verify_chain(run.stream, run.arenas, run.sampling, run.ids, CheckSettings(16), unwritten)
    assert found.ok, found
    assert (found.commands, found.first_wrong) == (run.stream.commands, None)
    # In fp32, 2.5 times too large a deviation, and 8 of them; in half precision, the one rounding that is allowed.
    assert 0 < found.max_rel_error < found.tolerance / (3 if run.stream.dtype is Dtype.fp32 else 1)
    assert 0 < found.compared_share <= 1
    return found


def assert_wrong(run: Run, where: str) -> Verification:
    found = run.verify()
    assert not found.ok
    assert found.max_rel_error > found.tolerance or run.sampling is not NONE
    assert found.first_wrong is not None
    assert found.first_wrong.startswith(where), found.first_wrong
    return found


@in_each_dtype
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("sampling", [NONE, GREEDY], ids=lambda sampling: sampling.kind.name)
def test_what_is_right_passes(name: str, dtype: Dtype, sampling: Sampling) -> None:
    for replicas, chunk in ((1, None), (3, 2)):
        vocab = None if sampling is NONE else 150
        assert_right(Run(stream_of(name, SIZES, dtype, LAYERS, replicas, vocab, chunk), sampling))


@in_each_dtype
@with_attention
def test_what_is_right_passes_however_deep(name: str, dtype: Dtype) -> None:
    """The bound grows with the error, not ahead of it: a fault of the order of the output stays far above it."""
    run = Run(stream_of(name, [(5, 3), (0, 4)], dtype, layers=16))
    found = assert_right(run)
    assert found.tolerance < 150 * dtype.unit_roundoff
    final = run.arenas.arrays[run.stream.history][0]
    kept, wide = final.copy(), to_float32(final, dtype)
    for feature in range(5):
        run.set(final, feature, float(wide[feature]) + 1.5 * float(wide[: run.stream.hidden].std()))
        assert_wrong(run, "token 0 of request 0: error")
        final[:] = kept


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("sizes", [[(0, 1)], [(6, 1)], [(1, 1)], [(0, 9)]], ids=str)
def test_the_smallest_streams_pass(name: str, sizes: list[tuple[int, int]]) -> None:
    for layers in (1, 2):
        for chunk in (None, 4):
            assert_right(Run(stream_of(name, sizes, layers=layers, chunk=chunk)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_command_of_the_last_decode_step_is_compared(name: str) -> None:
    stream = stream_of(name, [(0, 1)] * 3, layers=2)
    assert assert_right(Run(stream)).compared_share == 1
    stream = stream_of(name, [(0, 4)] * 3, layers=2)
    writes = 2 * sum(node.op is Op.KV_WRITE for node in stream.program.layer)  # of caches all are
    share = (stream.commands_per_step + 3 * writes) / (4 * stream.commands_per_step)
    assert assert_right(Run(stream)).compared_share == pytest.approx(share)


@with_attention
def test_every_write_of_a_prompts_chunks_is_compared(name: str) -> None:
    stream = stream_of(name, [(7, 1)], layers=2, chunk=3)
    last = 1 + 14  # of two layers the last, and the slot map
    assert assert_right(Run(stream)).compared_share == pytest.approx((last + 2 * 2) / stream.commands)


@in_each_dtype
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "square"])
def test_one_wrong_element_of_a_last_step_is_found_wherever_it_is(name: str, dtype: Dtype) -> None:
    run = Run(stream_of(name, SIZES, dtype, LAYERS, replicas=2))
    records = run.records(VICTIM, LAST)
    kind = run.stream.kinds.index(StepKind(1, False, True))
    for at, (row, record) in enumerate(zip(run.stream.rows(kind), records, strict=True)):
        if row.op in (Op.SLOT_MAP, Op.KV_WRITE):
            continue
        output = run.operands(record)[2]
        where = f"{run.stream.shape_of(row)}, command {at} of the last step of request {VICTIM}: error "
        last = row.m - 1
        if row.op in (Op.QK, Op.SOFTMAX):
            assert run.stream.attention is not None
            last = 11 - 1  # of the first head: position 10 is its last
            unseen = output[0, 11 : run.stream.attention.ctx]
            assert np.isnan(to_float32(unseen, dtype)).all()
        faults = (0.5, math.nan) if at % 2 else (math.nan, 0.5)  # of its first, its last element
        for feature, fault in zip((0, last), faults, strict=True):
            kept = output[0, feature]
            run.set(output, (0, feature), to_float32(output[0, feature : feature + 1], dtype)[0] + fault)
            found = assert_wrong(run, where)
            assert 1 <= found.wrong <= 4  # whoever reads it
            output[0, feature] = kept
    assert run.verify().ok


@with_attention
def test_wrong_slots_are_found(name: str) -> None:
    run = Run(stream_of(name, SIZES, layers=LAYERS))
    record = run.records(VICTIM, LAST)[0]
    assert record["op"] == Op.SLOT_MAP
    run.operands(record)[2][0] += 1
    assert_wrong(run, f"slot_map:1x1x1, command 0 of the last step of request {VICTIM}: error ")


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_wrong_element_of_a_prompt_without_further_tokens_is_found(name: str) -> None:
    """In any column of any command of the last layer, its first and its residuals among them."""
    run = Run(stream_of(name, [(5, 1), (0, 2)], layers=3, chunk=3))
    step = len(steps_of(run.stream, 0)) - 1
    records, kind = run.records(0, step), run.stream.kinds.index(StepKind(2, True, True))
    for at, (row, record) in enumerate(zip(run.stream.rows(kind), records, strict=True)):
        if row.layer != 2 or row.op is Op.KV_WRITE:
            continue
        output = run.operands(record)[2]
        for column in range(2):
            kept = output[column, 3]
            output[column, 3] += 1
            found = run.verify()
            assert not found.ok
            assert f"command {at} of the last step of request 0: error " in str(found.first_wrong)
            output[column, 3] = kept
    assert run.verify().ok


def poisoned(run: Run, names: frozenset[str]) -> Run:
    """As if one launch had done these nodes and what follows them."""
    for request in range(run.stream.requests):
        step = len(steps_of(run.stream, request)) - 1
        kind = run.stream.kinds.index(steps_of(run.stream, request)[step])
        for row, record in zip(run.stream.rows(kind), run.records(request, step), strict=True):
            if row.name in names:
                run.operands(record)[2][:] = from_nan(run)
    return run


def from_nan(run: Run) -> Any:
    return 0xFFFF if run.stream.dtype is Dtype.bf16 else math.nan


@in_each_dtype
@pytest.mark.parametrize(
    ("name", "unwritten"),
    [
        ("elementwise", {"bias", "relu"}),
        ("linear_epilogue", {"gemm", "bias"}),
        ("layer", {"qk", "softmax"}),
        ("paged", {"o", "norm2", "relu", "qk", "softmax"}),
    ],
)
def test_outputs_that_one_launch_did_not_write_are_passed_over(name: str, unwritten: set[str], dtype: Dtype) -> None:
    names = frozenset(unwritten)
    run = poisoned(Run(stream_of(name, SIZES, dtype, LAYERS)), names)
    assert not run.verify().ok
    assert_right(run, names)
    records = run.records(VICTIM, LAST)
    last = next(i for i in range(len(records) - 1, -1, -1) if records["op"][i] != Op.KV_WRITE)
    output = run.operands(records[last])[2]
    run.set(output, (0, 2), float(to_float32(output[0, 2:3], dtype)[0]) + 0.5)
    assert not verify_chain(run.stream, run.arenas, run.sampling, run.ids, CheckSettings(16), names).ok


def test_of_many_sampled_requests_some_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "SAMPLED_IDS", 6)
    run = Run(stream_of("layer", [(2, 3)] * 9, layers=1, vocab=150), GREEDY)
    assert run.verify().ok
    first = run.stream.table[:, ChainColumn.FIRST_TOKEN]
    run.ids[first] = (run.ids[first] + 1) % 150
    wrong = [run.verify(seed=seed).first_wrong for seed in range(6)]
    assert len(set(wrong)) > 1
    assert all(each is not None and each.startswith("token 0 of request ") for each in wrong)


@pytest.mark.parametrize(("name", "vocab"), [("layer", None), ("elementwise", None), ("layer", 150)])
def test_the_progress_of_a_check_ends_at_all_commands(name: str, vocab: int | None) -> None:
    run, seen = Run(stream_of(name, [(2, 3)] * 4, layers=2, vocab=vocab), NONE if vocab is None else GREEDY), []
    settings = CheckSettings(16, report=seen.append)
    assert verify_chain(run.stream, run.arenas, run.sampling, run.ids, settings).ok
    assert len(seen) > 4
    assert seen == sorted(seen)
    assert seen[-1] == run.stream.commands

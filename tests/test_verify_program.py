"""The check of programs passes what is right and, one fault at a time, fails what is wrong and says where."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from program_interpreter import NONE, Change, Run, records_of, steps_of
from programs import PROGRAMS, stream_of

from launchopt import verify_chain as checking
from launchopt.command import Dtype, Op, Records
from launchopt.devices.arenas import to_float32
from launchopt.sampling import Sampling, SamplingKind
from launchopt.verify import Verification
from launchopt.verify_chain import verify_chain
from launchopt.workloads import chain as ch
from launchopt.workloads.chain import ChainStream, StepKind

GREEDY = Sampling(SamplingKind.greedy)
SIZES = [(0, 4), (7, 5), (5, 3), (1, 6)]
LAYERS = 3
VICTIM, STEP, LAST = 1, 3, 4  # its prompt is step 0, its last token's step 4
in_each_dtype = pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
with_attention = pytest.mark.parametrize("name", ["layer", "paged"])


def assert_right(run: Run, unwritten: frozenset[str] = frozenset()) -> Verification:
    found = verify_chain(run.stream, run.arenas, run.sampling, run.ids, 16, 0, unwritten)
    assert found.ok, found
    assert (found.commands, found.first_wrong) == (run.stream.commands, None)
    assert 0 < found.max_rel_error < found.tolerance / 3  # 2.5 times too large a deviation, and 8 of them
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


def test_the_same_whatever_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(stream_of("paged", SIZES, Dtype.fp16, LAYERS, 2, chunk=3), NONE, only(leave_out("o"), VICTIM, STEP))
    whole = run.verify()
    for chunk_bytes in (1, 100_000):
        monkeypatch.setattr(checking, "CHUNK_BYTES", chunk_bytes)
        found = run.verify()
        assert (found.wrong, found.compared_share) == (whole.wrong, whole.compared_share)
        assert found.max_rel_error == pytest.approx(whole.max_rel_error)
        assert found.first_wrong == whole.first_wrong


def only(change: Change, request: int, step: int) -> Change:
    """The change to that step alone."""

    def changed(run: Run, of: int, at: int, records: Records) -> Records:
        return change(run, of, at, records) if (of, at) == (request, step) else records

    return changed


def index_of(run: Run, records: Records, name: str, layer: int) -> int:
    kind = next(kind for kind in run.stream.kinds if (len(records) and kind.n == records["n"][0]) or True)
    kind = steps_of(run.stream, int(records["request"][0]))[_step(run, records)]
    rows = run.stream.rows(run.stream.kinds.index(kind))
    return next(i for i, row in enumerate(rows) if (row.name, row.layer) == (name, layer))


def _step(run: Run, records: Records) -> int:
    kinds = steps_of(run.stream, int(records["request"][0]))
    sizes = [len(records_of(run.stream, int(records["request"][0]), step)) for step in range(len(kinds))]
    token = int(records["token"][0])
    return next(
        step
        for step, kind in enumerate(kinds)
        if sizes[step] == len(records) and sum(k.ends_token for k in kinds[:step]) == token and kind.ends_token
    )


def leave_out(name: str, layer: int = 1) -> Change:
    return lambda run, request, step, records: np.delete(records, index_of(run, records, name, layer))


def too_early(name: str, layer: int = 1) -> Change:
    """A command before the one that gives what it reads."""

    def change(run: Run, request: int, step: int, records: Records) -> Records:
        at, order = index_of(run, records, name, layer), np.arange(len(records))
        order[[at - 1, at]] = at, at - 1
        return records[order]

    return change


def slot(role: str, name: str, by: Callable[[ChainStream], int], layer: int = 1) -> Change:
    """Another operand."""

    def change(run: Run, request: int, step: int, records: Records) -> Records:
        at = index_of(run, records, name, layer)
        records[f"slot_{role}"][at] = int(records[f"slot_{role}"][at]) + by(run.stream)
        return records

    return change


def of_another_request(name: str, layer: int = 1) -> Change:
    """Its positions and its pages."""

    def change(run: Run, request: int, step: int, records: Records) -> Records:
        records["request"][index_of(run, records, name, layer)] = request + 1
        return records

    return change


def one_further(run: Run, request: int, step: int, records: Records) -> Records:
    """The request is thought to have a token more than it has, in one step."""
    run.next[request] += 1
    for record in records:
        run.execute(record)
    run.next[request] -= 1
    return records[:0]


def residual_left_out(name: str, layer: int = 1) -> Change:
    """What is added is not what came before, but what was computed from it."""

    def change(run: Run, request: int, step: int, records: Records) -> Records:
        at = index_of(run, records, name, layer)
        records["slot_a"][at] = records["slot_b"][at]
        return records

    return change


FAULTS: dict[str, Change] = {
    **{f"{name} left out": leave_out(name) for name in ("norm1", "qkv", "rope", "kv_write", "qk", "softmax", "av")},
    **{f"{name} left out": leave_out(name) for name in ("o", "add1", "norm2", "down", "add2")},
    **{f"{name} too early": too_early(name) for name in ("qkv", "rope", "kv_write", "softmax", "av", "o", "add2")},
    "o reads another lane": slot("b", "o", lambda stream: stream.lane_units),
    "add1 reads another lane": slot("a", "add1", lambda stream: -stream.lane_units),
    "weight of another layer": slot("a", "o", lambda stream: 1),
    "gain of another": slot("a", "norm2", lambda stream: 1),
    "cache of another layer": slot("a", "qk", lambda stream: 1),
    "values of another layer": slot("a", "av", lambda stream: 1),
    "written to another layer": slot("c", "kv_write", lambda stream: 1),
    "scores of another request": of_another_request("qk"),
    "values of another request": of_another_request("av"),
    "turned by another's position": of_another_request("rope"),
    "softmax over another's length": of_another_request("softmax"),
    "a position further": one_further,
    "add1 without what came before": residual_left_out("add1"),
    "add2 without what came before": residual_left_out("add2"),
}


@in_each_dtype
@with_attention
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_middle_of_a_request_is_found_in_its_token(fault: str, name: str, dtype: Dtype) -> None:
    run = Run(stream_of(name, SIZES, dtype, LAYERS), NONE, only(FAULTS[fault], VICTIM, STEP))
    assert_wrong(run, f"token {STEP} of request {VICTIM}: error ")


@in_each_dtype
@pytest.mark.parametrize("fault", ["o left out", "a position further", "add1 without what came before"])
def test_a_fault_is_found_in_what_is_sampled(fault: str, dtype: Dtype) -> None:
    run = Run(stream_of("layer", SIZES, dtype, LAYERS, vocab=150), GREEDY, only(FAULTS[fault], VICTIM, STEP))
    found = run.verify()
    assert not found.ok
    assert found.first_wrong is not None


@in_each_dtype
@pytest.mark.parametrize("name", ["linear_epilogue", "elementwise", "qkv"])
def test_every_command_left_out_of_a_step_is_found(name: str, dtype: Dtype) -> None:
    """Of k and v alone nobody would know: nothing reads them."""
    stream = stream_of(name, SIZES, dtype, LAYERS)
    for node in stream.program.layer:
        if node.name in ("k", "v"):
            continue
        run = Run(stream, NONE, only(leave_out(node.name), VICTIM, STEP))
        assert_wrong(run, f"token {STEP} of request {VICTIM}: error ")


@with_attention
def test_a_write_that_was_left_out_is_found_however_many_there_are(name: str) -> None:
    """Among a hundred positions bf16 would not show it in any token; the cache does, and in a prompt's chunk."""
    stream = stream_of(name, [(90, 12), (4, 3)], Dtype.bf16, layers=1, chunk=30)
    at = int(stream.asked.context_tokens[0])  # position of step 4, whose token is 2

    def forget(run: Run, request: int, step: int, records: Records) -> Records:
        for record in records:
            run.execute(record)
        assert run.table is not None
        assert stream.attention is not None
        page, within = divmod(at - 1, stream.attention.page_tokens)
        pool = run.operands(records[np.flatnonzero(records["op"] == Op.KV_WRITE)[0]])[2]
        before = to_float32(pool[run.table[0, page], 0, within], Dtype.bf16)
        run.set(pool[run.table[0, page], 0, within, 0], 0, float(before[0, 0]) + 0.3)
        return records[:0]

    found = Run(stream, NONE, only(forget, 0, 2)).verify()
    assert not found.ok
    assert found.first_wrong is not None
    assert found.first_wrong.startswith(f"keys and values of layer 0, position {at - 1} of request 0: error ")


@in_each_dtype
@with_attention
def test_requests_that_changed_places_are_found(name: str, dtype: Dtype) -> None:
    """All the way: their records carry each other's number."""

    def swapped(run: Run, request: int, step: int, records: Records) -> Records:
        pairs = {0: 1, 1: 0}
        for record in records:
            changed = record.copy()
            changed["request"] = pairs.get(request, request)
            run.execute(changed)
        return records[:0]

    found = Run(stream_of(name, [(3, 4), (5, 4), (2, 2)], dtype, 2), NONE, swapped).verify()
    assert not found.ok
    assert found.wrong > 4


@in_each_dtype
@pytest.mark.parametrize("name", PROGRAMS)
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
        for feature in {0, last}:
            kept = output[0, feature]
            for value in (to_float32(output[0, feature : feature + 1], dtype)[0] + 0.5, math.nan):
                run.set(output, (0, feature), value)
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
    assert not verify_chain(run.stream, run.arenas, run.sampling, run.ids, 16, 0, names).ok


def test_of_many_sampled_requests_some_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MOST_SAMPLED", 6)
    run = Run(stream_of("layer", [(2, 3)] * 9, layers=1, vocab=150), GREEDY)
    assert run.verify().ok
    first = run.stream.table[:, ch.FIRST_TOKEN]
    run.ids[first] = (run.ids[first] + 1) % 150
    wrong = [run.verify(seed=seed).first_wrong for seed in range(6)]
    assert len(set(wrong)) > 1
    assert all(each is not None and each.startswith("token 0 of request ") for each in wrong)

"""Faults planted in steps of programs, one at a time: each is found, where it is.

What runs is `program_interpreter.Run`; a fault changes the records of one step before they run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.steps.program_interpreter import NONE, Change, Run
from support.steps.programs import stream_of
from support.steps.stream_steps import steps_of

from launchopt.command import Dtype, Op, Records
from launchopt.devices.arenas import to_float32
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainStream
from launchopt.verify.chains import tokens as checking

GREEDY = Sampling(SamplingKind.greedy)
SIZES = [(0, 4), (7, 5), (5, 3), (1, 6)]
LAYERS = 3
VICTIM, STEP = 1, 3  # its prompt is step 0
in_each_dtype = pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
with_attention = pytest.mark.parametrize("name", ["layer", "paged"])


def only(change: Change, request: int, step: int) -> Change:
    """The change to that step alone."""

    def changed(run: Run, of: int, at: int, records: Records) -> Records:
        return change(run, of, at, records) if (of, at) == (request, step) else records

    return changed


def index_of(run: Run, request: int, step: int, name: str, layer: int) -> int:
    """Which of a step's records is the node's."""
    rows = run.stream.rows(run.stream.kinds.index(steps_of(run.stream, request)[step]))
    return next(i for i, row in enumerate(rows) if (row.name, row.layer) == (name, layer))


def leave_out(name: str, layer: int = 1) -> Change:
    return lambda run, request, step, records: np.delete(records, index_of(run, request, step, name, layer))


def too_early(name: str, layer: int = 1) -> Change:
    """A command before the one that gives what it reads."""

    def change(run: Run, request: int, step: int, records: Records) -> Records:
        at, order = index_of(run, request, step, name, layer), np.arange(len(records))
        order[[at - 1, at]] = at, at - 1
        return records[order]

    return change


def slot(role: str, name: str, by: Callable[[ChainStream], int], layer: int = 1) -> Change:
    """Another operand."""

    def change(run: Run, request: int, step: int, records: Records) -> Records:
        at = index_of(run, request, step, name, layer)
        records[f"slot_{role}"][at] = int(records[f"slot_{role}"][at]) + by(run.stream)
        return records

    return change


def of_another_request(name: str, layer: int = 1) -> Change:
    """Its positions and its pages."""

    def change(run: Run, request: int, step: int, records: Records) -> Records:
        records["request"][index_of(run, request, step, name, layer)] = request + 1
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
        at = index_of(run, request, step, name, layer)
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


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("layer", Dtype.fp32), ("paged", Dtype.fp16), ("layer", Dtype.bf16)],
    ids=["fp32", "fp16", "bf16"],
)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_middle_of_a_request_is_found_in_its_token(fault: str, name: str, dtype: Dtype) -> None:
    """Or, where bf16 leaves room for one key among ten, in the cache."""
    run = Run(stream_of(name, SIZES, dtype, LAYERS), NONE, only(FAULTS[fault], VICTIM, STEP))
    found = run.verify()
    assert not found.ok
    assert found.max_rel_error > found.tolerance
    places = [f"token {STEP} of request {VICTIM}: error "]
    if dtype is Dtype.bf16:  # of the layer itself, or the next
        places += [f"keys and values of layer {i}, position {6 + STEP} of request {VICTIM}: error " for i in (1, 2)]
    assert str(found.first_wrong).startswith(tuple(places))


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
        assert str(run.verify().first_wrong).startswith(f"token {STEP} of request {VICTIM}: error ")


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


def test_the_same_whatever_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(stream_of("paged", SIZES, Dtype.fp16, LAYERS, 2, chunk=3), NONE, only(leave_out("o"), VICTIM, STEP))
    whole = run.verify()
    for chunk_bytes in (1, 100_000):
        monkeypatch.setattr(checking, "CHUNK_BYTES", chunk_bytes)
        found = run.verify()
        assert (found.wrong, found.compared_share) == (whole.wrong, whole.compared_share)
        assert found.max_rel_error == pytest.approx(whole.max_rel_error)
        texts = (result.first_wrong.rpartition(" ") for result in (found, whole))  # the bound comes last, rounded
        (named, _, bound), (expected, _, other) = texts
        assert (named, float(bound)) == (expected, pytest.approx(float(other), rel=0.01))

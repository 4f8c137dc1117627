"""The stream of a list of GEMMs: properties for any list, then the check of its outputs."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.listed import Listed, lists
from support.steps.straight import multiply, operands, records_of

from launchopt.command import Dtype, Flag, Records, ShapeKey
from launchopt.streams.footprint import least_memory_bytes
from launchopt.streams.operands import arenas_of
from launchopt.streams.row_stream import NO_WEIGHT
from launchopt.verify.commands import CheckSettings, verify

properties = settings(deadline=None, max_examples=60)


@properties
@given(lists(), st.integers(1, 3))
def test_commands_come_in_the_order_of_the_list(listed: Listed, repeat: int) -> None:
    stream, wanted = listed.stream(repeat), listed.commands(repeat)
    records = records_of(stream)
    assert records[["m", "n", "k"]].tolist() == [each[:3] for each in wanted]
    assert stream.commands == len(wanted)
    assert stream.counts == Counter(ShapeKey(*each[:3], Dtype.fp32) for each in wanted)
    assert records["seq"].tolist() == records["step"].tolist() == list(range(len(wanted)))
    groups = [each[4:] for each in wanted]
    ends = [number for number, group in enumerate(groups) if groups[number + 1 : number + 2] != [group]]
    assert np.flatnonzero(records["flags"] == Flag.GROUP_END).tolist() == ends
    assert (stream.independent, stream.has_groups, stream.is_serial) == (False, True, True)
    assert stream.ordering(violated=False, mode_keeps_order=False) == "per_request"


@properties
@given(lists(), st.integers(1, 3), st.booleans(), st.integers(0, 5))
def test_shuffled_commands_stay_in_their_group(listed: Listed, repeat: int, kept: bool, seed: int) -> None:
    plain = records_of(listed.stream(repeat, is_kept=kept))
    shuffled = records_of(listed.stream(repeat, is_kept=kept, shuffle=True, seed=seed))
    names = ["m", "n", "k", "slot_a", "slot_b", "slot_c"]
    groups = [(turn, group * kept) for *_, group, turn in listed.commands(repeat)]
    for group in set(groups):
        own = np.array([each == group for each in groups])
        assert sorted(plain[own][names].tolist()) == sorted(shuffled[own][names].tolist())
    for name in ("seq", "request", "step", "flags"):
        assert plain[name].tolist() == shuffled[name].tolist()


@properties
@given(lists(), st.integers(1, 3), st.sampled_from([{"grouped": False}, {"is_kept": False}]))
def test_without_groups_each_command_is_a_request(listed: Listed, repeat: int, order: dict[str, bool]) -> None:
    stream = listed.stream(repeat, **order)
    records = records_of(stream)
    assert records["request"].tolist() == list(range(stream.commands))
    assert not records["flags"].any()
    assert not records["step"].any()
    assert (stream.requests, stream.has_groups, stream.ordered_requests) == (stream.commands, False, 0)
    assert stream.independent == ("grouped" in order)
    ignored = stream.ordering(violated=False, mode_keeps_order=False)
    assert ignored == ("per_request" if stream.independent else "none")


@properties
@given(lists(), st.integers(1, 4), st.integers(1, 3))
def test_a_named_weight_is_one_slot_in_each_pass(listed: Listed, repeat: int, copies: int) -> None:
    stream = listed.stream(repeat, copies)
    slots: dict[tuple[int, ...], set[int]] = {}
    outputs, inputs = Counter[object](), {}
    for record, (m, n, k, weight, _, turn) in zip(records_of(stream), listed.commands(repeat), strict=True):
        a, b, c = arenas_of(ShapeKey(m, n, k, Dtype.fp32))
        assert all(record[f"slot_{arena.role}"] < stream.arenas[arena] for arena in (a, b, c))
        outputs[c, int(record["slot_c"])] += 1
        if weight != NO_WEIGHT:
            slots.setdefault((m, k, weight, turn % stream.copies), set()).add(int(record["slot_a"]))
            pair = (a, int(record["slot_a"]), b, int(record["slot_b"]), turn)
            assert inputs.setdefault(pair, record["seq"]) == record["seq"], "two commands of a pass have equal operands"
    assert set(outputs.values()) == {1}
    assert all(len(each) == 1 for each in slots.values())
    named = {(m, k, min(each)) for (m, k, *_), each in slots.items()}
    assert len(named) == len(slots), "two weights in one slot"
    for record, (m, _, k, weight, *_) in zip(records_of(stream), listed.commands(repeat), strict=True):
        assert weight != NO_WEIGHT or (m, k, int(record["slot_a"])) not in named


@properties
@given(lists(), st.integers(1, 4), st.booleans(), st.integers(1, 9))
def test_less_memory_is_never_asked_for_than_the_bound(
    listed: Listed, repeat: int, shuffle: bool, together: int
) -> None:
    """Successive commands of a shape that read one weight read it once."""
    stream = listed.stream(repeat, copies=2, shuffle=shuffle)
    read = 0
    for shape in stream.shapes:
        records = records_of(stream)
        own = records[(records["m"] == shape.m) & (records["n"] == shape.n) & (records["k"] == shape.k)]["slot_a"]
        batches = [own[first : first + together] for first in range(0, len(own), together)]
        read += shape.weight_bytes * sum(len(np.unique(batch)) for batch in batches)
    assert least_memory_bytes(stream, together, 0) <= read


@properties
@given(lists(), st.integers(1, 3), st.integers(1, 30))
def test_blocks_and_due_times_agree(listed: Listed, repeat: int, block_records: int) -> None:
    due_ns = np.arange(listed.stream(repeat).commands) * 10
    stream = listed.stream(repeat, shuffle=True, due_ns=due_ns)
    blocks = list(stream.blocks(block_records))
    assert np.array_equal(np.concatenate([block.records for block in blocks]), records_of(stream))
    assert [due for block in blocks if block.due_ns is not None for due in block.due_ns] == due_ns.tolist()


def test_a_child_process_gets_columns_and_not_commands() -> None:
    stream = Listed([(4, 2, 8, 1_000_000, NO_WEIGHT, 0)]).stream(shuffle=True)
    next(stream.blocks())
    assert len(pickle.dumps(stream)) < 10_000


MIXED = Listed([(8, 1, 16, 3, 0, 0), (8, 1, 16, 2, 1, 0), (8, 5, 16, 3, NO_WEIGHT, 0), (16, 2, 8, 2, 0, 1)])


def test_every_output_is_checked_and_a_missing_one_found() -> None:
    stream = MIXED.stream(3, copies=2, shuffle=True)
    arenas, records = operands(stream), records_of(stream)
    multiply(stream, arenas, records)
    found = verify(stream, arenas, CheckSettings(256))
    assert (found.ok, found.commands, found.compared_share) == (True, 30, 1.0)
    arenas = operands(stream)
    ran: Records = np.delete(records, 7)
    multiply(stream, arenas, ran)
    found = verify(stream, arenas, CheckSettings(256))
    assert (found.ok, found.wrong) == (False, 1)


@pytest.mark.parametrize("copies", [1, 2])
def test_named_weights_move_by_nothing_within_a_row(copies: int) -> None:
    stream = Listed([(8, 1, 16, 3, 0, 0), (8, 1, 16, 4, 1, 0)]).stream(4, copies)
    assert stream.strides() == {ShapeKey(8, 1, 16, Dtype.fp32): (0, 1, 1)}
    assert stream.batches_share_weights
    assert not stream.weights_in_turn

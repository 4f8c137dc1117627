"""Waits of instructions: every conflict is ordered, no wait is redundant, and any order that respects them is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.devices.instructions.dependencies import JOIN, Span, conflicts, joined, levels, overlaps, reduced

BYTES = 64
properties = settings(deadline=None, max_examples=150)
spans = st.tuples(st.integers(0, 40), st.integers(0, 8), st.integers(0, 12), st.integers(1, 4))
# Of each instruction, the spans that it reads and those that it writes.
programs = st.lists(st.tuples(st.lists(spans, max_size=2), st.lists(spans, max_size=2)), max_size=12)
Program = list[tuple[list[Span], list[Span]]]


def touched(span: Span) -> set[int]:
    first, length, stride, count = span
    return {first + i * stride + byte for i in range(count) for byte in range(length)}


def is_exact(one: Span, other: Span) -> bool:
    counts, strides = {each[3] if each[2] else 1 for each in (one, other)}, {one[2], other[2]}
    return 1 in counts or len(strides) == 1


def conflicting(program: Program) -> Any:
    table = [span for reads, writes in program for span in (*reads, *writes)]
    owners = [i for i, (reads, writes) in enumerate(program) for _ in (*reads, *writes)]
    written = [is_write for reads, writes in program for is_write in (*[False] * len(reads), *[True] * len(writes))]
    spans = np.array(table, np.int64).reshape(-1, 4)
    return conflicts(spans, np.array(owners, np.int64), np.array(written, np.bool_), len(program))


def before(waits: list[list[int]]) -> list[set[int]]:
    """Return for each instruction all that end before it begins."""
    found: list[set[int]] = []
    for own in waits:
        found.append(set(own).union(*(found[j] for j in own)))
    return found


@properties
@given(spans, spans)
def test_spans_overlap_where_they_share_a_byte(one: Span, other: Span) -> None:
    found = bool(overlaps(np.array(one), np.array(other)))
    shared = bool(touched(one) & touched(other))
    assert found == shared if is_exact(one, other) else found >= shared
    assert found == bool(overlaps(np.array(other), np.array(one)))


def test_lanes_side_by_side_do_not_overlap_and_a_mixed_stride_fills_its_gaps() -> None:
    first, second, finer = np.array([(0, 8, 32, 4), (8, 24, 32, 4), (16, 2, 16, 2)])
    assert not overlaps(first, second)
    assert overlaps(first, np.array((96, 1, 0, 1)))
    assert not overlaps(first, np.array((104, 1, 0, 1)))
    assert overlaps(first, finer)
    assert not overlaps(np.array((0, 0, 0, 1)), np.array((0, 8, 0, 1)))


@properties
@given(programs)
def test_conflicts_are_pairs_of_which_one_writes_what_the_other_touches(program: Program) -> None:
    found = conflicting(program)
    sets = [[set().union(*map(touched, some)) for some in each] for each in program]
    for i, (reads, writes) in enumerate(sets):
        assert not found[i, i:].any()
        for j, (earlier_reads, earlier_writes) in enumerate(sets[:i]):
            if writes & (earlier_reads | earlier_writes) or reads & earlier_writes:
                assert found[i, j]


def test_many_spans_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    program: Program = [([(i, 2, 0, 1)], [(i + 1, 2, 0, 1)]) for i in range(20)]
    whole = conflicting(program)
    monkeypatch.setattr("launchopt.devices.instructions.dependencies.PAIRS_AT_ONCE", 50)
    assert (conflicting(program) == whole).all()
    assert whole[3].nonzero()[0].tolist() == [1, 2], "writes 4 and 5, reads 3 and 4"


@properties
@given(st.integers(0, 14), st.floats(0.1, 0.9), st.integers(0, 999))
def test_reduction_keeps_exactly_the_necessary_waits(size: int, density: float, seed: int) -> None:
    matrix = np.tril(np.random.default_rng(seed).random((size, size)) < density, -1)
    waits = reduced(matrix)
    direct = [np.flatnonzero(row).tolist() for row in matrix]
    assert before(waits) == before(direct)
    for i, own in enumerate(waits):
        assert set(own) <= set(direct[i])
        for j in own:
            others = [k for k in own if k != j]
            assert all(j not in before(waits)[k] for k in others), "another wait implies this one"


@properties
@given(st.integers(1, 14), st.integers(2, 5), st.integers(0, 999))
def test_joins_add_no_dependencies(size: int, most: int, seed: int) -> None:
    matrix = np.tril(np.random.default_rng(seed).random((size, size)) < 0.5, -1)
    waits = [np.flatnonzero(row).tolist() for row in matrix]
    steps = joined(waits, most)
    assert [step.source for step in steps if step.source != JOIN] == list(range(size))
    assert all(len(step.waits) <= most for step in steps)
    assert all(j < i for i, step in enumerate(steps) for j in step.waits)
    found = before([list(step.waits) for step in steps])
    real = [{steps[j].source for j in found[i]} - {JOIN} for i, step in enumerate(steps) if step.source != JOIN]
    assert real == before(waits)
    if all(len(own) <= most for own in waits):
        assert len(steps) == size, "no unnecessary join"


@properties
@given(st.integers(1, 14), st.integers(0, 999))
def test_a_level_is_one_more_than_the_highest_waited_for(size: int, seed: int) -> None:
    matrix = np.tril(np.random.default_rng(seed).random((size, size)) < 0.3, -1)
    found = levels(reduced(matrix))
    assert found == [max((found[j] + 1 for j in np.flatnonzero(row)), default=0) for row in matrix]


def executed(program: Program, order: list[int]) -> list[int]:
    """Return memory after a run in which each write depends on everything that its instruction read."""
    memory = list(range(BYTES + BYTES))
    for i in order:
        reads, writes = program[i]
        seen = tuple(memory[at] for span in reads for at in sorted(touched(span)))
        for span in writes:
            for at in sorted(touched(span)):
                memory[at] = hash((i, at, seen))
    return memory


@properties
@given(programs, st.integers(0, 999))
def test_any_order_that_respects_the_waits_gives_the_same_result(program: Program, seed: int) -> None:
    waits = reduced(conflicting(program))
    generator, order = np.random.default_rng(seed), list[int]()
    while len(order) < len(program):
        ready = [i for i, own in enumerate(waits) if i not in order and set(own) <= set(order)]
        order.append(ready[int(generator.integers(len(ready)))])
    assert executed(program, order) == executed(program, list(range(len(program))))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (([], [(0, 4, 0, 1)]), ([(0, 4, 0, 1)], [(8, 4, 0, 1)])),  # read after write
        (([(0, 4, 0, 1)], [(8, 4, 0, 1)]), ([], [(0, 4, 0, 1)])),  # write after read
        (([], [(0, 4, 0, 1)]), ([], [(0, 4, 0, 1)])),  # write after write
    ],
)
def test_each_kind_of_conflict_counts(first: Any, second: Any) -> None:
    """The other order gives another result. So the property above does not hold merely for lack of conflicts."""
    program = [first, second]
    assert reduced(conflicting(program)) == [[], [0]]
    assert executed(program, [1, 0]) != executed(program, [0, 1])

"""Order among fused instructions: mail to and from them, residuals, and that each remaining wait is necessary."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.megakernel.instruction_interpreter import random_order
from support.megakernel.instruction_runs import InstructionRun, Ordered, after_second_step, ancestors, in_order
from support.steps.fused_layers import ATTENTION, STAGES, compiled, layer_stream, layer_streams, names_of, stages_of
from support.steps.step_runs import batches

from launchopt.command import Dtype, Op
from launchopt.devices.instructions import dependencies as dep
from launchopt.devices.instructions.accesses import accesses
from launchopt.devices.instructions.fusion import fused
from launchopt.devices.instructions.order import waits_of, with_dependencies
from launchopt.devices.instructions.words import NOBODY, PART, WORDS, Instruction, Instructions, Word, groups_of
from launchopt.kernels.shared_megakernel import JOIN
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.model import ModelShape

FEATURES, ITEMSIZE = 128, 2
WEIGHTS = 1 << 20


def waited(row: Instruction) -> list[int]:
    """Return the instructions that an instruction waits for, from its own words."""
    found: list[int] = row[Word.WAIT0 : Word.WAIT0 + row[Word.WAITS]].tolist()
    return found


# -- Lists made by hand: operands have numbers, and lie far apart


def made(*rows: Instruction, fuse: bool = True) -> Instructions:
    program = np.array(rows)
    return with_dependencies(fused(program, ITEMSIZE) if fuse else program, ITEMSIZE)


def instruction(op: Op, a: int, b: int, c: int, m: int = FEATURES, k: int = FEATURES) -> Instruction:
    row = np.zeros(WORDS, np.int64)
    row[Word.OP] = op
    row[[Word.M, Word.N, Word.K, Word.REQUESTS]] = m, 1, k, 1
    row[[Word.LDA, Word.LDB, Word.LDC]] = k, k, m
    row[[Word.A, Word.B, Word.C]] = a, b, c
    return row


def gemm(b: int, c: int, m: int = FEATURES) -> Instruction:
    return instruction(Op.GEMM, WEIGHTS, 1024 * b, 1024 * c, m)


def add(a: int, b: int, c: int) -> Instruction:
    return instruction(Op.ADD, 1024 * a, 1024 * b, 1024 * c)


def test_a_wait_for_a_member_is_a_wait_for_the_group() -> None:
    program = np.zeros((7, WORDS), np.int64)
    program[:, Word.FUSED] = [1, PART, 2, PART, PART, 0, 0]
    program[:, Word.MAIL] = [NOBODY, NOBODY, 0, NOBODY, NOBODY, 2, NOBODY]
    program[5, [Word.WAITS, Word.WAIT0]] = 1, 0
    program[6, [Word.WAITS, Word.WAIT0, Word.WAIT1]] = 2, 0, 2
    assert groups_of(program) == [[0, 1], [2, 3, 4], [5], [6]]
    assert waits_of(program) == [[], [0], [1], [2], [3], [1, 4], [1, 4]]


def test_levels_count_every_member() -> None:
    program = compiled(layer_stream(1))
    assert program[:, Word.LEVEL].tolist() == [0, *range(14)]


def test_outputs_of_a_sum_are_mailed_and_those_before_it_are_not() -> None:
    program = made(gemm(0, 1), add(9, 1, 2), gemm(2, 3), gemm(1, 4))
    assert program[:, Word.FUSED].tolist() == [1, PART, 0, 0]
    assert program[:, Word.MAIL].tolist() == [NOBODY, NOBODY, 0, NOBODY]
    assert [waited(row) for row in program] == [[], [], [], [0]], "outputs that are not mailed are stored"


def test_an_unfused_sum_sends_no_mail() -> None:
    program = made(gemm(0, 1), add(9, 1, 2), gemm(2, 3), fuse=False)
    assert program[:, Word.MAIL].tolist() == [NOBODY] * 3
    assert waits_of(program) == [[], [0], [1]]


def test_a_gemm_is_not_mailed_the_addend_of_its_sum() -> None:
    """The sum reads the addend from memory."""
    program = made(gemm(0, 1), gemm(1, 2), add(1, 2, 3))
    assert program[:, Word.MAIL].tolist() == [NOBODY] * 3
    assert [waited(row) for row in program] == [[], [0], []]


# -- Residuals: a sum adds the stored outputs of an earlier GEMM with as many rows


def test_no_wait_for_a_residual_that_precedes_anyway() -> None:
    program = made(gemm(0, 1), gemm(1, 2), gemm(2, 3), add(1, 3, 4))
    assert program[:, Word.MAIL].tolist() == [NOBODY, 0, 1, NOBODY]
    assert not program[:, Word.WAITS].any()
    assert 0 in ancestors(waits_of(program), 2)


def test_a_wait_for_a_residual_that_may_be_later() -> None:
    """Only the sum relates the first GEMM to the last one. The GEMM's input still comes by mail."""
    program = made(gemm(0, 1), gemm(9, 2), gemm(2, 3), add(1, 3, 4))
    assert program[:, Word.MAIL].tolist() == [NOBODY, NOBODY, 1, NOBODY]
    assert [waited(row) for row in program] == [[], [], [0], []]


@pytest.mark.parametrize("fuse", [True, False])
def test_a_wait_for_a_residual_of_another_thread(fuse: bool) -> None:
    """The residual comes from a GEMM with other rows, or the sum is not fused with its GEMM."""
    wider = gemm(0, 1, 2 * FEATURES)
    program = made(wider, gemm(1, 2), gemm(2, 3), add(1, 3, 4), fuse=fuse)
    last = 2 if fuse else 3
    assert 0 in waited(program[last])


def test_a_wait_for_a_residual_with_another_reader() -> None:
    """A GEMM reads all outputs of the first one, and each thread of the sum adds its own part of them.

    A third GEMM got all of them by mail. Its completion does not imply that all of them were stored.
    """
    program = made(gemm(0, 1), gemm(1, 2), gemm(1, 2), add(1, 2, 3))
    assert program[:, Word.MAIL].tolist() == [NOBODY, 0, NOBODY, NOBODY]
    assert waited(program[2]) == [0, 1]


def test_an_instruction_that_overwrites_a_residual_waits() -> None:
    """A GEMM stores where the first one stored, or a sum stores to its own addend."""
    program = made(gemm(0, 1), gemm(1, 2), gemm(2, 1), add(9, 1, 4))
    assert 0 in waited(program[2])
    program = made(gemm(0, 1), gemm(1, 2), gemm(2, 3), add(1, 3, 1))
    assert 0 in waited(program[2])


# -- Layers

MAIL = {ATTENTION: "norm1+qkv", "o+add1": ATTENTION, "norm2+gate_up+silu_mul": "o+add1"}
MAIL |= {"down+add2": "norm2+gate_up+silu_mul", "norm1+qkv": "down+add2"}


@pytest.mark.parametrize("dtype", [Dtype.fp32, Dtype.bf16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("requests", [1, 3])
def test_in_a_layer_only_attention_waits_for_the_slots(requests: int, dtype: Dtype) -> None:
    """In three layers, all other inputs come by mail from the previous instruction."""
    stream = layer_stream(requests, dtype, layers=3)
    program = compiled(stream)
    stages = stages_of(program, names_of(stream))
    assert stages == ["slots", *STAGES * 3]
    heads = [group[0] for group in groups_of(program)]
    expected = [NOBODY, NOBODY, *heads[1:-1]]
    assert program[heads, Word.MAIL].tolist() == expected
    assert all(MAIL[stages[i]] == stages[i - 1] for i in range(2, len(stages)))
    assert [waited(program[head]) for head in heads] == [[0] if stage == ATTENTION else [] for stage in stages]
    parts = program[program[:, Word.FUSED] == PART]
    assert not parts[:, Word.WAITS].any()
    assert (parts[:, Word.MAIL] == NOBODY).all()


def test_with_relu_between_them_gemms_wait() -> None:
    stream = layer_stream(1, model=ModelShape("plain", 256, 2, 8, 2, 32, 384, gated=False))
    program, names = compiled(stream), names_of(stream)
    up, relu, down = (names.index(name) for name in ("norm2", "relu", "down"))
    assert waited(program[relu]) == [up]
    assert waited(program[down]) == [relu], "it does not wait for its addend"
    assert program[[relu, down], Word.MAIL].tolist() == [NOBODY] * 2


def test_joins_precede_a_group() -> None:
    """Compiling again gives the same list, with any number of waits."""
    rows = [gemm(10 + i, 2 * i, FEATURES) for i in range(6)]
    rows = [*rows, instruction(Op.GEMM, WEIGHTS, 0, 1024 * 30), add(31, 30, 32)]
    rows[6][Word.K] = 6 * FEATURES  # it reads the outputs of all six, which lie 256 bytes apart
    for i, row in enumerate(rows[:6]):
        row[Word.C] = 256 * i
    program = made(*rows)
    assert (program[:, Word.OP] == JOIN).tolist() == [False] * 6 + [True, False, False]
    assert program[:, Word.FUSED].tolist() == [0] * 7 + [1, PART]
    assert [waited(row) for row in program[6:]] == [[0, 1, 2], [3, 4, 5, 6], []]
    assert (with_dependencies(program, ITEMSIZE) == program).all()


# -- Any layers


def at_random(seed: int) -> Ordered:
    seeds = count(1000 * seed)
    return lambda program: random_order(program, next(seeds))


@settings(deadline=None, max_examples=40)
@given(layer_streams(), st.integers(1, 4), st.integers(0, 9))
def test_tokens_are_right_in_any_order_and_equal_without_fusion(stream: ChainStream, most: int, seed: int) -> None:
    alone, together = InstructionRun(stream), InstructionRun(stream, fuse=True)
    alone.all(most, seed or None, in_order)
    lists = together.all(most, seed or None, at_random(seed))
    found = together.verify()
    assert found.ok, found.first_wrong
    assert together.contents() == alone.contents()
    assert all((each[:, Word.FUSED] != PART)[0] for each in lists)


def conflicting(program: Instructions, itemsize: int) -> set[tuple[int, int]]:
    """Return pairs of instructions that must keep their order, without joins."""
    spans, owners, is_write = [], [], []
    for i, row in enumerate(program):
        if row[Word.OP] == JOIN:
            continue
        for written, some in enumerate(accesses(row, itemsize)):
            spans += some
            owners += [i] * len(some)
            is_write += [bool(written)] * len(some)
    table = np.array(spans, np.int64).reshape(-1, dep.SPAN_COLUMNS)
    flags = dep.conflicts(table, np.array(owners, np.int64), np.array(is_write, np.bool_), len(program))
    return {(int(i), int(j)) for i, j in np.argwhere(flags)}


def complete_before(program: Instructions) -> list[set[int]]:
    """Return for the first instruction of each group all that are complete, not only sent, before it begins."""
    found: list[set[int]] = []
    for row in program:
        own = waited(row)
        found.append(set(own).union(*(found[j] for j in own)))
    return found


@settings(deadline=None, max_examples=40)
@given(layer_streams(), st.integers(1, 4), st.integers(0, 9))
def test_operands_are_complete_or_mailed_or_of_the_same_thread(stream: ChainStream, most: int, seed: int) -> None:
    """Check every operand that an instruction reads, or overwrites, from one that is not complete before it begins.

    Such an operand is either B of the group's first instruction, by mail; or A of a sum, which the same thread stored
    in the same tile. The producer precedes the instruction in every order.
    """
    rig = InstructionRun(stream, fuse=True)
    for batch in batches(stream, most, seed or None):
        program = rig.compiler.compile(batch)
        first = {i: group[0] for group in groups_of(program) for i in group}
        complete, waits = complete_before(program), waits_of(program)
        before = [ancestors(waits, i) for i in range(len(program))]
        for i, j in conflicting(program, stream.dtype.itemsize):
            assert j in before[i]
            if first[i] == first[j] or first[j] in complete[first[i]]:
                continue
            reader, writer = program[i], program[j]
            is_sum = reader[Word.OP] == Op.ADD and program[i, Word.FUSED] == PART
            if reader[Word.B] == writer[Word.C] and not is_sum:
                assert i == first[i], "the first instruction of a group gets mail"
                assert program[i, Word.MAIL] == first[j]
                assert j + 1 == len(program) or program[j + 1, Word.FUSED] != PART, (
                    "the last instruction of a group sends mail"
                )
            else:
                assert is_sum
                assert reader[Word.A] == writer[Word.C]
                own = [program[k] for k in first if first[k] == first[j] and program[k, Word.OP] == Op.GEMM]
                assert [row[Word.M] for row in own] == [reader[Word.M]]


@pytest.mark.parametrize("requests", [1, 3])
def test_all_mail_and_all_waits_are_necessary(requests: int) -> None:
    """Without any one of them some order gives another result, as in test_interpreter.

    One wait is an exception: that of the second layer's attention for the slots. It follows from mail, except for the
    slots that are stored.
    """
    stream = layer_stream(requests, layers=2)
    expected = after_second_step(stream, fuse=True)
    program = compiled(stream)
    behind = [ancestors(waits_of(program), i) for i in range(len(program))]
    mail = [(i, int(j)) for i, j in enumerate(program[:, Word.MAIL]) if j != NOBODY]
    slots = [(i, j) for i, row in enumerate(program) for j in waited(row)]
    first, second = slots
    assert second[1] in behind[program[second[0], Word.MAIL]]
    pairs = [*mail, first]
    assert len(pairs) == 2 * len(STAGES)
    assert [pair for pair in pairs if after_second_step(stream, *pair, fuse=True) == expected] == []

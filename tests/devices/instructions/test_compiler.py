"""Steps compiled to instruction lists: each command appears once, with its operands, and waits only for its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.megakernel.instruction_runs import InstructionRun
from support.steps.programs import program_streams, requests_of, stream_of
from support.steps.step_runs import batches

from launchopt.batching.batch import StepBatch
from launchopt.command import COMMAND_DTYPE, Dtype, Op
from launchopt.devices.cpu.ops import STATEFUL
from launchopt.devices.cuda.op_kernels import ARGS, geometry
from launchopt.devices.instructions.compiler import StepCompiler
from launchopt.devices.instructions.order import waits_of, with_dependencies
from launchopt.devices.instructions.words import NOBODY, WORDS, Instructions, Word
from launchopt.devices.steps.stages import step_of
from launchopt.kernels.shared_megakernel import JOIN, MOST_WAITS
from launchopt.streams.chains.chain import ChainStream

ROLES = "ABC"
# The nodes of a decode step of one layer, and the nodes that each waits for.
LAYER = {
    "slots": [],
    "norm1": [],
    "qkv": ["norm1"],
    "rope": ["slots", "qkv"],
    "kv_write": ["rope"],
    "qk": ["kv_write"],
    "softmax": ["qk"],
    "av": ["softmax"],
    "o": ["av"],
    "add1": ["o"],
    "norm2": ["add1"],
    "gate_up": ["norm2"],
    "silu_mul": ["gate_up"],
    "down": ["silu_mul"],
    "add2": ["down"],
}


def real(program: Instructions) -> Instructions:
    return program[program[:, Word.OP] != JOIN]


def check_operands(rig: InstructionRun, batch: StepBatch, program: Instructions) -> None:
    """Check that the list has each record of the batch once, with its own addresses."""
    stream, bases = rig.stream, rig.placed.steps.tables.shapes[:, :3]
    records = batch.words.reshape(batch.rows, batch.size, -1).view(COMMAND_DTYPE)[..., 0]
    indices, seen = rig.placed.steps.indices(rig.placed.steps.kind_of(batch)), set()
    for row in real(program):
        index = int(indices[row[Word.ROW]])
        shape = stream.shapes[index]
        own = records[row[Word.ROW]]
        at = int(np.flatnonzero(own["request"] == row[Word.FIRST_REQUEST])[0])
        assert (row[Word.OP], row[Word.M], row[Word.N], row[Word.K]) == (shape.op, shape.m, shape.n, shape.k)
        for i in range(int(row[Word.REQUESTS])):
            assert own["request"][at + i] == row[Word.FIRST_REQUEST] + i or shape.op not in STATEFUL
            seen.add((int(row[Word.ROW]), at + i))
            for role, operand, base in zip(ROLES, stream.operands(shape), bases[index], strict=True):
                address = int(base) + int(own[f"slot_{role.lower()}"][at + i]) * operand.slot_bytes
                assert row[Word[role]] + i * row[Word[f"STRIDE_{role}"]] == address
                assert row[Word[f"LD{role}"]] == operand.row_elements
    assert len(seen) == real(program)[:, Word.REQUESTS].sum() == batch.size * batch.rows


@settings(deadline=None, max_examples=40)
@given(program_streams(), st.integers(1, 4), st.integers(0, 9))
def test_every_command_is_in_the_list_once_with_its_own_operands(stream: ChainStream, most: int, seed: int) -> None:
    rig = InstructionRun(stream)
    for batch in batches(stream, most, seed or None):
        program = rig.compiler.compile(batch)
        check_operands(rig, batch, program)
        assert (rig.compiler.compile(batch) == program).all(), "independent of earlier lists"
        assert program.shape == (len(program), WORDS)
        waits = waits_of(program)
        assert all(j < i for i, own in enumerate(waits) for j in own)
        assert (program[:, Word.WAITS] <= MOST_WAITS).all()
        assert (program[:, Word.MAIL] < np.arange(len(program))).all()
        used = np.arange(MOST_WAITS) < program[:, Word.WAITS, None]
        assert ((program[:, Word.WAIT0 : Word.WAIT3 + 1] == NOBODY) == ~used).all()
        level = program[:, Word.LEVEL]
        assert level.tolist() == [max((int(level[j]) + 1 for j in own), default=0) for own in waits]
        is_whole = len(program) == batch.rows
        assert rig.compiler.compilable(batch) == is_whole


def names_of(stream: ChainStream, batch: StepBatch) -> list[str]:
    return [row.name for row in stream.rows(stream.decode_kind)]


@pytest.mark.parametrize("requests", [1, 3])
def test_a_layer_waits_for_what_it_reads(requests: int) -> None:
    stream = stream_of("layer", [(0, 3)] * requests, layers=1)
    rig = InstructionRun(stream)
    batch = step_of(stream, requests, 0)
    program, names = rig.compiler.compile(batch), names_of(stream, batch)
    assert {names[i]: [names[j] for j in own] for i, own in enumerate(waits_of(program))} == LAYER
    assert program[names.index("rope"), Word.LEVEL] == 2
    assert program[-1, Word.LEVEL] == len(LAYER) - 2


@pytest.mark.parametrize("columns", [1, 5])
def test_q_k_and_v_do_not_wait_for_each_other(columns: int) -> None:
    """Their outputs lie in a common row, or in rows side by side."""
    stream = stream_of("qkv", [(columns - 1, 2)], layers=1)
    batch = next(iter(batches(stream, 1)))
    program = InstructionRun(stream).compiler.compile(batch)
    assert waits_of(program) == [[], [], [], [0], [3], [4]]


def test_attention_knows_its_heads_and_its_state() -> None:
    stream = stream_of("paged", [(0, 6)] * 3, Dtype.bf16, layers=1)
    rig, batch = InstructionRun(stream), step_of(stream, 3, 0)
    program = rig.compiler.compile(batch)
    for row in program[program[:, Word.OP] != Op.GEMM]:
        shape = stream.shapes[int(rig.placed.steps.indices(stream.decode_kind)[row[Word.ROW]])]
        rows = tuple(operand.row_elements for operand in stream.operands(shape))
        strides = tuple(row[Word.STRIDE_A : Word.STRIDE_C + 1].tolist())
        launch = geometry(shape, 3, rows, strides, stream.attention, rig.placed.state)
        assert row[Word.Q_HEADS : Word.THETA + 1].tolist() == launch.args[ARGS.index("q_heads") :].tolist()
        assert tuple(row[Word.GRID_X : Word.GRID_Z + 1]) == launch.grid
    assert len({int(theta) for theta in program[program[:, Word.OP] == Op.ROPE, Word.THETA]} - {0}) == 1
    view: Any = program[program[:, Word.OP] == Op.ROPE, Word.THETA].view(np.float64)
    assert view.tolist() == [10_000.0]


def test_a_gemms_grid_is_its_tiles_of_rows() -> None:
    stream = stream_of("linear", [(0, 3)] * 2, layers=1)
    rig = InstructionRun(stream)
    program = StepCompiler(rig.placed.steps, tile_rows=20).compile(step_of(stream, 2, 0))
    assert program[:, Word.GRID_X : Word.GRID_Z + 1].tolist() == [[5, 1, 2], [4, 1, 2]]
    assert not program[:, Word.FUSED].any()


def test_first_tokens_lie_anywhere_and_later_ones_evenly() -> None:
    """Six inputs at arbitrary places give six instructions, and joins for instructions that wait for all of them."""
    stream = stream_of("linear", [(0, 3)] * 6, layers=2)
    rig = InstructionRun(stream)
    first, second, _ = batches(stream, 6)
    assert not rig.compiler.compilable(first)
    program = rig.compiler.compile(first)
    assert (program[:, Word.OP] == Op.GEMM).tolist() == [True] * 6 + [False] + [True] * 3
    assert waits_of(program) == [[]] * 6 + [[0, 1, 2], [3, 4, 5, 6], [7], [8]]
    assert program[6, Word.ROW] == NOBODY
    assert rig.compiler.compilable(second)
    assert waits_of(rig.compiler.compile(second)) == [[], [0], [1], [2]]


def test_other_copies_of_the_weights_are_other_instructions() -> None:
    stream = stream_of("linear", [(0, 6)] * 2, layers=1, replicas=2)
    rig, found = InstructionRun(stream), 0
    for batch in (each for seed in range(8) for each in batches(stream, 2, seed)):
        records = batch.words.view(COMMAND_DTYPE).reshape(batch.rows, batch.size)
        copies = records["token"][0] % 2
        if batch.size == 2 and records["token"].min() > 0:  # a first token reads its input from elsewhere in any case
            found += copies[0] != copies[1]
            assert rig.compiler.compilable(batch) == (copies[0] == copies[1])
            assert len(rig.compiler.compile(batch)) == (2 if copies[0] == copies[1] else 4)
    assert found, "no batch of requests with different copies"


def test_writes_of_a_batch_with_a_missing_request_are_ordered() -> None:
    """Requests 0 and 2 write to one cache. The compiler does not know their pages, so it orders their writes."""
    stream = stream_of("layer", [(0, 3)] * 3, layers=1)
    rig = InstructionRun(stream)
    words = step_of(stream, 3, 0).words.reshape(15, 3, -1)[:, [0, 2]]
    batch = StepBatch(np.ascontiguousarray(words).reshape(30, -1), step_of(stream, 1, 0).reason, 2, 15)
    assert not rig.compiler.compilable(batch)
    program = rig.compiler.compile(batch)
    check_operands(rig, batch, program)
    writes = np.flatnonzero(program[:, Word.OP] == Op.KV_WRITE).tolist()
    assert len(writes) == 2
    assert writes[0] in waits_of(program)[writes[1]]
    maps = np.flatnonzero(program[:, Word.OP] == Op.SLOT_MAP).tolist()
    assert [waits_of(program)[i] for i in maps] == [[], []], "they move different positions"


def test_steps_of_several_columns_have_an_instruction_per_request() -> None:
    """This holds even if prompts happen to lie one lane apart."""
    stream = ChainStream([(64, 64)], 1, requests_of([(2, 1)] * 2), Dtype.fp32, 1)
    rig, batch = InstructionRun(stream), next(iter(batches(stream, 2)))
    records = batch.words.view(COMMAND_DTYPE).reshape(-1)
    records["slot_b"][1] = records["slot_b"][0] + stream.lane_units
    assert rig.placed.steps.runs(batch, 1) == 1
    assert not rig.compiler.compilable(batch)
    assert rig.compiler.compile(batch)[:, Word.REQUESTS].tolist() == [1, 1]


def test_dependencies_are_reproducible() -> None:
    stream = stream_of("linear", [(0, 2)] * 6, layers=2)
    program = InstructionRun(stream).compiler.compile(next(iter(batches(stream, 6))))
    again = program.copy()
    again[:, Word.WAITS :] = np.where(again[:, Word.OP, None] == JOIN, 0, again[:, Word.WAITS :])
    again[:, Word.WAITS : Word.LEVEL + 1] = 0
    assert (with_dependencies(again, stream.dtype.itemsize) == program).all()


def sent(program: Instructions) -> list[int]:
    return program[:, Word.MAIL].tolist()


def test_a_gemm_gets_the_outputs_of_a_gemm_by_mail() -> None:
    """It waits for no other instruction."""
    stream = ChainStream([(192, 128), (128, 128)], 2, requests_of([(0, 3)] * 2), Dtype.fp16, 1)
    program = InstructionRun(stream).compiler.compile(step_of(stream, 2, 0))
    assert sent(program) == [NOBODY, 0, 1, 2], "the reader needs 128 of 192 features"
    assert not program[:, Word.WAITS].any()
    assert program[:, Word.LEVEL].tolist() == [0, 1, 2, 3]


def test_outputs_of_other_ops_are_not_mailed() -> None:
    stream = stream_of("layer", [(0, 3)] * 2, Dtype.fp16, layers=1)
    program = InstructionRun(stream).compiler.compile(step_of(stream, 2, 0))
    assert set(sent(program)) == {NOBODY}


def test_several_columns_or_partial_vectors_are_not_mailed() -> None:
    """The first stream has two columns per request. The second has rows of 260 bytes, which are no whole vectors."""
    wide = ChainStream([(128, 128), (128, 128)], 1, requests_of([(2, 1)]), Dtype.fp16, 1)
    odd = ChainStream([(130, 130), (130, 130)], 1, requests_of([(0, 3)]), Dtype.fp16, 1)
    assert sent(InstructionRun(wide).compiler.compile(next(iter(batches(wide, 1))))) == [NOBODY] * 2
    assert sent(InstructionRun(odd).compiler.compile(step_of(odd, 1, 0))) == [NOBODY] * 2


def test_mail_does_not_replace_a_wait_for_an_earlier_instruction() -> None:
    """The addend is also an input of the first GEMM's reader. The sum waits for the producer of the addend.

    It waits although a later instruction, for which it waits too, got that producer's outputs by mail.
    """
    row = np.zeros((4, WORDS), np.int64)
    row[:, Word.OP] = Op.GEMM
    row[:, [Word.M, Word.N, Word.K, Word.REQUESTS]] = [128, 1, 128, 1]
    row[:, [Word.LDA, Word.LDB, Word.LDC]] = 128
    row[:, Word.A] = 1 << 20
    row[:3, Word.B], row[:3, Word.C] = [1024, 2048, 3072], [2048, 3072, 4096]
    row[3, Word.OP], row[3, Word.A], row[3, Word.B], row[3, Word.C] = Op.ADD, 2048, 4096, 5120
    program = with_dependencies(row, 2)
    assert sent(program) == [NOBODY, 0, 1, NOBODY]
    assert waits_of(program)[3] == [0, 2], "completion of 2 does not imply that 0 has stored"

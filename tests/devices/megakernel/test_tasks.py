"""Tasks that the kernel gets of a list with fused instructions: their number, waits, results, boxes and tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.megakernel.instruction_runs import InstructionRun
from support.megakernel.task_checks import check_tasks
from support.steps.fused_layers import MODEL, STAGES, compiled, layer_stream, layer_streams, names_of, stages_of
from support.steps.programs import requests_of, stream_of
from support.steps.step_runs import batches

from launchopt.command import Dtype, Op
from launchopt.devices.instructions.words import NOBODY, WORDS, Word
from launchopt.devices.megakernel.task_structs import TASK_WORDS, TaskWord, weights_of
from launchopt.devices.megakernel.tasks import ALIGNMENT_BYTES, defines_of, tasks_of
from launchopt.kernels.shared import JOIN, TILE_ROWS
from launchopt.streams.chain import ChainStream
from launchopt.streams.model import ModelShape
from launchopt.streams.program import linear_program

BLOCKS = 5
SLOTS, QKV, ATTENTION, OUT, GATE_UP, DOWN = range(1 + len(STAGES))
APART = {1: 2, 3: 1}  # sectors of a box, by number of requests
WIDTHS = {QKV: 384, ATTENTION: 256, OUT: 256, GATE_UP: 384, DOWN: 256}  # features of each task's final result
STREAMED = [QKV, OUT, GATE_UP, DOWN]
EVERY = [(1, Dtype.fp32), (3, Dtype.fp32), (1, Dtype.bf16), (3, Dtype.bf16)]
every = pytest.mark.parametrize(("requests", "dtype"), EVERY, ids=lambda value: getattr(value, "name", value))


class Layer:
    """The list of a layer, its rows by name, and its tasks."""

    def __init__(self, requests: int, dtype: Dtype = Dtype.fp32, blocks: int = BLOCKS, **how: Any) -> None:
        stream = layer_stream(requests, dtype, **how)
        self.itemsize, self.program, names = dtype.itemsize, compiled(stream), names_of(stream)
        assert stages_of(self.program, names) == ["slots", *STAGES * stream.layers]
        self.rows = dict(zip(names, self.program, strict=True))
        self.tasks, self.box_bytes = tasks_of(self.program, blocks, self.itemsize)

    def words(self, i: int, *columns: TaskWord) -> list[int]:
        found: list[int] = self.tasks[i, list(columns)].tolist()
        return found

    def of(self, name: str, *columns: Word) -> list[int]:
        found: list[int] = self.rows[name][list(columns)].tolist()
        return found


def words_between(row: NDArray[np.int64], first: TaskWord, last: TaskWord) -> list[int]:
    """Return all words of a task from `first` to `last`."""
    found: list[int] = row[first : last + 1].tolist()
    return found


@every
def test_a_task_has_the_words_of_its_main_instruction(requests: int, dtype: Dtype) -> None:
    layer = Layer(requests, dtype)
    assert layer.tasks.shape == (1 + len(STAGES), TASK_WORDS)
    own = ["slots", "qkv", "rope", "o", "gate_up", "down"]
    for row, name in zip(layer.tasks, own, strict=True):
        assert row[: Word.WAITS].tolist() == layer.rows[name][: Word.WAITS].tolist()
    assert layer.tasks[:, TaskWord.STREAMED].tolist() == [i in STREAMED for i in range(6)]
    assert layer.tasks[:, TaskWord.ATTENDS].tolist() == [i == ATTENTION for i in range(6)]


@every
def test_waits_are_numbers_of_tasks(requests: int, dtype: Dtype) -> None:
    layer = Layer(requests, dtype)
    tasks = layer.tasks
    assert tasks[:, Word.MAIL].tolist() == [NOBODY, NOBODY, QKV, ATTENTION, OUT, GATE_UP]
    assert tasks[:, TaskWord.MAILED].tolist() == [0, 0, 1, 1, 1, 1]
    assert tasks[:, Word.WAITS].tolist() == [0, 0, 1, 0, 0, 0]
    assert tasks[ATTENTION, Word.WAIT0 : Word.WAIT3 + 1].tolist() == [SLOTS, NOBODY, NOBODY, NOBODY]
    assert tasks[:, TaskWord.COUNTED].tolist() == [1, 0, 0, 0, 0, 0]
    assert layer.words(ATTENTION, TaskWord.ENOUGH0) == layer.words(SLOTS, TaskWord.SHARE)
    assert not tasks[:, TaskWord.ENOUGH1 : TaskWord.ENOUGH3 + 1].any()


@every
def test_results_are_those_of_the_last_instruction(requests: int, dtype: Dtype) -> None:
    layer = Layer(requests, dtype)
    for i, name in {QKV: "qkv", ATTENTION: "av", OUT: "add1", GATE_UP: "silu_mul", DOWN: "add2"}.items():
        found = layer.words(i, TaskWord.RESULT_M, TaskWord.RESULT, TaskWord.RESULT_STRIDE)
        assert found == layer.of(name, Word.M, Word.C, Word.STRIDE_C)
        assert found[0] == WIDTHS[i]


@every
def test_fused_ops_before_and_after_a_gemm(requests: int, dtype: Dtype) -> None:
    layer = Layer(requests, dtype)
    norms = {QKV: "norm1", GATE_UP: "norm2"}
    after: dict[int, tuple[Op, str]] = {
        OUT: (Op.ADD, "add1"),
        DOWN: (Op.ADD, "add2"),
        GATE_UP: (Op.SILU_MUL, "silu_mul"),
    }
    for i in range(6):
        assert layer.words(i, TaskWord.GAIN) == (layer.of(norms[i], Word.A) if i in norms else [0])
        then, name = after.get(i, (0, ""))
        assert layer.words(i, TaskWord.THEN) == [then]
        if then == Op.ADD:
            added = layer.words(i, TaskWord.ADDED, TaskWord.ADDED_STRIDE)
            assert added == layer.of(name, Word.A, Word.STRIDE_A)
    assert layer.tasks[:, TaskWord.PAIR_ROWS].tolist() == [0, 0, 0, 0, MODEL.intermediate, 0]


def stride_of(width: int, requests: int, itemsize: int) -> int:
    """Return the bytes between columns of a box. Several 16-bit columns lie 16 together, in chunks of 64 bytes."""
    if requests > 1 and itemsize == 2:
        return -(-width * itemsize // 64) * 64 * 16
    return width * itemsize * APART[requests]


@every
def test_inputs_are_those_of_the_first_instruction(requests: int, dtype: Dtype) -> None:
    """Mailed inputs come from the box of the sender. The results of several requests have gaps in it."""
    layer = Layer(requests, dtype)
    assert layer.words(QKV, TaskWord.FROM, TaskWord.FROM_BYTES) == layer.of("norm1", Word.B, Word.STRIDE_B)
    for i, sender in ((ATTENTION, QKV), (OUT, ATTENTION), (GATE_UP, OUT), (DOWN, GATE_UP)):
        box = layer.words(sender, TaskWord.BOX)
        stride = stride_of(WIDTHS[sender], requests, layer.itemsize)
        assert layer.words(i, TaskWord.FROM, TaskWord.FROM_BYTES) == [*box, stride]


@every
def test_boxes_have_room_for_results(requests: int, dtype: Dtype) -> None:
    """A box holds the results of a group's last instruction. Gate and up give half as many as their GEMM."""
    layer, at = Layer(requests, dtype), 0
    for i in (QKV, ATTENTION, OUT, GATE_UP):
        assert layer.words(i, TaskWord.BOX) == [at]
        taken = stride_of(WIDTHS[i], requests, layer.itemsize)
        if requests == 1 or layer.itemsize == 4:
            taken *= requests
        at += -(-taken // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    assert layer.box_bytes == at
    assert [layer.words(i, TaskWord.BOX) for i in (SLOTS, DOWN)] == [[NOBODY]] * 2, "these send no mail"


def test_a_sender_to_the_next_layer_has_a_box() -> None:
    layer = Layer(2, layers=2)
    assert layer.tasks[:, Word.MAIL].tolist() == [NOBODY, NOBODY, *range(1, 10)]
    assert layer.words(1 + len(STAGES), TaskWord.FROM) == layer.words(DOWN, TaskWord.BOX)


@pytest.mark.parametrize("blocks", [1, 3, BLOCKS, 132])
def test_tiles_of_a_gemm_are_those_of_its_results(blocks: int) -> None:
    """Gate and up have pairs of tiles, each of which gives one tile of results."""
    layer = Layer(2, blocks=blocks)
    for i in STREAMED:
        tiles = WIDTHS[i] // TILE_ROWS
        assert layer.words(i, TaskWord.TILES_EACH, TaskWord.TILES_MORE) == [*divmod(tiles, blocks)]
        assert layer.words(i, TaskWord.SHARE) == [min(tiles, blocks)]
    assert layer.of("gate_up", Word.M) == [2 * WIDTHS[GATE_UP]]


@pytest.mark.parametrize("blocks", [1, 5, 132])
@pytest.mark.parametrize("requests", [1, 3])
def test_attention_has_a_block_per_request_and_kv_head(requests: int, blocks: int) -> None:
    layer = Layer(requests, blocks=blocks)
    assert layer.words(ATTENTION, TaskWord.SHARE) == [min(blocks, requests * MODEL.kv_heads)]


@every
@pytest.mark.parametrize("page", [None, 4])
def test_attention_knows_where_each_of_its_ops_stores(requests: int, dtype: Dtype, page: int | None) -> None:
    layer = Layer(requests, dtype, page=page)
    assert words_between(layer.tasks[ATTENTION], TaskWord.ATTENDS, TaskWord.PROBABILITIES_STRIDE) == [
        1,
        *layer.of("kv_write", Word.C, Word.A, Word.STRIDE_A),
        *layer.of("qk", Word.C, Word.STRIDE_C),
        *layer.of("softmax", Word.C, Word.STRIDE_C),
    ]
    others = np.delete(layer.tasks, ATTENTION, axis=0)
    assert not others[:, TaskWord.ATTENDS : TaskWord.PROBABILITIES_STRIDE + 1].any()
    assert not layer.tasks[ATTENTION, TaskWord.GAIN : TaskWord.PAIR_ROWS + 1].any()


# -- Macros of the compiler, and weights


def bits(*ops: Op) -> int:
    return sum(1 << op for op in ops)


@pytest.mark.parametrize(("requests", "columns"), [(1, 1), (3, 16)])
def test_ops_are_compiled_fused_or_alone(requests: int, columns: int) -> None:
    together, stream = Layer(requests), layer_stream(requests)
    fused = bits(Op.ROPE, Op.NORM, Op.ADD, Op.SILU_MUL)
    shape = {"HEAD_DIM": 32, "GROUP": 4, "PAGE_TOKENS": 8}
    assert defines_of(together.tasks) == {
        "COLUMNS": columns,
        "OPS": bits(Op.SLOT_MAP),
        "FUSED": fused,
        "GROUPS": 0,
        "COUNTS": 1,
        "ONE_STEP": 0,
        "PAIRS": 0,
        "LOGITS": 0,
        "SHORT": 0,
        **shape,
    }
    alone, _ = tasks_of(compiled(stream, fuse=False), BLOCKS, stream.dtype.itemsize)
    ops = bits(*(Op(op) for op in set(compiled(stream)[:, Word.OP].tolist()) - {Op.GEMM}))
    assert defines_of(alone) == {
        **{"COLUMNS": columns, "OPS": ops, "FUSED": 0},  # their GEMMs are streamed
        **{"GROUPS": 0, "COUNTS": 1, "ONE_STEP": 0, "PAIRS": 0, "LOGITS": 0, "SHORT": 0},
    }


def test_a_layer_with_relu_compiles_both() -> None:
    plain = ModelShape("plain", 256, 2, 8, 2, 32, 384, gated=False)
    tasks, _ = tasks_of(compiled(layer_stream(1, model=plain)), BLOCKS, 4)
    fused = bits(Op.ROPE, Op.NORM, Op.ADD)
    shape = {"HEAD_DIM": 32, "GROUP": 4, "PAGE_TOKENS": 8}
    own = {"COLUMNS": 1, "OPS": bits(Op.SLOT_MAP, Op.RELU), "FUSED": fused}
    none = dict.fromkeys(("GROUPS", "ONE_STEP", "PAIRS", "LOGITS", "SHORT"), 0)
    assert defines_of(tasks) == {**own, **none, "COUNTS": 1, **shape}
    assert not tasks[:, TaskWord.PAIR_ROWS].any()


@pytest.mark.parametrize("dtype", [Dtype.fp32, Dtype.bf16])
@pytest.mark.parametrize(
    ("requests", "m", "k", "blocks", "is_one_step"),
    [
        (1, 256, 512, 8, {Dtype.fp32: True, Dtype.bf16: True}),  # 4 tiles of a piece
        (1, 264, 512, 8, {Dtype.fp32: False, Dtype.bf16: False}),  # one block has 5 tiles
        (1, 128, 1024, 8, {Dtype.fp32: False, Dtype.bf16: True}),  # 2 tiles; of one piece in bf16
        (1, 128, 2048, 8, {Dtype.fp32: False, Dtype.bf16: True}),  # 2 tiles of 2 pieces, multiplied together
        (1, 136, 2048, 8, {Dtype.fp32: False, Dtype.bf16: False}),  # one block has 3 tiles
        (1, 64, 4096, 8, {Dtype.fp32: False, Dtype.bf16: True}),  # a tile of 4 pieces
        (1, 64, 4224, 8, {Dtype.fp32: False, Dtype.bf16: False}),  # a tile of slightly more
        (16, 64, 2048, 8, {Dtype.fp32: False, Dtype.bf16: True}),  # 16 columns fill the memory of inputs
        (16, 64, 2176, 8, {Dtype.fp32: False, Dtype.bf16: False}),
        (17, 64, 512, 8, {Dtype.fp32: False, Dtype.bf16: False}),  # a second group of columns
    ],
)
def test_a_gemm_takes_one_step_if_no_block_needs_more(
    requests: int, m: int, k: int, blocks: int, is_one_step: dict[Dtype, bool], dtype: Dtype
) -> None:
    itemsize = dtype.itemsize
    program = compiled(layer_stream(1, dtype), fuse=False)
    row = program[program[:, Word.OP] == Op.GEMM][:1].copy()
    row[0, [Word.M, Word.K, Word.LDA, Word.REQUESTS]] = m, k, k, requests
    row[0, [Word.STRIDE_B, Word.STRIDE_C]] = k * itemsize, m * itemsize
    row[0, Word.WAITS], row[0, [*range(Word.WAIT0, Word.WAIT3 + 1), Word.MAIL]] = 0, NOBODY
    tasks, _ = tasks_of(row, blocks, itemsize)
    assert tasks[0, TaskWord.STREAMED] == 1
    found = defines_of(tasks)
    assert bool(found["ONE_STEP"]) == is_one_step[dtype]
    assert bool(found["SHORT"]) == (is_one_step[dtype] and requests == 1)


def test_several_attention_shapes_are_not_compiled_in() -> None:
    tasks = np.repeat(Layer(1).tasks, 2, axis=0)
    assert defines_of(tasks)["HEAD_DIM"] == 32
    tasks[-1:, [TaskWord.ATTENDS, Word.HEAD_DIM]] = 1, 64
    assert not defines_of(tasks).keys() & {"HEAD_DIM", "GROUP", "PAGE_TOKENS"}


def test_ops_of_odd_sizes_are_compiled_alone() -> None:
    odd = ModelShape("odd", 72, 2, 3, 1, 24, 100, gated=False)
    program = compiled(layer_stream(2, model=odd))
    tasks, box_bytes = tasks_of(program, BLOCKS, 4)
    ops = bits(*(Op(op) for op in set(program[:, Word.OP].tolist())))
    assert ops & bits(Op.GEMM)
    own = {"COLUMNS": 16, "OPS": ops, "FUSED": 0, "GROUPS": 0, "COUNTS": 1}
    assert defines_of(tasks) == {**own, "ONE_STEP": 1, "PAIRS": 0, "LOGITS": 0, "SHORT": 0}
    assert (len(tasks), box_bytes) == (len(program), 0)


@every
def test_weights_have_gains_and_pairs(requests: int, dtype: Dtype) -> None:
    layer = Layer(requests, dtype)
    weights = weights_of(layer.tasks, layer.itemsize)
    assert len(weights) == len(STREAMED) + 2
    assert not weights[-2:].tobytes().strip(b"\0"), "an end marker, and one entry for reading ahead"
    gemms = ["qkv", "o", "gate_up", "down"]
    assert weights["a"][:-2].tolist() == [layer.of(name, Word.A)[0] for name in gemms]
    assert weights["gain"][:-2].tolist() == [layer.of("norm1", Word.A)[0], 0, layer.of("norm2", Word.A)[0], 0]
    assert weights["pair_rows"][:-2].tolist() == [0, 0, MODEL.intermediate, 0]
    assert weights["rows"][:-2].tolist() == [384, 256, 768, 256]
    assert weights["bytes"][:-2].tolist() == [256 * dtype.itemsize] * 3 + [384 * dtype.itemsize]
    for name in ("tiles_each", "tiles_more"):
        assert weights[name][:-2].tolist() == layer.tasks[STREAMED, TaskWord[name.upper()]].tolist()


@settings(deadline=None, max_examples=40)
@given(layer_streams(), st.integers(1, 4), st.integers(0, 9))
def test_tasks_of_any_layer(stream: ChainStream, most: int, seed: int) -> None:
    rig, itemsize = InstructionRun(stream, fuse=True), stream.dtype.itemsize
    for batch in batches(stream, most, seed or None):
        program = rig.compiler.compile(batch)
        for blocks, pairs in ((BLOCKS, False), (4, True)):
            check_tasks(program, *tasks_of(program, blocks, itemsize, pairs), itemsize, blocks)


def test_joins_are_tasks_too() -> None:
    stream = stream_of("linear", [(0, 3)] * 6, layers=2)
    program = InstructionRun(stream, fuse=True).compiler.compile(next(iter(batches(stream, 6))))
    tasks, box_bytes = tasks_of(program, BLOCKS, stream.dtype.itemsize)
    check_tasks(program, tasks, box_bytes, stream.dtype.itemsize, BLOCKS)
    (join,) = np.flatnonzero(tasks[:, Word.OP] == JOIN)
    assert tasks[join, [TaskWord.SHARE, TaskWord.COUNTED]].tolist() == [1, 1]
    assert tasks[:, :WORDS].tolist() == program.tolist()


@pytest.mark.parametrize(("requests", "groups"), [(16, 0), (17, 1)])
def test_many_requests_form_groups_of_columns(requests: int, groups: int) -> None:
    assert defines_of(Layer(requests).tasks)["GROUPS"] == groups


def test_no_task_counts_if_all_inputs_are_mailed() -> None:
    stream = ChainStream(linear_program([(256, 128), (128, 256)]), 2, requests_of([(0, 2)]), Dtype.fp16, 1)
    tasks, _ = tasks_of(compiled(stream), BLOCKS, 2)
    assert (defines_of(tasks)["COUNTS"], int(tasks[:, TaskWord.COUNTED].sum())) == (0, 0)
    tasks[0, TaskWord.COUNTED] = 1
    assert defines_of(tasks)["COUNTS"] == 1

"""Tasks that the kernel gets of a list with fused instructions: number, waits, results, boxes, tiles and weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.megakernel.instruction_runs import InstructionRun
from support.megakernel.layer_tasks import (
    ATTENTION,
    BLOCKS,
    DOWN,
    GATE_UP,
    OUT,
    QKV,
    SLOTS,
    STREAMED,
    WIDTHS,
    Layer,
    every,
)
from support.megakernel.task_checks import check_tasks
from support.steps.fused_layers import MODEL, STAGES, layer_streams
from support.steps.programs import stream_of
from support.steps.step_runs import batches

from launchopt.command import Dtype, Op
from launchopt.devices.instructions.words import NOBODY, WORDS, Word
from launchopt.devices.megakernel.task_structs import TASK_WORDS, TaskWord, weights_of
from launchopt.devices.megakernel.tasks import ALIGNMENT_BYTES, tasks_of
from launchopt.kernels.shared_megakernel import JOIN, TILE_ROWS
from launchopt.streams.chains.chain import ChainStream

APART = {1: 2, 3: 1}  # sectors of a box, by number of requests


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

"""The compiler's macros for a list of tasks: which ops are fused or alone, and which shortcuts are compiled in."""

from __future__ import annotations

import numpy as np
import pytest
from support.megakernel.layer_tasks import BLOCKS, Layer
from support.steps.fused_layers import compiled, layer_stream
from support.steps.programs import requests_of

from launchopt.command import Dtype, Op
from launchopt.devices.instructions.words import NOBODY, Word
from launchopt.devices.megakernel.task_structs import TaskWord
from launchopt.devices.megakernel.tasks import defines_of, tasks_of
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.program import linear_program
from launchopt.streams.model import ModelShape

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


@pytest.mark.parametrize(("requests", "groups"), [(16, 0), (17, 1)])
def test_many_requests_form_groups_of_columns(requests: int, groups: int) -> None:
    assert defines_of(Layer(requests).tasks)["GROUPS"] == groups


def test_no_task_counts_if_all_inputs_are_mailed() -> None:
    stream = ChainStream(linear_program([(256, 128), (128, 256)]), 2, requests_of([(0, 2)]), Dtype.fp16, 1)
    tasks, _ = tasks_of(compiled(stream), BLOCKS, 2)
    assert (defines_of(tasks)["COUNTS"], int(tasks[:, TaskWord.COUNTED].sum())) == (0, 0)
    tasks[0, TaskWord.COUNTED] = 1
    assert defines_of(tasks)["COUNTS"] == 1

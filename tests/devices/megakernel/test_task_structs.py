"""The structs of tasks that the kernel reads equal the tasks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.megakernel.instruction_runs import InstructionRun
from support.steps.fused_layers import compiled, layer_stream, layer_streams
from support.steps.step_runs import batches

from launchopt.command import Dtype, Op
from launchopt.devices.instructions.words import STREAMED_BYTES_APART, Word, streamable
from launchopt.devices.megakernel.memory import place_boxes
from launchopt.devices.megakernel.task_structs import Tasks, TaskWord, packed
from launchopt.devices.megakernel.tasks import tasks_of
from launchopt.errors import RunError
from launchopt.kernels.shared_megakernel import MOST_WAITS, TASK, TaskFlag
from launchopt.streams.chains.chain import ChainStream

SAME = {name: TaskWord[name.upper()] for name in TASK.names or () if name.upper() in TaskWord.__members__}
ASKED = {
    TaskFlag.SPLIT: lambda row: row[TaskWord.SPLIT],
    TaskFlag.STREAMED: lambda row: row[TaskWord.STREAMED],
    TaskFlag.MAILED: lambda row: row[TaskWord.MAILED],
    TaskFlag.COUNTED: lambda row: row[TaskWord.COUNTED],
    TaskFlag.WAITS: lambda row: row[Word.WAITS],
    TaskFlag.ATTENDS: lambda row: row[TaskWord.ATTENDS],
    TaskFlag.NORMED: lambda row: row[TaskWord.GAIN],
    TaskFlag.ADDS: lambda row: row[TaskWord.THEN] == Op.ADD,
    TaskFlag.ADDED_MAILED: lambda row: row[TaskWord.ADDED_MAILED],
    TaskFlag.GATED: lambda row: row[TaskWord.THEN] == Op.SILU_MUL,
}


def placed(stream: ChainStream) -> Tasks:
    tasks, _ = tasks_of(compiled(stream), 4, stream.dtype.itemsize, pairs=True)
    place_boxes(tasks, 1 << 40)
    return tasks


@settings(deadline=None, max_examples=20)
@given(layer_streams(), st.integers(1, 4))
def test_each_word_is_the_tasks_own(stream: ChainStream, most: int) -> None:
    rig = InstructionRun(stream, fuse=True)
    for batch in batches(stream, most, None):
        tasks, _ = tasks_of(rig.compiler.compile(batch), 4, stream.dtype.itemsize, pairs=True)
        place_boxes(tasks, 1 << 40)
        norms = 0
        for row, task in zip(tasks, packed(tasks), strict=True):
            norms += row[TaskWord.GAIN] != 0
            odd = TaskFlag.NORMED_ODD if row[TaskWord.GAIN] and norms % 2 == 0 else 0
            assert TaskFlag(int(task["flags"])) == odd + sum(flag for flag, has in ASKED.items() if has(row))
            reads = row[TaskWord.STREAMED] or row[TaskWord.ATTENDS]
            given = {name: row[word] for name, word in SAME.items()} | {"from_bytes": row[TaskWord.FROM_BYTES] * reads}
            assert {name: task[name] for name in given} == given
            assert task[["requests", "c", "stride_c"]].tolist() == tuple(row[[Word.REQUESTS, Word.C, Word.STRIDE_C]])
            assert task["in"].tobytes() == row[: Word.WAITS].tobytes()
            count = int(row[Word.WAITS])
            assert task["wait"].tolist() == [*row[Word.WAIT0 :][:count].tolist(), *[0] * (MOST_WAITS - count)]
            assert task["enough"].tolist() == [*row[TaskWord.ENOUGH0 :][:count].tolist(), *[0] * (MOST_WAITS - count)]
            assert (task["enough"][:count] > 0).all(), "a kernel takes 0 for no wait"
            assert int(task["bytes"]) + int(task["other_bytes"]) == row[TaskWord.ROW_USED_BYTES]
            assert bool(task["other_bytes"]) == row[TaskWord.SPLIT]


def test_requests_that_lie_too_far_apart_are_not_streamed() -> None:
    program = compiled(layer_stream(2, Dtype.bf16))
    (gemm, *_) = (row for row in program if row[Word.OP] == Op.GEMM)
    for apart, is_streamed in ((STREAMED_BYTES_APART - 16, True), (STREAMED_BYTES_APART, False), (-16, False)):
        gemm[Word.STRIDE_B] = apart
        assert streamable(gemm, 2) == is_streamed
    gemm[Word.REQUESTS] = 1
    assert streamable(gemm, 2)


@pytest.mark.parametrize("apart", [-16, STREAMED_BYTES_APART])
def test_attention_whose_requests_lie_too_far_apart_is_refused(apart: int) -> None:
    tasks = placed(layer_stream(2, Dtype.bf16))
    (attention,) = np.flatnonzero(tasks[:, TaskWord.ATTENDS])
    tasks[attention, TaskWord.FROM_BYTES] = apart
    with pytest.raises(RunError, match=f"^inputs of two requests lie {apart} bytes apart, of 0 to 268435455$"):
        packed(tasks)

"""Tasks: the division of each instruction of a list among the blocks of kernels/megakernel.cu.

`tasks_of` makes a task of each instruction, or of each fused group; launchopt/devices/megakernel/task_structs.py
describes the columns. A task has the words of its main instruction, the number of blocks with a share, the counters for
which it waits, the division of a GEMM into tiles, and its mailboxes. `defines_of` returns the macros with which the
kernel is compiled for a list.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.devices.instructions.words import (
    NOBODY,
    WORDS,
    Instructions,
    Word,
    compiled_columns,
    groups_of,
    streamable,
)
from launchopt.devices.megakernel.memory import HELD_BYTES, box_stride, inputs_bytes, is_held
from launchopt.devices.megakernel.task_structs import TASK_WORDS, Tasks, TaskWord
from launchopt.kernels.shared import MOST_COLUMNS
from launchopt.kernels.shared_megakernel import (
    INPUT_GAP_BYTES,
    JOIN,
    MOST_WAITS,
    PAIRS_INPUT_BYTES,
    PASS_TILES,
    PIECE_BYTES,
    TILE_ROWS,
)

ALIGNMENT_BYTES = 256  # alignment of the mailboxes of a task

# Columns in which two tasks must agree, so that the second can add results that the first sends through mailboxes.
SENT = [Word.REQUESTS, Word.FIRST_REQUEST, TaskWord.RESULT_STRIDE]
WANTED = [Word.REQUESTS, Word.FIRST_REQUEST, TaskWord.ADDED_STRIDE]


def tasks_of(instructions: Instructions, blocks: int, itemsize: int, pairs: bool = False) -> tuple[Tasks, int]:
    """Return the tasks of a list, and the bytes of one set of their mailboxes.

    Column BOX of a task is an offset in that set, or NOBODY. blocks: blocks of the grid. itemsize: bytes of an element.
    pairs: the grid may have clusters of two blocks, which can share the tiles of a GEMM. If a task would then have to
    wait for more than MOST_WAITS others, no blocks share tiles.
    """
    groups = groups_of(instructions)
    number = {group[0]: i for i, group in enumerate(groups)}
    number[NOBODY] = NOBODY
    tasks = np.zeros((len(groups), TASK_WORDS), np.int64)
    tasks[:, TaskWord.BOX] = NOBODY
    columns, box_bytes = compiled_columns(int(instructions[:, Word.REQUESTS].max(initial=1))), 0
    for i, (row, group) in enumerate(zip(tasks, groups, strict=True)):
        _describe(row, instructions[group], itemsize)
        head = instructions[group[0]]
        for word in (*range(Word.WAIT0, Word.WAIT3 + 1), Word.MAIL):
            row[word] = number[int(head[word])]
        parts, together = _parts(row), 1
        if pairs and _is_shared(row, parts, blocks):
            row[TaskWord.SPLIT], together = 1, 2
        row[TaskWord.SHARE] = together * min(blocks // together, parts)
        row[TaskWord.TILES_EACH], row[TaskWord.TILES_MORE] = divmod(parts, blocks // together)
        row[TaskWord.ONE_STEP] = _is_one_step(row, itemsize)
        row[Word.WAITS] = head[Word.WAITS]
        if pairs and not _find_added(tasks, i, columns, itemsize):
            return tasks_of(instructions, blocks, itemsize)
        waits = row[Word.WAIT0 : Word.WAIT0 + int(row[Word.WAITS])]
        tasks[waits, TaskWord.COUNTED] = 1
        row[TaskWord.ENOUGH0 : TaskWord.ENOUGH0 + len(waits)] = tasks[waits, TaskWord.SHARE]
        if row[Word.MAIL] == NOBODY:
            continue
        sender = tasks[row[Word.MAIL]]
        stride, together = box_stride(int(sender[TaskWord.RESULT_M]), columns, itemsize)
        if sender[TaskWord.BOX] == NOBODY:
            sender[TaskWord.BOX] = box_bytes
            taken = -(-int(sender[Word.REQUESTS]) // together) * stride
            box_bytes += -(-taken // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        row[TaskWord.MAILED], row[TaskWord.FROM], row[TaskWord.FROM_BYTES] = 1, sender[TaskWord.BOX], stride
    return tasks, box_bytes


def _describe(row: NDArray[np.int64], members: Instructions, itemsize: int) -> None:
    """Set the columns of a task that depend only on its own instructions, `members`."""
    gemms = [i for i, each in enumerate(members) if streamable(each, itemsize)]
    at = gemms[0] if gemms else 0
    first, last = members[0], members[-1]
    row[:WORDS] = members[at]
    row[TaskWord.FROM], row[TaskWord.FROM_BYTES] = first[Word.B], first[Word.STRIDE_B]
    row[TaskWord.RESULT_M], row[TaskWord.RESULT], row[TaskWord.RESULT_STRIDE] = last[[Word.M, Word.C, Word.STRIDE_C]]
    row[TaskWord.STREAMED] = len(gemms)
    if gemms:
        _cut(row, itemsize)
        if at:
            row[TaskWord.GAIN] = first[Word.A]
        if len(members) > at + 1:
            row[TaskWord.THEN], row[TaskWord.ADDED], row[TaskWord.ADDED_STRIDE] = last[[Word.OP, Word.A, Word.STRIDE_A]]
            row[TaskWord.PAIR_ROWS] = last[Word.M] if last[Word.OP] == Op.SILU_MUL else 0
    elif len(members) > 1:
        _, write, qk, softmax, _ = members
        row[TaskWord.ATTENDS], row[TaskWord.CACHE] = 1, write[Word.C]
        row[TaskWord.SLOTS], row[TaskWord.SLOTS_STRIDE] = write[[Word.A, Word.STRIDE_A]]
        row[TaskWord.SCORES], row[TaskWord.SCORES_STRIDE] = qk[[Word.C, Word.STRIDE_C]]
        row[TaskWord.PROBABILITIES], row[TaskWord.PROBABILITIES_STRIDE] = softmax[[Word.C, Word.STRIDE_C]]


def _parts(row: NDArray[np.int64]) -> int:
    """Return the number of parts into which a task can be divided. A streamed GEMM: its tiles, or pairs of tiles."""
    if row[TaskWord.ATTENDS]:
        return int(row[Word.REQUESTS] * row[Word.KV_HEADS])
    if row[Word.OP] == JOIN:
        return 1
    if row[Word.OP] != Op.GEMM:
        return int(row[Word.GRID_X : Word.GRID_Z + 1].prod())
    return int(-(-row[TaskWord.RESULT_M] // TILE_ROWS) if row[TaskWord.STREAMED] else row[Word.M])


def _find_added(tasks: Tasks, i: int, columns: int, itemsize: int) -> bool:
    """Make sure that task i has the operand that its OP_ADD adds.

    Another task, j, has stored that operand. If blocks share tasks i and j in the same way, each thread adds elements
    that it has stored itself, and needs no wait (`order`). Otherwise task i receives the elements through mailboxes, if
    j sends them, or waits for task j. Return False if task i would then wait for more than MOST_WAITS others.
    """
    row = tasks[i]
    stored = (tasks[:i, TaskWord.RESULT] == row[TaskWord.ADDED]) & (tasks[:i, TaskWord.STREAMED] == 1)
    if row[TaskWord.THEN] != Op.ADD or not stored.any():
        return True
    j = int(np.flatnonzero(stored)[-1])
    box, count = tasks[j, TaskWord.BOX], int(row[Word.WAITS])
    if tasks[j, TaskWord.SPLIT] == row[TaskWord.SPLIT] or j in row[Word.WAIT0 : Word.WAIT0 + count]:
        return True
    if box != NOBODY and (tasks[j, SENT] == row[WANTED]).all():
        row[TaskWord.ADDED], row[TaskWord.ADDED_STRIDE] = (
            box,
            box_stride(int(tasks[j, TaskWord.RESULT_M]), columns, itemsize)[0],
        )
        row[TaskWord.ADDED_MAILED] = 1
        return True
    if count == MOST_WAITS:
        return False
    row[Word.WAIT0 + count], row[Word.WAITS] = j, count + 1
    return True


def _is_shared(row: NDArray[np.int64], parts: int, blocks: int) -> bool:
    """Return whether the two blocks of a cluster share the tiles of a GEMM, with half of k each.

    They do if a block's inputs of all of k take more than PAIRS_INPUT_BYTES. They also do if the inputs take more than
    half of that, the cluster needs only one pass, and no norm is fused. In this case exchanging sums takes less time
    than loading the other half of the inputs.
    """
    if not row[TaskWord.STREAMED] or row[Word.REQUESTS] == 1:
        return False
    used, columns = int(row[TaskWord.ROW_USED_BYTES]), min(int(row[Word.REQUESTS]), MOST_COLUMNS)
    is_deep = used > PAIRS_INPUT_BYTES >> (columns - 1).bit_length()
    has_many = 2 * columns * used > PAIRS_INPUT_BYTES and not row[TaskWord.GAIN]
    tiles = -(-parts // (blocks // 2)) << int(row[TaskWord.PAIR_ROWS] > 0)
    return (is_deep or (has_many and tiles <= PASS_TILES)) and -(-used // PIECE_BYTES) % 2 == 0


def _cut(row: NDArray[np.int64], itemsize: int) -> None:
    """Set the bytes of k whose inputs a streamed GEMM holds at once, and the columns that follow from them."""
    columns = min(int(row[Word.REQUESTS]), MOST_COLUMNS)
    most_bytes = inputs_bytes(columns, itemsize) >> (columns - 1).bit_length()
    row[TaskWord.ROUND_BYTES] = HELD_BYTES if is_held(columns, itemsize) else most_bytes
    row[TaskWord.INPUT_ROW_BYTES] = (row[TaskWord.ROUND_BYTES] << (columns > 1)) + INPUT_GAP_BYTES
    row[TaskWord.ROW_USED_BYTES] = row[Word.K] * itemsize


def _is_one_step(row: NDArray[np.int64], itemsize: int) -> bool:
    """Return whether a task allows the macro ONE_STEP.

    It does if it is a streamed GEMM, each block's weights fit into PASS_TILES slots, and its inputs fit into the memory
    for them.
    """
    if not row[TaskWord.STREAMED] or row[Word.REQUESTS] > MOST_COLUMNS:
        return False
    tiles = int(row[TaskWord.TILES_EACH] + (row[TaskWord.TILES_MORE] > 0)) << int(row[TaskWord.PAIR_ROWS] > 0)
    pieces = -(-int(row[TaskWord.ROW_USED_BYTES]) // (PIECE_BYTES << int(row[TaskWord.SPLIT])))
    together = pieces == 1 or itemsize < 4  # pieces_together of kernels/megakernel/tiles.cuh
    return together and tiles * pieces <= PASS_TILES and pieces * PIECE_BYTES <= int(row[TaskWord.ROUND_BYTES])


def defines_of(tasks: Tasks) -> dict[str, int]:
    """Return the macros of a list (kernels/megakernel/config.cuh), without SLOTS.

    They include the shape of attention if it is the same in the whole list, so that the kernel divides by constants.
    """
    alone = tasks[(tasks[:, TaskWord.STREAMED] == 0) & (tasks[:, TaskWord.ATTENDS] == 0) & (tasks[:, Word.OP] != JOIN)]
    attending = [Op.ROPE] if tasks[:, TaskWord.ATTENDS].any() else []
    normed = [Op.NORM] if tasks[:, TaskWord.GAIN].any() else []
    found = {
        "COLUMNS": compiled_columns(int(tasks[:, Word.REQUESTS].max(initial=1))),
        "OPS": _bits(alone[:, Word.OP].tolist()),
        "FUSED": _bits([*attending, *normed, *filter(None, tasks[:, TaskWord.THEN].tolist())]),
        "GROUPS": int(tasks[:, Word.REQUESTS].max(initial=1) > MOST_COLUMNS),
        "COUNTS": int(tasks[:, TaskWord.COUNTED].any()),
        "ONE_STEP": int(tasks[tasks[:, TaskWord.STREAMED] == 1, TaskWord.ONE_STEP].all()),
        "PAIRS": int(tasks[:, TaskWord.SPLIT].any()),
        "LOGITS": int(len(tasks) > 0 and tasks[-1, TaskWord.STREAMED] == 1 and tasks[-1, TaskWord.THEN] == 0),
        **_attention(tasks[tasks[:, TaskWord.ATTENDS] == 1]),
    }
    is_short = found["COLUMNS"] == 1 and found["ONE_STEP"] and not found["OPS"] and not found["FUSED"]
    return {**found, "SHORT": int(is_short)}


def _attention(attending: Tasks) -> dict[str, int]:
    """Return the macro QK_NORM; and HEAD_DIM, GROUP and PAGE_TOKENS, if there is attention and has one shape."""
    norms = {"QK_NORM": 1} if attending[:, Word.QK_NORM].any() else {}  # a list is that of one model
    shapes = np.unique(attending[:, [Word.HEAD_DIM, Word.Q_HEADS, Word.KV_HEADS, Word.PAGE_TOKENS]], axis=0)
    if len(shapes) != 1:
        return norms
    head_dim, q_heads, kv_heads, page_tokens = map(int, shapes[0])
    return {"HEAD_DIM": head_dim, "GROUP": q_heads // kv_heads, "PAGE_TOKENS": page_tokens, **norms}


def _bits(ops: list[int]) -> int:
    found = 0
    for op in ops:
        found |= 1 << op
    return found

"""What kernels/megakernel.cu needs to know beside a list of instructions: how a grid goes about each.

In: a list (`instructions`), and how many blocks the grid has. Out: struct Task of each instruction: its row, behind it
how many blocks have a share of it, how far the counters that it waits for come a launch, how a GEMM's work is cut, and
where its mail lies; struct Weights of the GEMMs whose weights are copied ahead of time, in the order of the list; and
how the kernel is to be compiled for such a list, with what shared memory.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.devices.instructions import JOIN, NOBODY, WORDS, Instructions, Word, streamable

TILE_ROWS, PIECE_BYTES, MOST_COLUMNS = 8, 2048, 16  # of kernels/weights.cuh and skinny.cuh
INPUT_BYTES, INPUT_GAP_BYTES = {1: 32 << 10, MOST_COLUMNS: 64 << 10}, 64  # of kernels/tiles.cuh, by COLUMNS
WARPS, PART_ROWS = 8, 40
SLOT_BYTES = TILE_ROWS * (PIECE_BYTES + 64)
STATIC_BYTES = 8 << 10  # what ops declare for themselves, at the most
LEAST_SLOTS = 6
ALIGNMENT_BYTES = 256


class Extra(enum.IntEnum):
    """A column of a task, behind those of its instruction: see struct Task."""

    SHARE = WORDS
    ENOUGH0 = WORDS + 1
    ENOUGH1 = WORDS + 2
    ENOUGH2 = WORDS + 3
    ENOUGH3 = WORDS + 4
    COUNTED = WORDS + 5
    STREAMED = WORDS + 6
    TILES_EACH = WORDS + 7
    TILES_MORE = WORDS + 8
    ROW_USED_BYTES = WORDS + 9
    ROUND_BYTES = WORDS + 10
    COLUMN_BYTES = WORDS + 11
    MAILED = WORDS + 12
    FROM_BYTES = WORDS + 13
    FROM = WORDS + 14
    BOX = WORDS + 15


TASK_WORDS = WORDS + len(Extra)
# Struct Weights.
WEIGHTS = np.dtype(
    [
        ("a", "u8"),
        *((name, "u4") for name in ("row_bytes", "row_used_bytes", "rows", "groups")),
        *((name, "u4") for name in ("tiles_each", "tiles_more", "pieces", "nothing")),
    ]
)

Tasks = NDArray[np.int64]  # [instructions, TASK_WORDS]


def tasks_of(instructions: Instructions, blocks: int, itemsize: int) -> tuple[Tasks, int]:
    """Tasks, their boxes at places from 0 on (NOBODY where there is none); and how many bytes these take."""
    tasks = np.zeros((len(instructions), TASK_WORDS), np.int64)
    tasks[:, :WORDS] = instructions
    tasks[:, Extra.BOX] = NOBODY
    box_bytes = 0
    for row in tasks:
        row[Extra.STREAMED] = streamable(row, itemsize)
        parts = _parts(row)
        row[Extra.SHARE] = min(blocks, parts)
        if row[Extra.STREAMED]:
            row[Extra.TILES_EACH], row[Extra.TILES_MORE] = divmod(parts, blocks)
            _cut(row, itemsize)
        count = int(row[Word.WAITS])
        waits = row[Word.WAIT0 : Word.WAIT0 + count]
        tasks[waits, Extra.COUNTED] = 1
        row[Extra.ENOUGH0 : Extra.ENOUGH0 + count] = tasks[waits, Extra.SHARE]
        if row[Word.MAIL] == NOBODY:
            continue
        sender = tasks[row[Word.MAIL]]
        column_bytes = int(sender[Word.M]) * itemsize
        if sender[Extra.BOX] == NOBODY:
            sender[Extra.BOX] = box_bytes
            box_bytes += -(-int(sender[Word.REQUESTS]) * column_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        row[Extra.MAILED], row[Extra.FROM], row[Extra.FROM_BYTES] = 1, sender[Extra.BOX], column_bytes
    return tasks, box_bytes


def _parts(row: NDArray[np.int64]) -> int:
    """How many blocks an instruction can have a use for."""
    if row[Word.OP] == JOIN:
        return 1
    if row[Word.OP] != Op.GEMM:
        return int(row[Word.GRID_X : Word.GRID_Z + 1].prod())
    return int(-(-row[Word.M] // TILE_ROWS) if row[Extra.STREAMED] else row[Word.M])


def _cut(row: NDArray[np.int64], itemsize: int) -> None:
    """Of a streamed GEMM, how much of k is done at once, and where its inputs are, if they do not come by mail."""
    columns = min(int(row[Word.REQUESTS]), MOST_COLUMNS)
    row[Extra.ROUND_BYTES] = INPUT_BYTES[compiled_columns(columns)] >> (columns - 1).bit_length()
    row[Extra.COLUMN_BYTES] = row[Extra.ROUND_BYTES] + INPUT_GAP_BYTES
    row[Extra.ROW_USED_BYTES] = row[Word.K] * itemsize
    row[Extra.FROM], row[Extra.FROM_BYTES] = row[Word.B], row[Word.STRIDE_B]


def weights_of(tasks: Tasks, itemsize: int) -> NDArray[np.void]:
    """Of each streamed GEMM, in order, where its weights lie; last one of no rows, and one for who looks further."""
    streamed = tasks[tasks[:, Extra.STREAMED] == 1]
    found = np.zeros(len(streamed) + 2, WEIGHTS)
    columns = {"a": Word.A, "rows": Word.M, "tiles_each": Extra.TILES_EACH, "tiles_more": Extra.TILES_MORE}
    for name, column in {**columns, "row_used_bytes": Extra.ROW_USED_BYTES}.items():
        found[name][:-2] = streamed[:, column]
    found["row_bytes"][:-2] = streamed[:, Word.LDA] * itemsize
    found["pieces"][:-2] = -(-streamed[:, Extra.ROW_USED_BYTES] // PIECE_BYTES)
    found["groups"][:-2] = -(-streamed[:, Word.REQUESTS] // MOST_COLUMNS)
    return found


def compiled_columns(requests: int) -> int:
    """For how many columns the kernel is to be compiled."""
    return 1 if requests == 1 else MOST_COLUMNS


def fixed_bytes(columns: int) -> int:
    """Of struct Memory, but for the ring; `columns`: as compiled."""
    return INPUT_BYTES[columns] + columns * INPUT_GAP_BYTES + WARPS * columns * PART_ROWS * 4


def slots_of(columns: int, shared_bytes: int) -> int:
    """How many slots there is room for, of a block's shared memory."""
    return (shared_bytes - STATIC_BYTES - fixed_bytes(columns)) // SLOT_BYTES


def defines_of(tasks: Tasks) -> dict[str, int]:
    """What the kernel is compiled with for a list, but for SLOTS."""
    has_ops = bool((tasks[:, Extra.STREAMED] == 0).any())
    return {"COLUMNS": compiled_columns(int(tasks[:, Word.REQUESTS].max(initial=1))), "OPS": int(has_ops)}

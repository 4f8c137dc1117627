"""Memory of kernels/megakernel.cu: the shared memory of a block, and the mailboxes in the GPU's memory.

The kernel of a list is compiled for products of 1 column or of MOST_COLUMNS columns (`compiled_columns`). This number
and the size of an element determine the layout of struct Memory (kernels/megakernel/inputs.cuh) and of the mailboxes
(kernels/megakernel/mailboxes.cuh). Below, `columns` is the number of columns for which the kernel is compiled.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.devices.instructions.words import NOBODY, Word
from launchopt.devices.megakernel.task_structs import Tasks, TaskWord
from launchopt.kernels.shared import GROUP_WARPS, MOST_COLUMNS
from launchopt.kernels.shared_megakernel import (
    BOX_BYTES,
    INPUT_GAP_BYTES,
    PAIRS_INPUT_BYTES,
    PART_GAP_ROWS,
    PASS_TILES,
    PIECE_BYTES,
    REGISTER_PIECES,
    ROW_GAP_BYTES,
    SCRATCH_BYTES,
    TILE_ROWS,
)

SLOT_BYTES = TILE_ROWS * (PIECE_BYTES + ROW_GAP_BYTES)  # bytes of a slot in the ring of weights
PART_ROWS = PASS_TILES * TILE_ROWS + PART_GAP_ROWS  # fp32 sums of a warp per column, with the gap behind them
# Bytes of each column's k that a block's warps hold in registers (kernels/megakernel/gemm_in_registers.cuh).
HELD_BYTES = REGISTER_PIECES * PIECE_BYTES
# Bytes reserved for the kernel's static shared memory, without and with QK or AV as tasks of their own. The kernel uses
# at most 8,448 bytes without them, and 12,928 with them, as ptxas reports.
STATIC_BYTES, STATIC_ATTENTION_BYTES = 10 << 10, 13 << 10
LEAST_SLOTS = 6  # fewest slots of the ring of weights
RING_ALIGNMENT_BYTES = 128  # alignment of the ring of weights
EMPTY = 0xFF  # value of each byte of a mailbox before an output is sent to it
# Distance from one sector of mailboxes to the next, in sectors of the L2 cache, by the compiled columns.
SECTORS_APART = {1: 2, MOST_COLUMNS: 1}


def is_held(columns: int, itemsize: int) -> bool:
    """Return whether the inputs of GEMMs are in registers, not in shared memory.

    columns: compiled columns, or the most columns of a GEMM. itemsize: bytes of an element.
    """
    return columns > 1 and itemsize < 4


def inputs_bytes(columns: int, itemsize: int) -> int:
    """Return the bytes of shared memory for inputs. Other ops use the same memory."""
    return PAIRS_INPUT_BYTES if columns > 1 and itemsize == 4 else SCRATCH_BYTES


def fixed_bytes(columns: int, itemsize: int) -> int:
    """Return the bytes of struct Memory before its ring of weights, rounded up to the alignment of the ring."""
    parts = GROUP_WARPS * columns * PART_ROWS * 4
    if is_held(columns, itemsize):
        used = max(SCRATCH_BYTES, 2 * parts)
    else:
        turns = 2 if columns == 1 else 1  # most buffers for the sums of a block (PARTS in inputs.cuh)
        used = inputs_bytes(columns, itemsize) + -(-columns // 2) * INPUT_GAP_BYTES + turns * parts
    return -(-used // RING_ALIGNMENT_BYTES) * RING_ALIGNMENT_BYTES


def slots_of(columns: int, itemsize: int, ops: int, shared_bytes: int) -> int:
    """Return the number of slots of weights for which a block has memory.

    ops: the macro OPS, a bit mask of the ops that are tasks of their own. shared_bytes: shared memory of a block.
    """
    attends = ops >> Op.QK & 1 or ops >> Op.AV & 1
    static_bytes = STATIC_ATTENTION_BYTES if attends else STATIC_BYTES
    return (shared_bytes - static_bytes - fixed_bytes(columns, itemsize)) // SLOT_BYTES


def box_stride(features: int, columns: int, itemsize: int) -> tuple[int, int]:
    """Return the bytes of one group of mailboxes, and the number of columns whose mailboxes it holds.

    features: outputs of each column. itemsize: bytes of an output.
    """
    if is_held(columns, itemsize):
        return -(-features * itemsize // BOX_BYTES) * BOX_BYTES * MOST_COLUMNS, MOST_COLUMNS
    return features * itemsize * SECTORS_APART[columns], 1


def emptied_boxes(tasks: Tasks, box_bytes: int, columns: int, itemsize: int) -> NDArray[np.uint8]:
    """Return one set of empty mailboxes, uint8 [box_bytes].

    A warp loads the mailboxes of MOST_COLUMNS columns at once if inputs are held in registers. The mailboxes of columns
    that do not exist hold zeros then, so that the warp does not wait for them.
    """
    boxes = np.full(box_bytes, EMPTY, np.uint8)
    if not is_held(columns, itemsize):
        return boxes
    for row in tasks[tasks[:, TaskWord.BOX] != NOBODY]:
        stride, together = box_stride(int(row[TaskWord.RESULT_M]), columns, itemsize)
        groups, left = divmod(int(row[Word.REQUESTS]), together)
        first = int(row[TaskWord.BOX]) + groups * stride
        if not left:
            continue
        # Axes: 64 bytes of k; product; column modulo 8; lane of a column; word; column // 8; byte of a word.
        words = boxes[first : first + stride].reshape(-1, 2, 8, 4, 2, 2, 4)
        words[:, :, left:, :, :, 0] = 0
        words[:, :, max(0, left - 8) :, :, :, 1] = 0
    return boxes


def place_boxes(tasks: Tasks, first: int) -> None:
    """Turn the offsets of mailboxes in `tasks` into addresses. first: address of offset 0. NOBODY becomes 0."""
    for flag, word in ((TaskWord.MAILED, TaskWord.FROM), (TaskWord.ADDED_MAILED, TaskWord.ADDED)):
        tasks[tasks[:, flag] == 1, word] += first
    box = tasks[:, TaskWord.BOX]
    box[:] = np.where(box == NOBODY, 0, box + first)

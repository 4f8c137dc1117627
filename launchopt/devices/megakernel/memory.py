"""Memory of kernels/megakernel.cu: the shared memory of a block, and the mailboxes in the GPU's memory.

A list of instructions is compiled for 1 column or MOST_COLUMNS (`compiled_columns`). With the size of an element, that
decides how struct Memory (kernels/megakernel/inputs.cuh) and the mailboxes (kernels/megakernel/mailboxes.cuh) are laid
out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.devices.instructions.words import NOBODY, Word
from launchopt.devices.megakernel.task_structs import Tasks, TaskWord
from launchopt.kernels.shared import (
    BOX_BYTES,
    GROUP_WARPS,
    INPUT_GAP_BYTES,
    MOST_COLUMNS,
    PAIRS_INPUT_BYTES,
    PART_GAP_ROWS,
    PASS_TILES,
    PIECE_BYTES,
    REGISTER_PIECES,
    ROW_GAP_BYTES,
    SCRATCH_BYTES,
    TILE_ROWS,
)

SLOT_BYTES = TILE_ROWS * (PIECE_BYTES + ROW_GAP_BYTES)  # of the ring of weights
PART_ROWS = PASS_TILES * TILE_ROWS + PART_GAP_ROWS  # of fp32 sums, per column and warp
HELD_BYTES = (
    REGISTER_PIECES * PIECE_BYTES
)  # of k, that a warp holds in registers (kernels/megakernel/gemm_in_registers.cuh)
# Static shared memory of the kernel: at most 8,448 bytes, or 12,928 with QK and AV as instructions (ptxas).
STATIC_BYTES, STATIC_ATTENTION_BYTES = 10 << 10, 13 << 10
LEAST_SLOTS = 6  # of the ring of weights
RING_ALIGNMENT_BYTES = 128
EMPTY = 0xFF  # each byte of a mailbox before anything is sent
SECTORS_APART = {
    1: 2,
    MOST_COLUMNS: 1,
}  # sectors of the L2 cache from one of a mailbox to the next, by compiled columns


def is_held(columns: int, itemsize: int) -> bool:
    """Return whether inputs are in registers, not in shared memory. columns: of a list, or as compiled."""
    return columns > 1 and itemsize < 4


def inputs_room(columns: int, itemsize: int) -> int:
    """Return the bytes of shared memory for inputs. Ops use the same memory."""
    return PAIRS_INPUT_BYTES if columns > 1 and itemsize == 4 else SCRATCH_BYTES


def fixed_bytes(columns: int, itemsize: int) -> int:
    """Return the bytes of struct Memory before the ring of weights, aligned for it. columns: as compiled."""
    parts = GROUP_WARPS * columns * PART_ROWS * 4
    if is_held(columns, itemsize):
        used = max(SCRATCH_BYTES, 2 * parts)
    else:
        turns = 2 if columns == 1 else 1  # most places for the sums of a block
        used = inputs_room(columns, itemsize) + -(-columns // 2) * INPUT_GAP_BYTES + turns * parts
    return -(-used // RING_ALIGNMENT_BYTES) * RING_ALIGNMENT_BYTES


def slots_of(columns: int, itemsize: int, ops: int, shared_bytes: int) -> int:
    """Return how many slots of weights fit into `shared_bytes` of a block. columns, ops: as compiled."""
    attends = ops >> Op.QK & 1 or ops >> Op.AV & 1
    static_bytes = STATIC_ATTENTION_BYTES if attends else STATIC_BYTES
    return (shared_bytes - static_bytes - fixed_bytes(columns, itemsize)) // SLOT_BYTES


def box_stride(features: int, columns: int, itemsize: int) -> tuple[int, int]:
    """Return the bytes of one group of boxes, and how many columns a group has. columns: as compiled."""
    if is_held(columns, itemsize):
        return -(-features * itemsize // BOX_BYTES) * BOX_BYTES * MOST_COLUMNS, MOST_COLUMNS
    return features * itemsize * SECTORS_APART[columns], 1


def emptied_boxes(tasks: Tasks, box_bytes: int, columns: int, itemsize: int) -> NDArray[np.uint8]:
    """Return empty mailboxes of one launch, uint8 [box_bytes]. Mailboxes of columns that do not exist are zeros.

    columns: as compiled.
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
        # [64 bytes of k, product, columns, lanes of a column, words, columns 8 apart, bytes].
        words = boxes[first : first + stride].reshape(-1, 2, 8, 4, 2, 2, 4)
        words[:, :, left:, :, :, 0] = 0
        words[:, :, max(0, left - 8) :, :, :, 1] = 0
    return boxes


def place_boxes(tasks: Tasks, first: int) -> None:
    """Turn the offsets of mailboxes into addresses, the first one at `first`; NOBODY becomes 0."""
    for flag, word in ((TaskWord.MAILED, TaskWord.FROM), (TaskWord.ADDED_MAILED, TaskWord.ADDED)):
        tasks[tasks[:, flag] == 1, word] += first
    box = tasks[:, TaskWord.BOX]
    box[:] = np.where(box == NOBODY, 0, box + first)

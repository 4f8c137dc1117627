"""Mailboxes in the GPU's memory, through which GEMMs and attention exchange data (kernels/megakernel/mailboxes.cuh).

In: tasks (`megakernel_tasks`), whose boxes have places from 0 on. Out: what is in them before anything was sent, and
tasks that know where they are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.instructions.words import MOST_COLUMNS, NOBODY, Word
from launchopt.devices.megakernel.shared_memory import is_held
from launchopt.devices.megakernel.task_words import Extra, Tasks

EMPTY = 0xFF  # each byte
SECTORS_APART = {1: 2, MOST_COLUMNS: 1}  # by COLUMNS
COLUMN_BYTES = 64  # of a column, where those of several lie together


def box_stride(features: int, columns: int, itemsize: int) -> tuple[int, int]:
    """Return the bytes of one group of boxes, and how many columns a group has. columns: as compiled."""
    if is_held(columns, itemsize):
        return -(-features * itemsize // COLUMN_BYTES) * COLUMN_BYTES * MOST_COLUMNS, MOST_COLUMNS
    return features * itemsize * SECTORS_APART[columns], 1


def emptied_boxes(tasks: Tasks, box_bytes: int, columns: int, itemsize: int) -> NDArray[np.uint8]:
    """Boxes of a launch, uint8 [box_bytes], before anything is in them: of columns that there are not, zeros.

    columns: as compiled.
    """
    boxes = np.full(box_bytes, EMPTY, np.uint8)
    if not is_held(columns, itemsize):
        return boxes
    for row in tasks[tasks[:, Extra.BOX] != NOBODY]:
        stride, together = box_stride(int(row[Extra.RESULT_M]), columns, itemsize)
        groups, left = divmod(int(row[Word.REQUESTS]), together)
        first = int(row[Extra.BOX]) + groups * stride
        if not left:
            continue
        # Of either product, 8 columns, 4 lanes that share one, and two words of columns 8 apart.
        words = boxes[first : first + stride].reshape(-1, 2, 8, 4, 2, 2, 4)
        words[:, :, left:, :, :, 0] = 0
        words[:, :, max(0, left - 8) :, :, :, 1] = 0
    return boxes


def place_boxes(tasks: Tasks, first: int) -> None:
    """Have tasks know where boxes are in memory, the first one at the address `first`; 0 where there is none."""
    for flag, word in ((Extra.MAILED, Extra.FROM), (Extra.ADDED_MAILED, Extra.ADDED)):
        tasks[tasks[:, flag] == 1, word] += first
    box = tasks[:, Extra.BOX]
    box[:] = np.where(box == NOBODY, 0, box + first)

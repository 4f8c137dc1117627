"""The words of a task, which is an instruction, or some that are done as one, as kernels/megakernel.cu goes about it.

Behind the words of the instruction that matters (`instruction_words`) lie those of `Extra` (`megakernel_tasks`).
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.instructions.words import WORDS


class Extra(enum.IntEnum):
    """A column of a task, behind those of its instruction: see struct Task of kernels/megakernel/tasks.cuh."""

    SHARE = WORDS
    ENOUGH0 = WORDS + 1
    ENOUGH1 = WORDS + 2
    ENOUGH2 = WORDS + 3
    ENOUGH3 = WORDS + 4
    COUNTED = WORDS + 5
    STREAMED = WORDS + 6
    TILES_EACH = WORDS + 7
    TILES_MORE = WORDS + 8
    SPLIT = WORDS + 9
    ROW_USED_BYTES = WORDS + 10
    ROUND_BYTES = WORDS + 11
    INPUT_ROW_BYTES = WORDS + 12
    MAILED = WORDS + 13
    FROM_BYTES = WORDS + 14
    FROM = WORDS + 15
    BOX = WORDS + 16
    RESULT_M = WORDS + 17
    RESULT = WORDS + 18
    RESULT_STRIDE = WORDS + 19
    GAIN = WORDS + 20
    THEN = WORDS + 21
    ADDED = WORDS + 22
    ADDED_STRIDE = WORDS + 23
    ADDED_MAILED = WORDS + 24
    PAIR_ROWS = WORDS + 25
    ATTENDS = WORDS + 26
    CACHE = WORDS + 27
    SLOTS = WORDS + 28
    SLOTS_STRIDE = WORDS + 29
    SCORES = WORDS + 30
    SCORES_STRIDE = WORDS + 31
    PROBABILITIES = WORDS + 32
    PROBABILITIES_STRIDE = WORDS + 33
    ONE_STEP = WORDS + 34


TASK_WORDS = WORDS + len(Extra)
Tasks = NDArray[np.int64]  # [instructions, TASK_WORDS]

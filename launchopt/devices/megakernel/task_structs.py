"""Tasks: their columns, and the structs in which kernels/megakernel.cu reads them.

A task is one instruction, or several fused ones, and the division of its work among the blocks of the grid. A table of
tasks is int64 [tasks, TASK_WORDS]. Its first columns are those of the task's main instruction (`Word`); the others are
`TaskWord`. `packed` and `weights_of` copy such a table into the structs of launchopt/kernels/shared_megakernel.py.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.devices.instructions.words import STREAMED_BYTES_APART, WORDS, Word
from launchopt.errors import RunError
from launchopt.kernels.shared import MOST_COLUMNS
from launchopt.kernels.shared_megakernel import INSTRUCTION, MOST_WAITS, PIECE_BYTES, TASK, WEIGHTS, TaskFlag


class TaskWord(enum.IntEnum):
    """Columns of a task behind those of its instruction. TASK and TaskFlag (kernels/shared_megakernel.py) explain most.

    ROW_USED_BYTES: bytes of k. THEN: op that is fused behind a GEMM, or 0. ONE_STEP: 1 if the task allows the macro
    ONE_STEP. STREAMED, SPLIT, MAILED, COUNTED, ATTENDS, ADDED_MAILED: 0 or 1, as the TaskFlag of that name.
    """

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


TASK_WORDS = WORDS + len(TaskWord)
Tasks = NDArray[np.int64]  # [tasks, TASK_WORDS]


def packed(tasks: Tasks) -> NDArray[np.void]:
    """Return the tasks as TASK [tasks]. `memory.place_boxes` must have set the addresses of mailboxes.

    RunError: the inputs of two requests of fused attention are too far apart in memory. (GEMMs with such requests are
    not streamed.)
    """
    found = np.zeros(len(tasks), TASK)
    found["flags"] = sum(flag * has for flag, has in _flags(tasks).items())
    found["bytes"], found["other_bytes"] = _halves(tasks)
    reads = (tasks[:, [TaskWord.STREAMED, TaskWord.ATTENDS]] > 0).any(axis=1)
    apart = np.where(reads, tasks[:, TaskWord.FROM_BYTES], 0)
    if (far := apart[(apart < 0) | (apart >= STREAMED_BYTES_APART)]).size:
        raise RunError(f"inputs of two requests lie {far[0]} bytes apart, of 0 to {STREAMED_BYTES_APART - 1}")
    found["from_bytes"] = apart
    for name, word in (("c", Word.C), ("stride_c", Word.STRIDE_C), ("requests", Word.REQUESTS)):
        found[name] = tasks[:, word]
    for name in TASK.names or ():
        if name.upper() in TaskWord.__members__ and name != "from_bytes":
            found[name] = tasks[:, TaskWord[name.upper()]]
    waits = tasks[:, [Word.WAITS]] > np.arange(MOST_WAITS)
    found["wait"] = np.where(waits, tasks[:, Word.WAIT0 : Word.WAIT3 + 1], 0)
    found["enough"] = np.where(waits, tasks[:, TaskWord.ENOUGH0 : TaskWord.ENOUGH3 + 1], 0)
    found["in"] = np.ascontiguousarray(tasks[:, : Word.WAITS]).view(INSTRUCTION)[:, 0]
    return found


def weights_of(tasks: Tasks, itemsize: int) -> NDArray[np.void]:
    """Return the weights of the streamed GEMMs as WEIGHTS, in the order of the list.

    Two elements without rows follow. The first one ends the list; the kernel reads the second one ahead.
    """
    streamed = tasks[tasks[:, TaskWord.STREAMED] == 1]
    found = np.zeros(len(streamed) + 2, WEIGHTS)
    found["a"][:-2], found["rows"][:-2] = streamed[:, Word.A], streamed[:, Word.M]
    for name in ("gain", "split", "tiles_each", "tiles_more", "pair_rows"):
        found[name][:-2] = streamed[:, TaskWord[name.upper()]]
    found["bytes"][:-2], found["other_bytes"][:-2] = _halves(streamed)
    found["row_bytes"][:-2] = streamed[:, Word.LDA] * itemsize
    found["pieces"][:-2] = -(-streamed[:, TaskWord.ROW_USED_BYTES] // (PIECE_BYTES << streamed[:, TaskWord.SPLIT]))
    found["groups"][:-2] = -(-streamed[:, Word.REQUESTS] // MOST_COLUMNS)
    return found


def _flags(tasks: Tasks) -> dict[TaskFlag, NDArray[np.bool_]]:
    """Return for each flag a mask of the tasks that have it."""
    same = TaskFlag.SPLIT, TaskFlag.STREAMED, TaskFlag.MAILED, TaskFlag.COUNTED, TaskFlag.ATTENDS, TaskFlag.ADDED_MAILED
    found = {flag: tasks[:, TaskWord[str(flag.name)]] == 1 for flag in same}
    found[TaskFlag.WAITS], found[TaskFlag.NORMED] = tasks[:, Word.WAITS] > 0, tasks[:, TaskWord.GAIN] != 0
    found[TaskFlag.NORMED_ODD] = found[TaskFlag.NORMED] & (np.cumsum(found[TaskFlag.NORMED]) % 2 == 0)
    found[TaskFlag.ADDS], found[TaskFlag.GATED] = (tasks[:, TaskWord.THEN] == op for op in (Op.ADD, Op.SILU_MUL))
    return found


def _halves(tasks: Tasks) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bytes of k that the first and the second block of a cluster multiply, for each task.

    If no blocks share tiles, the first array holds all bytes of k, for each block, and the second holds zeros.
    """
    used = tasks[:, TaskWord.ROW_USED_BYTES]
    half = -(-used // (2 * PIECE_BYTES)) * PIECE_BYTES
    first = np.where(tasks[:, TaskWord.SPLIT] == 1, half, used)
    return first, used - first

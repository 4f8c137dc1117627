"""What kernels/megakernel.cu is told of tasks, and of the weights that are copied ahead of them, byte by byte.

In: tasks (`megakernel_tasks`), and how many bytes an element takes. Out: struct Task of kernels/megakernel/tasks.cuh of
each, what a GEMM wants first in front; and struct Weights of kernels/megakernel/weights.cuh of those whose weights are
copied ahead of time, in the order of the list.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.devices.instructions.words import MOST_COLUMNS, MOST_WAITS, STREAMED_BYTES_APART, Word
from launchopt.devices.megakernel.shared_memory import PIECE_BYTES
from launchopt.devices.megakernel.task_words import Extra, Tasks
from launchopt.errors import RunError


class Flag(enum.IntFlag):
    """What a task is: see kernels/megakernel/tasks.cuh. SPLIT is the lowest one, as a number of 0 or 1."""

    SPLIT = 1
    STREAMED = 2
    MAILED = 4
    COUNTED = 8
    WAITS = 16
    ATTENDS = 32
    NORMED = 64
    ADDS = 128
    ADDED_MAILED = 256
    GATED = 512
    NORMED_ODD = 1024


TASK = np.dtype(
    [
        *((name, "<u4") for name in ("flags", "share", "tiles_each", "tiles_more")),
        *((name, "<u4") for name in ("bytes", "other_bytes", "round_bytes", "input_row_bytes")),
        *(("from", "<u8"), ("from_bytes", "<u4"), ("requests", "<u4")),
        *(("box", "<u8"), ("c", "<u8")),
        *(("stride_c", "<i8"), ("result_m", "<u4"), ("pair_rows", "<u4")),
        *(("result", "<u8"), ("result_stride", "<i8")),
        *(("gain", "<u8"), ("added", "<u8"), ("added_stride", "<i8")),
        *(("cache", "<u8"), ("slots", "<u8"), ("slots_stride", "<i8")),
        *(("scores", "<u8"), ("scores_stride", "<i8"), ("probabilities", "<u8"), ("probabilities_stride", "<i8")),
        *((name, "<u4", (MOST_WAITS,)) for name in ("wait", "enough")),
        ("in", "<i8", (Word.WAITS,)),
    ]
)
WEIGHTS = np.dtype(
    [
        *((name, "<u8") for name in ("a", "gain")),
        *((name, "<u4") for name in ("row_bytes", "rows", "groups", "pieces", "pair_rows")),
        *((name, "<u4") for name in ("split", "tiles_each", "tiles_more", "bytes", "other_bytes")),
    ]
)


def packed(tasks: Tasks) -> NDArray[np.void]:
    """struct Task of each, [tasks]; addresses are those of `place_boxes`.

    RunError where attention's requests lie too far apart: of GEMMs, such ones are not streamed.
    """
    found = np.zeros(len(tasks), TASK)
    found["flags"] = sum(flag * has for flag, has in _flags(tasks).items())
    found["bytes"], found["other_bytes"] = _halves(tasks)
    reads = (tasks[:, [Extra.STREAMED, Extra.ATTENDS]] > 0).any(axis=1)
    apart = np.where(reads, tasks[:, Extra.FROM_BYTES], 0)
    if (far := apart[(apart < 0) | (apart >= STREAMED_BYTES_APART)]).size:
        raise RunError(f"inputs of two requests lie {far[0]} bytes apart, of 0 to {STREAMED_BYTES_APART - 1}")
    found["from_bytes"] = apart
    for name, word in (("c", Word.C), ("stride_c", Word.STRIDE_C), ("requests", Word.REQUESTS)):
        found[name] = tasks[:, word]
    for name in TASK.names or ():
        if name.upper() in Extra.__members__ and name != "from_bytes":
            found[name] = tasks[:, Extra[name.upper()]]
    waits = tasks[:, [Word.WAITS]] > np.arange(MOST_WAITS)
    found["wait"] = np.where(waits, tasks[:, Word.WAIT0 : Word.WAIT3 + 1], 0)
    found["enough"] = np.where(waits, tasks[:, Extra.ENOUGH0 : Extra.ENOUGH3 + 1], 0)
    found["in"] = tasks[:, : Word.WAITS]
    return found


def weights_of(tasks: Tasks, itemsize: int) -> NDArray[np.void]:
    """Of each streamed GEMM, in order, where its weights lie; last one of no rows, and one for who looks further."""
    streamed = tasks[tasks[:, Extra.STREAMED] == 1]
    found = np.zeros(len(streamed) + 2, WEIGHTS)
    found["a"][:-2], found["rows"][:-2] = streamed[:, Word.A], streamed[:, Word.M]
    for name in ("gain", "split", "tiles_each", "tiles_more", "pair_rows"):
        found[name][:-2] = streamed[:, Extra[name.upper()]]
    found["bytes"][:-2], found["other_bytes"][:-2] = _halves(streamed)
    found["row_bytes"][:-2] = streamed[:, Word.LDA] * itemsize
    found["pieces"][:-2] = -(-streamed[:, Extra.ROW_USED_BYTES] // (PIECE_BYTES << streamed[:, Extra.SPLIT]))
    found["groups"][:-2] = -(-streamed[:, Word.REQUESTS] // MOST_COLUMNS)
    return found


def _flags(tasks: Tasks) -> dict[Flag, NDArray[np.bool_]]:
    """Of each flag, which tasks have it."""
    same = Flag.SPLIT, Flag.STREAMED, Flag.MAILED, Flag.COUNTED, Flag.ATTENDS, Flag.ADDED_MAILED
    found = {flag: tasks[:, Extra[str(flag.name)]] == 1 for flag in same}
    found[Flag.WAITS], found[Flag.NORMED] = tasks[:, Word.WAITS] > 0, tasks[:, Extra.GAIN] != 0
    found[Flag.NORMED_ODD] = found[Flag.NORMED] & (np.cumsum(found[Flag.NORMED]) % 2 == 0)
    found[Flag.ADDS], found[Flag.GATED] = (tasks[:, Extra.THEN] == op for op in (Op.ADD, Op.SILU_MUL))
    return found


def _halves(tasks: Tasks) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes of k of a block; where two share them, of the first one, in whole pieces, and of the second one."""
    used = tasks[:, Extra.ROW_USED_BYTES]
    half = -(-used // (2 * PIECE_BYTES)) * PIECE_BYTES
    first = np.where(tasks[:, Extra.SPLIT] == 1, half, used)
    return first, used - first

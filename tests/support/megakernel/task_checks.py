"""What holds of the tasks of any list (devices/megakernel_tasks.py)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from launchopt.devices.instructions.words import (
    GEMM_TILE_ROWS,
    NOBODY,
    PART,
    Instructions,
    Word,
    groups_of,
    streamable,
)
from launchopt.devices.megakernel.shared_memory import PIECE_BYTES
from launchopt.devices.megakernel.task_words import Extra, Tasks


def check_tasks(program: Instructions, tasks: Tasks, box_bytes: int, itemsize: int, blocks: int) -> None:
    """A task each, those that it waits for by their own numbers, boxes apart, and what is split in whole halves."""
    groups = groups_of(program)
    heads = np.array([group[0] for group in groups])
    assert len(tasks) == len(groups) == (program[:, Word.FUSED] != PART).sum()
    shares = []
    for i, (row, group) in enumerate(zip(tasks, groups, strict=True)):
        head, count = program[group[0]], int(row[Word.WAITS])
        for word in (*range(Word.WAIT0, Word.WAIT0 + count), Word.MAIL):
            assert (row[word] == NOBODY) == (head[word] == NOBODY)
            assert row[word] < i
            assert row[word] == NOBODY or heads[row[word]] == head[word]
        own = row[Word.WAIT0 : Word.WAIT0 + count]
        assert row[Extra.ENOUGH0 : Extra.ENOUGH0 + count].tolist() == tasks[own, Extra.SHARE].tolist()
        assert tasks[own, Extra.COUNTED].all()
        assert row[Extra.STREAMED] == any(streamable(each, itemsize) for each in program[group])
        assert 1 <= row[Extra.SHARE] <= blocks
        if row[Extra.SPLIT]:
            assert row[Extra.STREAMED]
            assert row[Extra.SHARE] % 2 == 0
            assert not row[Extra.GAIN], "a norm wants all of k"
            assert -(-row[Extra.ROW_USED_BYTES] // PIECE_BYTES) % 2 == 0
        if row[Extra.STREAMED]:
            units = blocks // (1 + row[Extra.SPLIT])
            tiles = -(-int(row[Extra.RESULT_M]) // GEMM_TILE_ROWS)
            assert row[Extra.TILES_EACH] * units + row[Extra.TILES_MORE] == tiles
        if row[Extra.BOX] != NOBODY:
            assert i in tasks[:, Word.MAIL]
            size = int(row[Extra.RESULT_M] * row[Word.REQUESTS]) * itemsize
            shares.append((int(row[Extra.BOX]), int(row[Extra.BOX]) + size))
    waits = tasks[:, Word.WAIT0 : Word.WAIT3 + 1]
    assert set(np.flatnonzero(tasks[:, Extra.COUNTED]).tolist()) == set(waits[waits != NOBODY].tolist())
    assert all(one[1] <= other[0] for one, other in pairwise(sorted(shares)))
    assert all(first >= 0 and stop <= box_bytes for first, stop in shares)

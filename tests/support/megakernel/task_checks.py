"""Rules that the tasks of every list obey (devices/megakernel/tasks.py)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from launchopt.devices.instructions.words import NOBODY, PART, Instructions, Word, groups_of, streamable
from launchopt.devices.megakernel.task_structs import Tasks, TaskWord
from launchopt.kernels.shared_megakernel import PIECE_BYTES, TILE_ROWS


def check_tasks(program: Instructions, tasks: Tasks, box_bytes: int, itemsize: int, blocks: int) -> None:
    """Check the numbers of tasks and waits, that boxes do not overlap, and that shared GEMMs have equal halves."""
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
        assert row[TaskWord.ENOUGH0 : TaskWord.ENOUGH0 + count].tolist() == tasks[own, TaskWord.SHARE].tolist()
        assert tasks[own, TaskWord.COUNTED].all()
        assert row[TaskWord.STREAMED] == any(streamable(each, itemsize) for each in program[group])
        assert 1 <= row[TaskWord.SHARE] <= blocks
        if row[TaskWord.SPLIT]:
            assert row[TaskWord.STREAMED]
            assert row[TaskWord.SHARE] % 2 == 0
            assert not row[TaskWord.GAIN], "a norm wants all of k"
            assert -(-row[TaskWord.ROW_USED_BYTES] // PIECE_BYTES) % 2 == 0
        if row[TaskWord.STREAMED]:
            units = blocks // (1 + row[TaskWord.SPLIT])
            tiles = -(-int(row[TaskWord.RESULT_M]) // TILE_ROWS)
            assert row[TaskWord.TILES_EACH] * units + row[TaskWord.TILES_MORE] == tiles
        if row[TaskWord.BOX] != NOBODY:
            assert i in tasks[:, Word.MAIL]
            size = int(row[TaskWord.RESULT_M] * row[Word.REQUESTS]) * itemsize
            shares.append((int(row[TaskWord.BOX]), int(row[TaskWord.BOX]) + size))
    waits = tasks[:, Word.WAIT0 : Word.WAIT3 + 1]
    assert set(np.flatnonzero(tasks[:, TaskWord.COUNTED]).tolist()) == set(waits[waits != NOBODY].tolist())
    assert all(one[1] <= other[0] for one, other in pairwise(sorted(shares)))
    assert all(first >= 0 and stop <= box_bytes for first, stop in shares)

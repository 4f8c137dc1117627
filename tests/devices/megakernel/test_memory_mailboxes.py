"""Addresses of boxes, and their content before a message: as kernels/megakernel/mailboxes.cuh reads them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.devices.instructions.words import NOBODY, Word
from launchopt.devices.megakernel.memory import EMPTY, box_stride, emptied_boxes, place_boxes
from launchopt.devices.megakernel.task_structs import TASK_WORDS, TaskWord
from launchopt.kernels.shared import MOST_COLUMNS
from launchopt.kernels.shared_megakernel import BOX_BYTES

WORD = 4


def in_box(byte: int) -> int:
    """Return the offset of a byte of a 16-bit column in its box, as megakernel/mailboxes.cuh computes it.

    Each lane holds two vectors of 16 bytes; their words alternate.
    """
    return byte // 64 * 1024 + byte // 8 % 2 * 512 + byte // 16 % 4 * 16 + byte // 4 % 2 * 8


def column_in(column: int, stride: int) -> int:
    return column // 16 * stride + column % 8 * 64 + column // 8 % 2 * 4


def sender(features: int, requests: int, box: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    row = np.zeros(TASK_WORDS, np.int64)
    row[TaskWord.RESULT_M], row[Word.REQUESTS], row[TaskWord.BOX] = features, requests, box
    return row


@given(st.integers(1, 40), st.integers(2, 50), st.sampled_from([0, 4096]))
def test_only_existing_columns_wait_for_mail(pairs: int, requests: int, first: int) -> None:
    """Check every word: EMPTY once for each existing column, zero for columns that do not exist."""
    features = 2 * pairs
    stride, together = box_stride(features, MOST_COLUMNS, 2)
    groups = -(-requests // together)
    assert (together, stride % (BOX_BYTES * MOST_COLUMNS)) == (MOST_COLUMNS, 0)
    tasks = np.array([sender(features, requests, first), sender(0, requests, NOBODY)])
    boxes = emptied_boxes(tasks, first + groups * stride, MOST_COLUMNS, 2).view(np.uint32)
    assert (boxes[: first // WORD] == 0xFFFFFFFF).all()
    expected = np.zeros(groups * stride // WORD, np.uint32)
    for column in range(requests):
        for byte in range(0, stride // MOST_COLUMNS, WORD):
            at = (column_in(column, stride) + in_box(byte)) // WORD
            assert expected[at] == 0, "words of columns do not overlap"
            expected[at] = 0xFFFFFFFF
    assert (boxes[first // WORD :] == expected).all()


@pytest.mark.parametrize(("columns", "itemsize", "stride"), [(1, 2, 2 * 2 * 96), (1, 4, 2 * 4 * 96), (16, 4, 4 * 96)])
def test_columns_are_contiguous_in_other_boxes(columns: int, itemsize: int, stride: int) -> None:
    assert box_stride(96, columns, itemsize) == (stride, 1)
    tasks = np.array([sender(96, columns, 0)])
    assert (emptied_boxes(tasks, stride * columns, columns, itemsize) == EMPTY).all()


def test_tasks_have_the_addresses_of_boxes() -> None:
    tasks = np.array([sender(8, 1, 256), sender(8, 1, NOBODY)])
    tasks[1, TaskWord.MAILED], tasks[1, TaskWord.FROM] = 1, 256
    tasks[0, TaskWord.ADDED_MAILED], tasks[0, TaskWord.ADDED] = 0, 7
    place_boxes(tasks, 1 << 40)
    assert tasks[:, TaskWord.BOX].tolist() == [(1 << 40) + 256, 0]
    assert tasks[:, TaskWord.FROM].tolist() == [0, (1 << 40) + 256]
    assert tasks[0, TaskWord.ADDED] == 7, "NOBODY is no box"

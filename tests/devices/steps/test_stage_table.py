"""Compiled functions that find evenly spaced requests, against differences of their slots."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.command import COMMAND_DTYPE, as_words
from launchopt.devices.cublaslt.launch_tables import MOVES, ShapeColumn
from launchopt.devices.steps.stage_table import even_requests, mark_even

properties = settings(deadline=None, max_examples=40)


def records(rows: int, size: int, slots: np.ndarray) -> np.ndarray:
    """Return the words of a batch with these slots, [rows, size, 3]."""
    made = np.zeros((rows, size), COMMAND_DTYPE)
    for role, column in zip("abc", np.moveaxis(slots, 2, 0), strict=True):
        made[f"slot_{role}"] = column
    return as_words(made.reshape(-1))


@properties
@given(st.data(), st.integers(1, 5), st.integers(1, 6))
def test_evenly_spaced_is_what_it_says(data: st.DataObject, rows: int, size: int) -> None:
    shapes = np.zeros((3, len(ShapeColumn)), np.int64)
    moves = np.array([[0, 5, 7], [3, 0, 2], [1, 1, 1]])
    shapes[:, MOVES] = moves
    shape_of = np.array(data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)), np.int64)
    base = np.array([[100, 200, 300]]) + 10 * np.arange(rows)[:, None]
    slots = base[:, None] + np.arange(size)[None, :, None] * moves[shape_of][:, None]
    for _ in range(data.draw(st.integers(0, 2))):
        at = tuple(data.draw(st.integers(0, most - 1)) for most in (rows, size, 3))
        slots[at] += data.draw(st.integers(-2, 2))
    steps = (np.diff(slots, axis=1) == moves[shape_of][:, None]).all(axis=2)  # [rows, size - 1]
    runs = [1 + (int(np.argmin(row)) if not row.all() else len(row)) for row in steps]
    words = records(rows, size, slots)
    assert even_requests(words, size, rows, shape_of, shapes) == min(runs)
    even = np.zeros(rows, np.bool_)
    mark_even(words, size, rows, shape_of, shapes, even)
    assert even.tolist() == [run == size for run in runs]

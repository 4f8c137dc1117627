"""The columns of requests, and which graphs of requests waiting for each other are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.arrivals.requests import GraphError, Requests, check_graph


def after(rows: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(rows, dtype=np.int64)


def test_without_after_none_waits() -> None:
    column = np.arange(3)
    requests = Requests(column, column, column)
    assert requests.after.tolist() == [-1, -1, -1]
    assert requests.after.dtype == np.int64
    assert len(Requests(column[:0], column[:0], column[:0]).after) == 0
    assert Requests(column, column, column, after([-1, 0, 1])).after.tolist() == [-1, 0, 1]


def test_columns_are_of_one_length() -> None:
    with pytest.raises(AssertionError):
        Requests(np.arange(3), np.arange(3), np.arange(3), after([-1, 0]))


@pytest.mark.parametrize(
    "rows",
    [[], [-1], [-1, 0, 1, 2], [-1, 0, 0, 0], [1, 2, -1], [-1, 0, -1, 2]],
    ids=["empty", "one", "chain", "fan", "backwards", "two chains"],
)
def test_good_graphs(rows: list[int]) -> None:
    check_graph(after(rows))


@pytest.mark.parametrize(
    ("rows", "row", "problem"),
    [
        ([-1, 2], 1, "request 1 waits for request 2, which is missing (requests: 2)"),
        ([-2], 0, "request 0 waits for request -2, which is missing (requests: 1)"),
        ([-1, 1], 1, "request 1 waits for itself"),
        ([-1, 2, 1], 1, "request 1 waits for request 2, and so for itself (a cycle of 2)"),
        ([3, 0, 0, 4, 5, 3], 3, "request 3 waits for request 4, and so for itself (a cycle of 3)"),
        ([1, 2, 0, 3, 9], 0, "request 0 waits for request 1, and so for itself (a cycle of 3)"),
        ([3, 9, 2, -1], 1, "request 1 waits for request 9, which is missing (requests: 4)"),
        ([3, 2, 1, 3], 1, "request 1 waits for request 2, and so for itself (a cycle of 2)"),
    ],
)
def test_first_fault_is_named(rows: list[int], row: int, problem: str) -> None:
    with pytest.raises(GraphError) as caught:
        check_graph(after(rows))
    assert isinstance(caught.value, ValueError)
    assert (caught.value.row, str(caught.value)) == (row, problem)


@pytest.mark.parametrize("rows", [np.arange(-1, 299_999), np.append(np.arange(1, 300_000), -1)])
def test_long_chains_need_no_recursion(rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    check_graph(rows)
    with pytest.raises(GraphError, match=r"request 0 waits for .* cycle of 300000"):
        check_graph(np.where(rows == -1, 299_999 if rows[0] == -1 else 0, rows))


@given(st.lists(st.integers(-2, 9), max_size=9))
def test_refused_exactly_where_walking_on_does_not_end(rows: list[int]) -> None:
    """Against the definition: follow each row, as many steps as there are rows."""
    faults = []
    for start, target in enumerate(rows):
        row, seen = target, list[int]()
        while 0 <= row < len(rows) and len(seen) < len(rows):
            seen.append(row)
            row = rows[row]
        if start in seen or not -1 <= target < len(rows):
            faults.append(start)
    if faults:
        with pytest.raises(GraphError) as caught:
            check_graph(after(rows))
        assert caught.value.row == faults[0]
    else:
        check_graph(after(rows))

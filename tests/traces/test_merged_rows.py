"""Merging rows of a list: only those of one input become one GEMM, and every output stays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.traces.gemm_list import ListedGemm
from launchopt.traces.merged_rows import merged


def row(m: int, weight: str, group: str = "a", given: str = "x", n: int = 1, count: int = 1) -> ListedGemm:
    return ListedGemm(m, n, 8, count, None, weight, group, given)


def test_rows_of_one_input_are_merged() -> None:
    rows = [row(4, "q"), row(2, "k"), row(2, "k", given="y"), row(4, "q", given="y"), row(2, "v")]
    assert merged(rows) == [row(8, "q+k+v"), row(6, "k+q", given="y")]


@pytest.mark.parametrize(
    "other",
    [
        row(2, "q"),
        row(2, "k", group="b"),
        row(2, "k", given="y"),
        row(2, "k", given=""),
        row(2, "k", n=2),
        row(2, "k", count=2),
        row(2, ""),
        row(2**31 - 4, "k"),
        row(2, "k", group=""),
    ],
)
def test_other_rows_stay_apart(other: ListedGemm) -> None:
    assert merged([row(4, "q"), other]) == [row(4, "q"), other]


@given(st.lists(st.builds(row, st.integers(1, 3), st.sampled_from("abc"), st.just("g"), st.sampled_from("xy"))))
@settings(max_examples=50, deadline=None)
def test_merging_keeps_every_output(rows: list[ListedGemm]) -> None:
    found = merged(rows)
    assert sum(each.m for each in found) == sum(each.m for each in rows)
    assert sorted("".join(each.weight for each in found).replace("+", "")) == sorted(each.weight for each in rows)


def test_a_long_list_of_one_input_takes_no_longer_than_others() -> None:
    (one,) = merged([row(1, f"w{number}") for number in range(100_000)])
    assert one.m == 100_000

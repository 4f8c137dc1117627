"""Agreement with nsys' own statistics and with CUPTI runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchopt.analysis.profiles.nsys import OUTSIDE, Profile, RangeRow
from launchopt.analysis.profiles.nsys_agreement import Agreement, Sum, agreements, agreements_with_run, kernel_sum
from launchopt.errors import DataError

ROW = RangeRow(OUTSIDE, 2, 4, 8, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 100.0, 100.0, 4.0, 1.0)
# As `nsys stats --format csv` prints it, names quoted; 2025 has fewer columns than 2022.
TABLE = """Processing [profile.sqlite] with [/opt/nvidia/gpukernsum.py]...

Time (%),Total Time (ns),Instances,Avg (ns),Name
60.0,600,4,150.0,"void gemv<float, (int)1>(T1, T2)"
40.0,400,2,200.0,splitKreduce

"""


def profile(kernels: int = 8, kernel_ms: float = 100.0) -> Profile:
    total = replace(ROW, kernels=kernels, kernel_ms=kernel_ms)
    return Profile((ROW,), ROW, total, 0, 0)


def test_the_lines_of_a_summary_add_up() -> None:
    assert kernel_sum(TABLE.splitlines(), "x") == Sum(6, 1000)


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 54)), max_size=50))
def test_any_summary_adds_up(rows: list[tuple[int, int]]) -> None:
    lines = ["Total Time (ns),Instances,Name", *(f'{total},{count},"a, b"' for count, total in rows)]
    wanted = Sum(sum(count for count, _ in rows), sum(total for _, total in rows))
    assert kernel_sum(lines, "x") == wanted


def test_no_table_means_no_kernels() -> None:
    assert kernel_sum(["SKIPPED: profile.sqlite does not contain CUDA kernel data."], "x") == Sum(0, 0)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["Total Time (ns),Num Calls,Name", "1,1,a"], r"x:1: no column 'Instances'"),
        (["Total Time (ns),Instances,Name", "1,1.5,a"], r"x:2: not a whole number"),
    ],
)
def test_what_is_no_such_summary(lines: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        kernel_sum(lines, "x")


@pytest.mark.parametrize(
    ("kernels", "kernel_ms", "agree"),
    [
        (8, 100.0, [True, True]),
        (8, 100.9, [True, True]),
        (8, 98.9, [True, False]),
        (8, 101.1, [True, False]),
        (7, 100.0, [False, True]),  # a count may not differ at all
    ],
)
def test_counts_exactly_times_within_one_percent(kernels: int, kernel_ms: float, agree: list[bool]) -> None:
    found = agreements(profile(kernels, kernel_ms), Sum(8, 100_000_000))
    assert [one.agrees for one in found] == agree


def test_difference_is_a_share_of_theirs() -> None:
    one = Agreement("", "", 100.0, 99.0, 0.01, True)
    assert one.difference == pytest.approx(-0.01)
    assert replace(one, theirs=0.0, ours=0.0).difference == 0.0
    assert replace(one, theirs=0.0).difference == float("inf")


def test_repeats_of_a_traced_run_are_added_up_and_other_modes_left_out() -> None:
    rows = [
        {"mode": "batched", "kernels": 3, "gpu_busy_ms": 49.0},
        {"mode": "batched", "kernels": 5, "gpu_busy_ms": 51.5},
        {"mode": "graph", "kernels": None, "gpu_busy_ms": None},
    ]
    found = agreements_with_run("batched", ROW, rows)
    assert [(one.what, one.theirs, one.ours, one.agrees) for one in found] == [
        ("kernels", 8, 8, True),
        ("GPU busy ms", 100.5, 100.0, True),
    ]
    with pytest.raises(DataError, match="mode=graph counted no kernels: run it with timing=cupti"):
        agreements_with_run("graph", ROW, rows)

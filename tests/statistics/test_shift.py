"""The factor between two arms: properties for any times, coverage on synthetic noise, tables of other people."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.statistics.interval import Interval
from launchopt.statistics.shift import RANKS, STUDENT, factor, satterthwaite, student_quantile

times = st.lists(st.floats(1e-3, 1e6), min_size=5, max_size=12)
two_arms = st.integers(5, 12).flatmap(
    lambda n: st.tuples(*[st.lists(st.floats(1e-3, 1e6), min_size=n, max_size=n)] * 2)
)
properties = settings(deadline=None, max_examples=50)


@properties
@given(two_arms, st.booleans(), st.floats(0.01, 100))
def test_a_common_factor_on_one_arm_is_in_the_answer(
    arms: tuple[list[float], list[float]], paired: bool, k: float
) -> None:
    plain, scaled = (
        factor(*arms, paired=paired).interval,
        factor([k * t for t in arms[0]], arms[1], paired=paired).interval,
    )
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx((k * plain.value, k * plain.low, k * plain.high))


@properties
@given(two_arms, st.booleans())
def test_swapping_the_arms_inverts_it_and_the_estimate_is_inside(
    arms: tuple[list[float], list[float]], paired: bool
) -> None:
    there, back = factor(*arms, paired=paired).interval, factor(*arms[::-1], paired=paired).interval
    assert (there.value, there.low, there.high) == pytest.approx((1 / back.value, 1 / back.high, 1 / back.low))
    assert there.low is not None
    assert there.high is not None
    assert there.low <= there.value * (1 + 1e-9)
    assert there.value <= there.high * (1 + 1e-9)


@properties
@given(times, times)
def test_the_order_of_repeats_says_nothing_without_pairs(ours: list[float], theirs: list[float]) -> None:
    there, back = factor(ours, theirs, paired=False).interval, factor(ours[::-1], theirs, paired=False).interval
    assert (back.value, back.low, back.high) == pytest.approx((there.value, there.low, there.high))


# R: wilcox.test(x, conf.int=TRUE) of Hollander and Wolfe's depression scores; the interval at 97.3%, as 95% rounds up.
def test_it_is_the_interval_of_the_textbook() -> None:
    scores = [-0.952, 0.147, -1.022, -0.430, -0.620, -0.590, -0.490, 0.080, -0.010]
    found = factor(np.exp(scores), np.ones(9), paired=True)
    walsh = sorted((a + b) / 2 for i, a in enumerate(scores) for b in scores[i:])
    assert found.method == RANKS
    assert np.log(found.interval.value) == pytest.approx(-0.46)
    # Five ranks are cut off either end at 9 pairs: Hollander, Wolfe and Chicken, table A.4.
    assert np.log([found.interval.low, found.interval.high]) == pytest.approx([walsh[5], walsh[-6]])


@pytest.mark.parametrize(
    ("sizes", "paired", "cut"),
    # Critical values of the signed rank and of the rank sum at 2.5% a side, as every textbook has them.
    [
        *(((n, n), True, cut) for n, cut in ((6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (20, 52))),
        *((sizes, False, cut) for sizes, cut in (((6, 6), 5), ((10, 10), 23), ((6, 8), 8))),
    ],
)
def test_ranks_are_cut_off_as_the_tables_say(sizes: tuple[int, int], paired: bool, cut: int) -> None:
    generator = np.random.default_rng(0)
    above, below = (np.exp(generator.normal(0, 1, size)) for size in sizes)
    first, second = np.triu_indices(sizes[0])
    logs = np.log(above) - np.log(below) if paired else None
    all_of_them = (
        np.sort((logs[first] + logs[second]) / 2)
        if logs is not None
        else np.sort(np.subtract.outer(np.log(above), np.log(below)), axis=None)
    )
    found = factor(above, below, paired=paired)
    assert found.method == RANKS
    assert np.log([found.interval.low, found.interval.high]) == pytest.approx([all_of_them[cut], all_of_them[-1 - cut]])


def test_the_normal_approximation_joins_on_where_the_exact_ranks_end() -> None:
    generator = np.random.default_rng(1)
    times_of = np.exp(generator.normal(0, 0.01, (2, 51)))
    for size, paired in ((50, True), (25, False)):
        exact = factor(*times_of[:, :size], paired=paired).interval
        normal = factor(*times_of[:, : size + 1], paired=paired).interval
        assert exact.high is not None
        assert exact.low is not None
        assert normal.high is not None
        assert normal.low is not None
        assert normal.high - normal.low == pytest.approx(exact.high - exact.low, rel=0.15)


@pytest.mark.parametrize(
    ("dof", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (30, 2.042), (1e4, 1.960)]
)
def test_quantiles_are_those_of_the_table(dof: float, quantile: float) -> None:
    assert student_quantile(0.975, dof) == pytest.approx(quantile, abs=6e-4)
    assert student_quantile(0.025, dof) == pytest.approx(-quantile, abs=6e-4)
    assert student_quantile(0.5, dof) == pytest.approx(0)


def test_degrees_of_freedom_lie_between_the_smaller_and_the_sum() -> None:
    assert satterthwaite([(1.0, 4.0), (1.0, 4.0)]) == pytest.approx(8)
    assert satterthwaite([(1.0, 4.0), (0.0, 4.0)]) == pytest.approx(4)
    assert satterthwaite([(0.0, 4.0), (0.0, 3.0)]) == 7


@pytest.mark.parametrize(
    ("repeats", "paired", "method"), [(5, True, STUDENT), (5, False, STUDENT), (6, True, RANKS), (6, False, RANKS)]
)
def test_few_pairs_rest_on_a_normal_distribution(repeats: int, paired: bool, method: str) -> None:
    generator = np.random.default_rng(2)
    assert factor(*np.exp(generator.normal(0, 0.01, (2, repeats))), paired=paired).method == method


@pytest.mark.parametrize("repeats", [5, 6, 11])
@pytest.mark.parametrize("paired", [True, False])
def test_it_covers_the_truth_as_often_as_it_says(repeats: int, paired: bool) -> None:
    generator = np.random.default_rng(3)
    hits = 0
    for _ in range(500):
        logs = generator.normal(0, 0.01, (2, repeats)) + (generator.normal(0, 0.05, repeats) if paired else 0)
        interval = factor(*np.exp(logs), paired=paired).interval
        assert interval.low is not None
        assert interval.high is not None
        hits += interval.low <= 1 <= interval.high
    assert hits >= 0.93 * 500


def test_an_outlier_hardly_moves_it() -> None:
    generator = np.random.default_rng(5)
    above, below = np.exp(generator.normal(0, 0.005, (2, 20)))
    clean = factor(above, below, paired=True).interval
    above[7] *= 3
    hit = factor(above, below, paired=True).interval
    assert hit.value == pytest.approx(clean.value, rel=0.002)
    assert hit.high == pytest.approx(clean.high, rel=0.003)


def test_too_few_repeats_give_a_value_and_the_range() -> None:
    found = factor([6, 8, 6, 6], [2, 2, 2, 2], paired=True)
    assert found.method is None
    assert found.interval == Interval(pytest.approx(3), None, None, 4, range=(pytest.approx(3), pytest.approx(4)))
    assert factor([6], [2], paired=False).interval.range is None


def test_what_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        factor([], [1.0], paired=False)
    for bad in (float("nan"), 0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="finite and positive"):
            factor([1.0, bad, 2.0], [1.0, 2.0, 3.0], paired=True)
    with pytest.raises(ValueError, match="pairs, but 3 and 2"):
        factor([1.0, 2.0, 3.0], [1.0, 2.0], paired=True)

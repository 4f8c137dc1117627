"""How many repeats: the promise itself, kept on synthetic noise, and the rule for stopping."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from launchopt.statistics.interval import Verdict, verdict
from launchopt.statistics.power import (
    FEWEST_FOR_NOISE,
    FEWEST_PAIRS,
    FOUND,
    OUTLIERS,
    detectable_effect,
    noise_of,
    repeats_needed,
    settled,
)
from launchopt.statistics.shift import factor

EXPERIMENTS = 100
FIRST = 10
MOST = 1500  # what anyone would take, should a first few be mostly outliers; fewer than asked for only decide less
SHARED_DRIFT = 0.01
Arms = NDArray[np.float64]


def arms(
    generator: np.random.Generator, repeats: int, noise: float, effect: float, *, paired: bool, outliers: float
) -> Arms:
    """Times of A and B: log-normal noise, outliers of 10 to 50%, drift that pairs share; A takes `effect` longer."""
    logs = generator.normal(0, noise, (2, repeats))
    logs += (generator.random((2, repeats)) < outliers) * generator.uniform(0.1, 0.4, (2, repeats))
    if paired:
        logs += generator.normal(0, SHARED_DRIFT, repeats).cumsum()
    logs[0] += np.log1p(effect)
    times: Arms = 100 * np.exp(logs)
    return times


def verdicts(noise: float, effect: float, *, paired: bool, outliers: float, seed: int) -> dict[Verdict, int]:
    """Experiments as a user does them: some repeats, so many as are asked for then, and a verdict on all of them."""
    generator = np.random.default_rng(seed)
    counts = dict.fromkeys(Verdict, 0)
    for _ in range(EXPERIMENTS):
        times = arms(generator, FIRST, noise, effect, paired=paired, outliers=outliers)
        needed = repeats_needed(*times, paired=paired)
        assert needed is not None
        more = arms(generator, max(0, min(needed, MOST) - FIRST), noise, effect, paired=paired, outliers=outliers)
        counts[verdict(factor(*np.concatenate([times, more], axis=1), paired=paired).interval)] += 1
    return counts


CASES = [(noise, paired, outliers) for noise in (0.005, 0.01) for paired in (True, False) for outliers in (0.0, 0.02)]


@pytest.mark.parametrize(("noise", "paired", "outliers"), [*CASES, (0.03, True, 0.0)])
def test_a_against_a_is_the_same_at_the_repeats_it_asked_for(noise: float, paired: bool, outliers: float) -> None:
    counts = verdicts(noise, 0.0, paired=paired, outliers=outliers, seed=1)
    assert counts[Verdict.SAME] >= 95
    assert counts[Verdict.FASTER] + counts[Verdict.SLOWER] <= 1


@pytest.mark.parametrize(("noise", "paired", "outliers"), [*CASES, (0.03, True, 0.0)])
def test_planted_two_percent_are_found_at_the_repeats_it_asked_for(noise: float, paired: bool, outliers: float) -> None:
    assert verdicts(noise, 0.02, paired=paired, outliers=outliers, seed=2)[Verdict.FASTER] >= 95
    assert verdicts(noise, 1 / 1.02 - 1, paired=paired, outliers=outliers, seed=3)[Verdict.SLOWER] >= 95


@pytest.mark.parametrize("repeats", [5, 10])
@pytest.mark.parametrize("paired", [True, False])
def test_a_against_a_is_no_effect_at_whatever_repeats_there_are(repeats: int, paired: bool) -> None:
    generator = np.random.default_rng(4)
    experiments = [arms(generator, repeats, 0.01, 0.0, paired=paired, outliers=0.02) for _ in range(300)]
    found = [verdict(factor(*times, paired=paired).interval) for times in experiments]
    assert found.count(Verdict.FASTER) + found.count(Verdict.SLOWER) <= 6  # 2%


def test_it_asks_for_as_many_as_the_noise_takes() -> None:
    def median_need(noise: float, **options: float) -> float:
        generator = np.random.default_rng(5)
        pilots = [arms(generator, 20, noise, 0.0, paired=True, outliers=0.0) for _ in range(60)]
        return float(np.median([repeats_needed(*times, paired=True, **options) or 0 for times in pilots]))

    # With the noise known it takes (z + z')^2 s^2 / d^2: 23 x 2 x 1.05 at 1% noise and 1% effect, some 48.
    assert 48 <= median_need(0.01) <= 75
    assert median_need(0.03) - OUTLIERS == pytest.approx(9 * (median_need(0.01) - OUTLIERS), rel=0.05)
    assert median_need(0.01, smallest_effect=0.02) - OUTLIERS == pytest.approx(
        (median_need(0.01) - OUTLIERS) / 4, rel=0.1
    )
    assert median_need(0.01, power=0.8) < median_need(0.01)


def test_pairs_of_a_drifting_machine_need_fewer() -> None:
    times = arms(np.random.default_rng(6), 20, 0.003, 0.0, paired=True, outliers=0.0)
    together, apart = repeats_needed(*times, paired=True), repeats_needed(*times, paired=False)
    assert together is not None
    assert apart is not None
    assert 5 * together < apart


def test_one_outlier_does_not_ask_for_thousands() -> None:
    times = arms(np.random.default_rng(7), 10, 0.005, 0.0, paired=True, outliers=0.0)
    clean = repeats_needed(*times, paired=True)
    times[0, 3] *= 2
    hit = repeats_needed(*times, paired=True)
    assert clean is not None
    assert hit is not None
    assert hit <= 3 * clean


def test_the_effect_that_it_says_it_finds_is_found() -> None:
    generator = np.random.default_rng(8)
    pilots = [arms(generator, 8, 0.01, 0.0, paired=True, outliers=0.0) for _ in range(200)]
    effect = float(np.median([detectable_effect(*times, paired=True) or 0.0 for times in pilots]))
    assert 0.02 < effect < 0.06
    times_of = [arms(generator, 8, 0.01, effect, paired=True, outliers=0.0) for _ in range(200)]
    found = [verdict(factor(*times, paired=True).interval) for times in times_of]
    assert found.count(Verdict.FASTER) >= FOUND * 200


def test_too_few_repeats_tell_nothing_of_the_noise() -> None:
    few = [9.0, 9.1, 9.2, 9.0][: FEWEST_FOR_NOISE - 1]
    for paired in (True, False):
        assert repeats_needed(few, few, paired=paired) is None
        assert detectable_effect(few, few, paired=paired) is None
    assert noise_of([1.0, 2.0], [1.0, 2.0], paired=True) is None


def test_no_noise_at_all_needs_what_ranks_need() -> None:
    assert repeats_needed([3.0] * 5, [3.0] * 5, paired=True) == FEWEST_PAIRS + OUTLIERS


def test_examples_of_the_docstring() -> None:
    assert repeats_needed([9.1, 9.0, 9.2, 9.1, 9.1], [3.0, 3.0, 3.0, 3.0, 3.1], paired=True) == 263
    assert settled({"baseline": [9.1, 9.0, 9.2, 9.1, 9.1], "batched": [3.0, 3.1, 3.0, 3.0, 3.0]}, "baseline", 0.05)


samples = st.lists(st.floats(1.0, 2.0), min_size=5, max_size=8)


@settings(deadline=None, max_examples=25)
@given(samples, st.floats(0.001, 0.5))
def test_what_is_settled_stays_so_with_a_wider_bound(times: list[float], width: float) -> None:
    both = {"a": times, "b": times[::-1]}
    if settled(both, "a", width):
        assert settled(both, "a", 2 * width)
        assert settled(both, None, width)


def test_when_it_settles() -> None:
    generator = np.random.default_rng(9)
    quiet, noisy = (list(10 * np.exp(generator.normal(0, sd, 15))) for sd in (0.002, 0.2))
    assert settled({"baseline": quiet, "batched": quiet}, "baseline", 0.01)
    assert not settled({"baseline": quiet, "batched": noisy}, "baseline", 0.01)
    assert settled({"baseline": quiet}, None, 0.01)
    assert not settled({"baseline": quiet[:4]}, None, 0.5)


def test_a_shared_drift_keeps_the_medians_open() -> None:
    drifting = list(np.linspace(10, 13, 15))
    assert not settled({"baseline": drifting, "batched": drifting}, "baseline", 0.01)


def test_what_cannot_be_settled_is_refused() -> None:
    with pytest.raises(ValueError, match="not above 0"):
        settled({"a": [1.0, 1.0, 1.0]}, None, 0.0)
    with pytest.raises(ValueError, match="no arm 'b' among a"):
        settled({"a": [1.0, 1.0, 1.0]}, "b", 0.1)
    with pytest.raises(ValueError, match="differ in length"):
        settled({"a": [1.0, 1.0, 1.0], "b": [1.0, 1.0]}, "a", 0.1)

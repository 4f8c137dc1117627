"""A comparison across processes rests on the spread between them, and says which are missing."""

from __future__ import annotations

import numpy as np
import pytest
from support.results.compared_runs import NINE, in_turn, repeats, sides

from launchopt.analysis.comparison import text as compare_text
from launchopt.analysis.comparison.compare import compare
from launchopt.analysis.comparison.outcome import Comparison
from launchopt.statistics.interval import Verdict
from launchopt.statistics.processes import CALIBRATED, ProcessNoise


def apart(factor: float, ours: int, theirs: int, noise: ProcessNoise | None = None) -> Comparison:
    scaled = [factor * wall for wall in NINE]
    (found,) = compare(
        *sides(repeats(*NINE, processes=ours), repeats(*scaled, processes=theirs)), noise=noise
    ).comparisons
    return found


@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (2, 2), (1, 9), (3, 2)])
def test_fewer_than_three_processes_a_side_are_undecided_whatever_the_factor(ours: int, theirs: int) -> None:
    found = apart(0.5, ours, theirs)
    assert (found.verdict, found.factor.interval.low) == (Verdict.UNDECIDED, None)
    assert found.factor.interval.value == pytest.approx(2.0)
    assert found.factor.interval.range is not None
    assert "3 a side are the fewest" in compare_text.basis(found)


def test_three_processes_a_side_decide() -> None:
    found = apart(0.5, 3, 3)
    assert (found.verdict, found.processes, found.rests_on_processes) == (Verdict.FASTER, (3, 3), True)
    assert "over 3 and 3 processes" in compare_text.basis(found)
    assert compare_text.missing(found) is None


def test_repeats_of_one_process_make_no_difference_between_processes_certain() -> None:
    levels = np.repeat([1.0, 1.03, 1.0, 1.03, 1.06, 1.03], 30)
    times = 10 * levels * np.exp(np.random.default_rng(0).normal(0, 0.001, 180))
    (found,) = compare(*sides(repeats(*times[:90], processes=3), repeats(*times[90:], processes=3))).comparisons
    assert found.verdict is Verdict.UNDECIDED


def test_a_difference_above_the_calibrated_noise_decides_with_one_process_a_side() -> None:
    noise = ProcessNoise(0.01, 7.0)
    found = apart(0.9, 1, 1, noise)
    assert (found.verdict, found.factor.method) == (Verdict.FASTER, CALIBRATED)
    assert apart(1 / 0.9, 1, 1, noise).verdict is Verdict.SLOWER
    assert apart(0.97, 1, 1, noise).verdict is Verdict.UNDECIDED
    assert apart(1.0, 1, 1, ProcessNoise(1e-5, 7.0)).verdict is Verdict.UNDECIDED, "noise elsewhere proves no sameness"


def test_the_calibrated_noise_is_that_of_wall_time() -> None:
    scaled = [0.5 * wall for wall in NINE]
    both = sides(repeats(*NINE), repeats(*scaled))
    (found,) = compare(*both, metric="commands_per_s", noise=ProcessNoise(0.01, 7.0)).comparisons
    assert found.verdict is Verdict.UNDECIDED


def test_the_missing_processes_are_counted_for_each_side() -> None:
    missing = compare_text.missing(apart(0.5, 1, 2))
    assert missing == "more processes: 4 of A (now 1), 3 of B (now 2); run each with processes=5"


def test_the_missing_repeats_of_one_run_are_counted() -> None:
    (found,) = compare(*in_turn(repeats(10, 11, 10, 12), repeats(10, 11, 12, 10, mode="batched"))).comparisons
    assert compare_text.missing(found) == "more repeats: 4 (now 4); run it with repeats=8"


def test_two_modes_of_three_processes_are_judged_by_the_spread_between_the_processes() -> None:
    ours = [10.0] * 15
    theirs = [*[10.0] * 5, *[9.5] * 5, *[9.0] * 5]
    both = in_turn(repeats(*ours, processes=3), repeats(*theirs, mode="batched", processes=3))
    (found,) = compare(*both).comparisons
    assert (found.verdict, found.samples, found.pairs) == (Verdict.UNDECIDED, 3, 15)
    assert "likely to be found" not in " ".join(compare_text.advice(found)), "three are too few to measure the noise"


def test_json_has_processes_range_and_what_is_missing() -> None:
    scaled = [0.5 * wall for wall in NINE]
    outcome = compare(*sides(repeats(*NINE), repeats(*scaled, processes=3)))
    (found,) = compare_text.fields(outcome)["comparisons"]  # type: ignore[misc]
    assert (found["a"]["processes"], found["b"]["processes"]) == (1, 3)
    assert (found["factor"]["low"], len(found["factor"]["range"])) == (None, 2)
    assert found["missing"].startswith("more processes: 4 of A")

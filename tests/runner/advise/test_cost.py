"""The estimated cost of a round of trials, from the phases of the round before."""

from __future__ import annotations

import pytest
from support.results.summary_rows import row

from runner.advise.cost import FILLED, FIRST_CHECK, Cost, Phases, cost_of

ROWS = [row(wall_ms=100.0, setup_ms=1000.0)] * 4
SECONDS = {
    "set-up": 5.0,
    "warm-up runs": 0.5,
    "audit runs": 1.5,
    "timed runs": 0.4,
    "checks of outputs": 0.4,
    "saving": 0.2,
}
PHASES = Phases(SECONDS, compared=2)


def test_what_phases_and_set_up_do_not_explain_is_the_start() -> None:
    cost = cost_of(ROWS, PHASES, 2, 9.0)
    assert cost == (pytest.approx(4.0), pytest.approx(2.2), pytest.approx(0.15), pytest.approx(0.1))
    assert cost.of(2, 2) == pytest.approx(9.0)
    assert (cost.arms_in(8.75, 1), cost.repeats_in(8.75, 2), cost.arms_in(1.0, 1)) == (2, 1, 0)


def test_the_first_comparison_of_outputs_belongs_to_the_arm() -> None:
    """Repeats with the same outputs are not compared again."""
    cost = cost_of(ROWS, Phases(SECONDS | {"checks of outputs": 4.0}, compared=2), 2, 13.0)
    assert (cost.arm_s, cost.repeat_s) == (pytest.approx(4.0), pytest.approx(0.15))


def test_comparisons_of_every_repeat_belong_to_the_arm_and_the_repeat() -> None:
    cost = cost_of(ROWS, Phases(SECONDS | {"checks of outputs": 4.0}, compared=4), 2, 13.0)
    assert (cost.arm_s, cost.repeat_s) == (pytest.approx(3.0), pytest.approx(0.65))
    assert cost.of(2, 2) == pytest.approx(13.0)


def test_operands_are_filled_and_compared_once_a_round() -> None:
    """Of 10 s of checks, the first comparison of operands took 9: it is part of the start, however long."""
    seconds = SECONDS | {"checks of outputs": 10.0, FILLED: 20.0, FIRST_CHECK: 9.0}
    cost = cost_of(ROWS, Phases(seconds, compared=4), 2, 40.0)
    others = cost_of(ROWS, Phases(SECONDS | {"checks of outputs": 1.0}, compared=4), 2, 11.0)
    assert (cost.arm_s, cost.repeat_s) == pytest.approx((others.arm_s, others.repeat_s))
    assert cost.start_s == pytest.approx(29.0 + others.start_s)
    assert cost.of(2, 2) == pytest.approx(40.0)


def test_a_shorter_trial_costs_no_less_than_nothing() -> None:
    assert min(cost_of(ROWS, PHASES, 2, 9.0).scaled(1 / 8)) >= 0
    assert min(Cost(2.0, 0.1, 1.0, 2.0).scaled(1 / 8)) >= 0


def test_a_longer_trial_takes_no_longer_to_set_up_and_to_check() -> None:
    cost = cost_of(ROWS, PHASES, 2, 9.0).scaled(10)
    assert cost == (pytest.approx(4.0), pytest.approx(2.2 + 4 * 0.9), pytest.approx(0.15 + 0.9), pytest.approx(1.0))


def test_the_shortest_start_of_all_rounds_counts() -> None:
    earlier = Cost(2.0, 0.4, 0.2)
    assert cost_of(ROWS, PHASES, 2, 9.0, earlier).start_s == 2.0
    assert cost_of(ROWS, PHASES, 2, 6.0, earlier).start_s == pytest.approx(1.0)
    assert cost_of(ROWS, PHASES, 2, 40.0).start_s == 12.0, "a start that compiles takes long once"

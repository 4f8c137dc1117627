"""The estimated cost of a round of trials, from the phases of the round before."""

from __future__ import annotations

import pytest
from support.results.summary_rows import row

from runner.advise.cost import Cost, cost_of

ROWS = [row(wall_ms=100.0, setup_ms=1000.0)] * 4
PHASES = {
    "set-up": 5.0,
    "warm-up runs": 0.5,
    "audit runs": 1.5,
    "timed runs": 0.4,
    "checks of outputs": 0.4,
    "saving": 0.2,
}


def test_what_phases_and_set_up_do_not_explain_is_the_start() -> None:
    cost = cost_of(ROWS, PHASES, 2, 9.0)
    assert cost == (pytest.approx(4.0), pytest.approx(2.0), pytest.approx(0.25), pytest.approx(0.1))
    assert cost.of(2, 2) == pytest.approx(9.0)
    assert (cost.arms_in(8.6, 1), cost.repeats_in(8.6, 2), cost.arms_in(1.0, 1)) == (2, 1, 0)


def test_checks_count_although_a_repeat_is_far_shorter() -> None:
    cost = cost_of(ROWS, PHASES | {"checks of outputs": 4.0}, 2, 13.0)
    assert cost.repeat_s == pytest.approx(1.15)
    assert cost.of(4, 5) == pytest.approx(cost.start_s + 4 * (2.0 + 5 * 1.15))


def test_a_longer_trial_takes_no_longer_to_set_up_and_to_check() -> None:
    cost = cost_of(ROWS, PHASES, 2, 9.0).scaled(10)
    assert cost == (pytest.approx(4.0), pytest.approx(2.0 + 4 * 0.9), pytest.approx(0.25 + 0.9), pytest.approx(1.0))


def test_the_shortest_start_of_all_rounds_counts() -> None:
    earlier = Cost(2.0, 0.4, 0.2)
    assert cost_of(ROWS, PHASES, 2, 9.0, earlier).start_s == 2.0
    assert cost_of(ROWS, PHASES, 2, 6.0, earlier).start_s == pytest.approx(1.0)
    assert cost_of(ROWS, PHASES, 2, 40.0).start_s == 12.0, "a start that compiles takes long once"

"""Which arms go on, and when the best one is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.results.summary_rows import repeats, row

from launchopt.recording.results import Row
from runner.advise.halving import FINALISTS, MARGIN, Decision, by_arm, decision, ranked, survivors
from runner.advise.question import tpot

STEADY = (1.0, 1.001, 0.999, 1.002, 0.998)


def arm(mode: str, wall_ms: float, tpot_ms: float | None = None) -> list[Row]:
    return repeats(*(wall_ms * each for each in STEADY), mode=mode, tpot_p99_ms=tpot_ms)


def test_an_arm_with_a_wrong_or_failed_repeat_is_out() -> None:
    wrong = [row(mode="graph"), row(mode="graph", repeat=1, verified=False)]
    failed = [row(mode="pdl", status="failed")]
    assert list(by_arm([*wrong, *failed, row(mode="engine")])) == ["engine"]


def test_arms_within_the_limit_come_before_faster_ones_that_exceed_it() -> None:
    arms = {"fast": arm("fast", 1.0, 20.0), "slow": arm("slow", 3.0, 9.0), "mid": arm("mid", 2.0, 8.0)}
    assert ranked(arms, tpot(10.0), None) == ["mid", "slow", "fast"]
    assert ranked(arms, None, None) == ["fast", "mid", "slow"]


def test_if_no_arm_keeps_the_limit_the_closest_comes_first() -> None:
    arms = {"fast": arm("fast", 1.0, 20.0), "close": arm("close", 3.0, 11.0)}
    assert ranked(arms, tpot(10.0), None) == ["close", "fast"]


def test_a_model_of_which_half_the_layers_ran_counts_twice_the_latency() -> None:
    rows = repeats(1.0, tpot_p99_ms=6.0, layers=2)
    assert tpot(10.0).ms(rows, 4) == 12.0
    assert tpot(10.0).ms(rows, None) == 6.0


def test_a_clear_winner_is_decided_and_noise_is_not() -> None:
    clear = {"a": arm("a", 1.0), "b": arm("b", 2.0)}
    assert decision(clear, "a", list(clear)) is Decision.decided
    noise = (0.5, 1.6, 1.0, 0.7, 1.4)
    noisy = {"a": repeats(*noise, mode="a"), "b": repeats(*reversed(noise), mode="b")}
    assert decision(noisy, "a", list(noisy)) is Decision.open


def test_an_arm_within_the_margin_is_as_good() -> None:
    arms = {"a": arm("a", 1.0), "b": arm("b", 1.0 + MARGIN / 2)}
    assert decision(arms, "b", list(arms)) is Decision.decided


def test_too_few_repeats_decide_nothing() -> None:
    arms = {"a": repeats(1.0, 1.0, mode="a"), "b": repeats(9.0, 9.0, mode="b")}
    assert decision(arms, "a", list(arms)) is Decision.unknown


@given(st.lists(st.text(), unique=True, min_size=1))
def test_halving_keeps_the_best_and_ends(order: list[str]) -> None:
    rounds = 0
    while len(order) > FINALISTS:
        kept = survivors(order)
        assert kept == order[: len(kept)]
        assert len(kept) < len(order)
        order, rounds = kept, rounds + 1
    assert rounds <= 20


def test_the_only_arm_within_the_limit_has_no_rival() -> None:
    arms = {"a": arm("a", 2.0), "b": arm("b", 1.0)}
    assert decision(arms, "a", ["a"]) is Decision.alone

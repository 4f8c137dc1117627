"""The rounds of `launchopt advise`, with runs that are made up: an arm that breaks is dropped by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.results.summary_rows import row

from launchopt.errors import ArenaMemoryError, ConfigError, LaunchoptError, RunError
from runner.advise.question import Question
from runner.advise.trials import Outcome, Trials

QUESTION = Question({}, 1, None)


class Broken(Trials):
    """Trials in which runs with the arm `broken` end with its error."""

    def __init__(self, broken: str, error: LaunchoptError, takes_s: float = 1.0) -> None:
        self.now_s, self.broken, self.error, self.takes_s = 0.0, broken, error, takes_s
        self.ran: list[list[str]] = []
        super().__init__(Path("nowhere"), 60.0, lambda: self.now_s)

    def _called(self, words: Sequence[str]) -> Outcome:
        settings = dict(word.split("=", 1) for word in words)
        arms = [*settings["against"].strip("[]").split(","), settings["mode"]]
        arms = sorted(arm for arm in arms if arm)
        self.ran.append(arms)
        self.now_s += self.takes_s
        if self.broken in arms:
            return Outcome([], self.error)
        return Outcome([row(mode=arm, wall_ms=1.0, setup_ms=1.0, status="ok", verified=True) for arm in arms])


def test_an_arm_that_an_error_names_is_dropped_and_the_others_run_again() -> None:
    trials = Broken("graph", RunError("consumer: out of memory; while graph was prepared"))
    rows = trials.run(QUESTION, ["engine", "graph", "coalesced", "graph_loop"], 1)
    assert sorted(row["mode"] for row in rows) == ["coalesced", "engine", "graph_loop"]
    assert list(trials.dropped) == ["graph"]
    assert len(trials.ran) == 2


def test_an_arm_that_breaks_without_a_name_is_found_by_halves() -> None:
    trials = Broken("graph", RunError("consumer was killed by signal 11"))
    rows = trials.run(QUESTION, ["engine", "coalesced", "pdl", "graph", "batched"], 5)
    assert sorted(row["mode"] for row in rows) == ["batched", "coalesced", "engine", "pdl"]
    assert trials.dropped == {"graph": "broke: consumer was killed by signal 11"}
    assert len(trials.ran) <= 7


@pytest.mark.parametrize(
    "error",
    [RunError("consumer: lost; while engine was prepared"), ArenaMemoryError("too large"), ConfigError("a", 1, "no")],
)
def test_an_error_of_the_base_or_of_all_arms_ends_the_rounds(error: LaunchoptError) -> None:
    with pytest.raises(type(error)):
        Broken("graph", error).run(QUESTION, ["engine", "graph"], 1)


def test_a_round_that_its_limit_ended_is_no_error() -> None:
    trials = Broken("graph", RunError("timeout"), takes_s=58.0)
    assert trials.run(QUESTION, ["engine", "graph"], 1) == []
    assert trials.dropped == {}


def test_an_arm_with_wrong_numbers_is_dropped_with_the_reason() -> None:
    class Wrong(Broken):
        def _called(self, words: Sequence[str]) -> Outcome:
            return Outcome(
                [
                    each | ({"verified": False} if each["mode"] == "graph" else {})
                    for each in super()._called(words).rows
                ]
            )

    trials = Wrong("none", RunError(""))
    trials.run(QUESTION, ["engine", "graph"], 1)
    assert list(trials.dropped) == ["graph"]

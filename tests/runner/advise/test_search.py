"""The search with trials whose times are made up: it ends within the budget and finds the fastest arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results.summary_rows import repeats

from launchopt.errors import ArenaMemoryError, RunError
from launchopt.recording.results import Row
from runner.advise.cost import Phases, cost_of
from runner.advise.halving import Decision
from runner.advise.question import Limit, Question, tpot
from runner.advise.search import Found, search
from runner.advise.trials import Trials

START_S = 2.0
STEADY = (1.0, 1.001, 0.999)
NOISE = (0.5, 1.6, 1.0, 0.7, 1.4)


class MadeUp(Trials):
    """Trials that take the time they say, on a clock of their own. wall_ms: of 16 tokens in one layer, by arm."""

    def __init__(
        self, budget_s: float, wall_ms: Mapping[str, float], compiling_s: float = 0.0, space: int = 1000
    ) -> None:
        self.compiling_s, self.space = compiling_s, space  # in the first round; layers
        self.now_s, self.wall_ms, self.ran = 0.0, wall_ms, list[tuple[int, int]]()
        super().__init__(Path("nowhere"), budget_s, lambda: self.now_s)

    def require_memory(self, question: Question, labels: Sequence[str]) -> None:
        """Raise ArenaMemoryError for more than `space` layers."""
        if int(str(question.settings["workload.layers"])) > self.space:
            raise ArenaMemoryError("too large")

    def run(self, question: Question, labels: Sequence[str], repeats: int, share: float = 1.0) -> list[Row]:
        self.rounds += 1
        settings = question.settings
        layers, tokens = int(str(settings.get("workload.layers", 1))), int(str(settings.get("workload.tokens", 16)))
        rows = [each for label in labels for each in self._rows(label, repeats, layers, tokens)]
        walls_s = sum(self.wall_ms[label] for label in labels) * layers * tokens / 16 / 1e3
        took_s = START_S + (4 + 2 * repeats) * walls_s
        took_s, self.compiling_s = took_s + self.compiling_s, 0.0
        if took_s > self.left_s * share:
            self.now_s += self.left_s * share
            return []
        self.now_s += took_s
        phases = {"warm-up runs": 4 * walls_s, "timed runs": repeats * walls_s, "checks of outputs": repeats * walls_s}
        self.cost = cost_of(rows, Phases(phases, len(rows)), len(labels), took_s)
        self.ran.append((len(labels), repeats))
        return rows

    def sweep(self, question: Question, label: str, grid: Mapping[str, Sequence[object]], repeats: int) -> list[Row]:
        sizes, timeouts = grid["batching.max_batch"], grid["batching.timeout_us"]
        return [
            each | {"max_batch": size, "timeout_us": timeout, "wall_ms": each["wall_ms"] * (0.5 if size == 4 else 1.0)}
            for size in sizes
            for timeout in timeouts
            for each in self._rows(label, repeats, 1)
        ]

    def _rows(self, label: str, count: int, layers: int, tokens: int = 16) -> list[Row]:
        walls = [self.wall_ms[label] * layers * tokens / 16 * STEADY[at % len(STEADY)] for at in range(count)]
        return repeats(*walls, mode=label, setup_ms=0.0, layers=layers, tpot_p99_ms=walls[0])


class Drifting(MadeUp):
    """Trials on a machine that becomes faster with each job of a sweep."""

    jobs = 0

    def sweep(self, question: Question, label: str, grid: Mapping[str, Sequence[object]], repeats: int) -> list[Row]:
        rows: list[Row] = []
        for each in super().sweep(question, label, grid, 1):
            self.jobs += 1
            rows += [each | {"wall_ms": 100.0 * 0.8**self.jobs}] * repeats
        return rows


class Noisy(MadeUp):
    def _rows(self, label: str, count: int, layers: int, tokens: int = 16) -> list[Row]:
        noise = NOISE if label == "pdl" else NOISE[::-1]
        walls = [self.wall_ms[label] * layers * tokens / 16 * noise[at % len(noise)] for at in range(count)]
        return repeats(*walls, mode=label, setup_ms=0.0, layers=layers, tpot_p99_ms=self.wall_ms[label] * layers)


def found(trials: MadeUp, limit: Limit | None = None, layers: int | None = None) -> Found:
    labels = [label for label in trials.wall_ms if label != "engine"]
    question = Question({"batching.max_batch": 16, "batching.timeout_us": 50_000.0}, 16, limit)
    return search(question, lambda question: labels, "engine", layers, trials)


ARMS = {"engine": 10.0, "coalesced": 12.0, "graph": 5.0, "pdl": 7.0, "kernel": 30.0, "baseline": 90.0, "pointer": 60.0}


def test_the_fastest_arm_is_found_and_decided_with_the_base_beside_it() -> None:
    trials = MadeUp(60.0, ARMS)
    result = found(trials)
    assert (result.best, result.decision) == ("graph", Decision.decided)
    assert "engine" in result.arms
    assert trials.ran[-1][1] >= 5


def test_a_layer_with_experts_runs_as_many_steps_as_fit() -> None:
    settings = {"workload": "moe", "workload.steps": 32, "batching.max_batch": 128, "batching.timeout_us": 150.0}
    for wall_ms, steps in ((10.0, 32), (1000.0, 4)):  # of 60 s, a trial may take about 0.15 s
        trials = MadeUp(60.0, {"engine": wall_ms, "graph": wall_ms / 2})
        question = search(Question(settings, 0, None), lambda _: ["graph"], "engine", None, trials).question
        assert question.settings["workload.steps"] == steps


def test_batching_is_swept_from_that_of_the_trials_on() -> None:
    settings = {"workload": "moe", "workload.steps": 32, "batching.max_batch": 128, "batching.timeout_us": 150.0}
    result = search(Question(settings, 0, None), lambda _: ["graph"], "engine", None, MadeUp(60.0, ARMS))
    assert (result.batching.max_batch, result.batching.tried) == (128, 6)


def test_batching_that_gains_more_than_the_margin_is_advised() -> None:
    batching = found(MadeUp(60.0, ARMS)).batching
    assert (batching.max_batch, batching.tried) == (4, 6)
    assert batching.gain == pytest.approx(2.0)


def test_a_gain_that_only_the_order_of_the_jobs_makes_is_not_advised() -> None:
    trials = Drifting(60.0, ARMS)
    batching = found(trials).batching
    assert (batching.max_batch, batching.timeout_us, batching.gain) == (16, 50_000.0, 1.0)
    assert trials.jobs > 6, "the second sweep ran"


def test_another_batching_is_advised_with_what_is_limited() -> None:
    batching = found(MadeUp(60.0, ARMS), tpot(6.0)).batching
    assert (batching.max_batch, batching.kept_ms) == (4, pytest.approx(5.0, rel=0.01))
    assert found(MadeUp(60.0, ARMS)).batching.kept_ms is None


def test_a_limit_that_nothing_can_keep_gives_the_closest_arm() -> None:
    result = found(MadeUp(60.0, ARMS), tpot(1.0))
    assert (result.best, result.fits, result.decision) == ("graph", frozenset(), Decision.decided)


def test_a_limit_that_nothing_can_keep_decides_nothing() -> None:
    assert found(Noisy(60.0, ARMS | {"pdl": 5.1}), tpot(1.0)).decision is Decision.open


def test_the_only_arm_within_the_limit_is_named_as_such() -> None:
    assert found(MadeUp(60.0, ARMS), tpot(6.0)).decision is Decision.alone


def test_a_model_whose_trial_would_take_too_long_runs_with_fewer_layers() -> None:
    result = found(MadeUp(60.0, ARMS), layers=1000)
    assert result.question.settings["workload.layers"] == 14


def test_a_model_larger_than_memory_runs_with_the_layers_that_fit() -> None:
    result = found(MadeUp(60.0, ARMS, space=4), layers=1000)
    assert result.question.settings["workload.layers"] == 3
    with pytest.raises(ArenaMemoryError):
        found(MadeUp(60.0, ARMS, space=0), layers=1000)


def test_requests_have_as_many_tokens_as_fit_with_all_layers() -> None:
    few, many = (
        found(MadeUp(60.0, {name: wall / faster for name, wall in ARMS.items()}), layers=8).question.settings
        for faster in (1, 1000)
    )
    assert (few["workload.layers"], few["workload.tokens"]) == (8, 28)
    assert (many["workload.layers"], many["workload.tokens"]) == (8, 100)


def test_if_one_layer_still_takes_too_long_requests_have_fewer_tokens() -> None:
    settings = found(MadeUp(60.0, {name: 30 * wall for name, wall in ARMS.items()}), layers=8).question.settings
    assert (settings["workload.layers"], settings["workload.tokens"]) == (1, 7)


def test_a_budget_that_ends_in_the_first_trial_is_refused() -> None:
    with pytest.raises(RunError, match=r"are too few for the first trial: type the same with --budget-s \d+"):
        found(MadeUp(1.0, ARMS))


@given(st.floats(3.0, 200.0), st.lists(st.floats(1.0, 500.0), min_size=1, max_size=30))
def test_the_search_keeps_to_the_budget_and_always_answers(budget_s: float, walls: list[float]) -> None:
    trials = MadeUp(budget_s, {"engine": 20.0} | {f"m{at}": wall for at, wall in enumerate(walls)})
    result = found(trials)
    assert trials.now_s <= budget_s + 1e-6
    assert result.best in result.arms


def test_a_first_trial_that_compiles_is_not_taken_for_the_cost_of_the_next() -> None:
    trials = MadeUp(60.0, ARMS, compiling_s=20.0)
    assert found(trials).best == "graph"
    assert trials.ran[0] == (1, 1)
    assert trials.ran[1][0] == len(ARMS)


def test_a_base_that_is_many_times_as_slow_as_the_others_leaves_time_for_some_of_them() -> None:
    trials = MadeUp(60.0, {"engine": 2000.0} | {f"m{at}": 100.0 + at for at in range(12)})
    assert found(trials).best == "m0"


def test_with_time_for_one_round_the_likely_stacks_get_the_repeats_of_an_interval() -> None:
    trials = MadeUp(6.2, ARMS)
    result = found(trials)
    assert [len(result.arms[label]) for label in ("engine", "coalesced", "graph", "pdl")] == [5, 5, 5, 5]
    assert result.enough_s is None
    assert trials.dropped == dict.fromkeys(["kernel", "baseline", "pointer"], "no time within --budget-s")


class Failing(MadeUp):
    """Trials in which one stack fails its check in the last round."""

    def run(self, question: Question, labels: Sequence[str], repeats: int, share: float = 1.0) -> list[Row]:
        rows = super().run(question, [label for label in labels if label not in self.dropped], repeats, share)
        if repeats > 1 and "graph" in labels:
            self.dropped["graph"] = "failed its check: wrong"
            return []
        return rows


def test_with_nothing_beside_the_base_no_budget_is_named() -> None:
    trials = MadeUp(4.1, {"engine": 10.0})
    result = found(trials)
    assert (result.best, result.is_lone, result.enough_s, result.batching.tried) == ("engine", True, None, 0)


def test_a_stack_that_fails_its_check_in_the_last_round_is_not_advised() -> None:
    result = found(Failing(60.0, {"engine": 10.0, "graph": 5.0}))
    assert (result.best, result.is_lone, result.failed, result.enough_s) == ("engine", True, ["graph"], None)


def test_an_undecided_choice_names_a_budget_for_the_most_repeats() -> None:
    walls = {name: 15 * wall for name, wall in ARMS.items() if wall < 12}
    result = found(Noisy(22.0, walls))
    assert result.decision is Decision.open
    assert result.enough_s is not None
    second = found(Noisy(result.enough_s, walls))  # a noise that no number of repeats ends
    assert (second.decision, second.enough_s) == (Decision.open, None)
    assert min(map(len, second.arms.values())) == 20


def test_without_time_to_repeat_all_that_came_as_far_nothing_is_decided() -> None:
    result = found(MadeUp(7.6, ARMS))
    assert {label: len(rows) for label, rows in result.arms.items()} == {"engine": 5, "graph": 5}
    assert (result.best, result.decision, result.enough_s) == ("graph", Decision.left_out, 20.0)
    assert found(MadeUp(20.0, ARMS)).decision is Decision.decided


def test_stacks_are_left_out_only_if_the_time_that_is_left_does_not_suffice() -> None:
    left_out = 0
    for tenths in range(50, 200):
        trials = MadeUp(tenths / 10, {name: 5 * wall for name, wall in ARMS.items()})
        if (result := found(trials)).decision is Decision.left_out:
            left_out += 1
            assert 1.5 * trials.cost.of(len(result.arms) + 1, 5) > trials.left_s
    assert left_out > 0


def test_a_longer_round_that_has_time_for_fewer_repeats_does_not_replace_the_last_one() -> None:
    trials = Noisy(22.0, {name: 15 * wall for name, wall in ARMS.items() if wall < 12})
    result = found(trials)
    assert result.decision is Decision.open
    assert min(map(len, result.arms.values())) == 5


def test_too_little_time_for_an_interval_names_a_budget_that_suffices() -> None:
    trials = MadeUp(4.1, ARMS)
    trials.spent_s = 25.0
    enough_s = found(trials).enough_s
    assert enough_s == 40.0
    assert found(MadeUp(enough_s - 25.0, ARMS)).enough_s is None


@given(st.floats(12.0, 200.0), st.lists(st.floats(1.0, 40.0), min_size=1, max_size=30))
def test_time_for_a_short_last_round_always_gives_an_interval(budget_s: float, walls: list[float]) -> None:
    trials = MadeUp(budget_s, {"engine": 40.0} | {f"m{at}": wall for at, wall in enumerate(walls)})
    result = found(trials)
    assert len(result.arms) > 1
    assert min(map(len, result.arms.values())) >= 5

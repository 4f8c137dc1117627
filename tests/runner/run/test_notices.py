"""Notices that follow from the repeats: commands that a mode launched otherwise than in its own way, sampled checks."""

from __future__ import annotations

from typing import Any

import pytest

from launchopt.modes import MODES, mode_class
from launchopt.recording.launch_rows import Strategy
from runner.run.notices import (
    audited_check,
    forwarded_lines,
    left_out_lines,
    long_checks,
    own_strategy_of,
    sampled_check,
    split_loops,
    unfused_lines,
)
from runner.worker.checks import LEAST_BUDGET_S


def run(mode: str, **by: int) -> dict[str, Any]:
    return {"mode": mode, "commands_by_strategy": by}


@pytest.mark.parametrize("name", MODES)
def test_a_mode_s_own_way_is_one_of_those_that_are_recorded(name: str) -> None:
    assert mode_class(name).own_strategy in ("", *Strategy.__members__)


def test_modes_of_which_it_is_the_point_have_one() -> None:
    named = {name: mode_class(name).own_strategy for name in MODES if mode_class(name).own_strategy}
    loops = dict.fromkeys(("graph", "graph_device", "graph_loop"), "graph")
    assert named == {**loops, "megakernel": "megakernel", "persistent": "resident"}


def test_a_line_a_mode_of_the_repeat_with_most() -> None:
    runs = [
        run("megakernel", megakernel=20_000, strided=448, single=32),
        run("persistent", resident=100),
        run("megakernel", strided=1_024, megakernel=19_456),
        run("persistent", resident=99, single=1),
        run("megakernel", megakernel=20_480),
    ]
    assert forwarded_lines(runs) == [
        "megakernel: 1,024 of 20,480 commands were launched otherwise: strided 1,024",
        "persistent: 1 of 100 commands were launched otherwise: single 1",
    ]


def test_nothing_of_a_mode_that_launches_all_in_its_own_way_or_has_none() -> None:
    assert forwarded_lines([]) == []
    assert forwarded_lines([run("graph", graph=7), run("batched", strided=6, single=1, packed=2)]) == []


def checked(*counts: int | None) -> list[dict[str, Any]]:
    return [{"commands": 20_000, "checked_commands": each} for each in counts]


def test_a_check_of_a_sample_says_how_likely_it_finds_a_fault() -> None:
    assert sampled_check(checked(20_000, 10_000, 15_000)) == [
        "10,000 of 20,000 commands were checked, at random, in the time allowed (verify_budget_s); if one of 10,000 is"
        " wrong, that is found with a probability of 0.75; verify=full checks all"
    ]


def test_a_check_of_everything_says_nothing() -> None:
    assert sampled_check(checked(20_000, None)) == []
    assert audited_check([{"audited_share": 1.0}, {"audited_share": None}], False) == []
    assert audited_check([{"audited_share": 1.0}], True) == []


@pytest.mark.parametrize(("share", "likely"), [(0.5, "over 0.999"), (0.02, "0.332")])
def test_an_audit_of_a_sample_claims_no_certainty(share: float, likely: str) -> None:
    assert audited_check([{"audited_share": share}, {"audited_share": 1.0}], False) == [
        f"an untimed run compared {share:.1%} of all layers of all steps, chosen at random: it finds a fault in one"
        f" layer with a probability of {share}, in 20 layers {likely}; verify=full compares all"
    ]


def test_a_full_audit_does_not_advise_itself_and_names_what_it_leaves_out() -> None:
    (text,) = audited_check([{"audited_share": 8 / 9}], True)
    assert text.startswith("an untimed run compared 88.9% of all layers of all steps: every layer of the decode steps")
    assert "chosen at random" not in text
    assert "the last layer of each chunk of their prompts" in text


def test_the_stack_of_an_arm_says_what_its_own_launches_are() -> None:
    """`graph+stream` launches no graphs, and `engine+graph` does."""
    own = {label: own_strategy_of(label) for label in ("graph+stream", "engine+graph", "graph+norm+own", "engine+pdl")}
    assert own == {"graph+stream": "", "engine+graph": "graph", "graph+norm+own": "graph", "engine+pdl": ""}
    assert forwarded_lines([run("graph+stream", coalesced=60)]) == []
    assert forwarded_lines([run("coalesced+graph", coalesced=6, graph=4)]) == [
        "coalesced+graph: 6 of 10 commands were launched otherwise: coalesced 6"
    ]


def test_a_line_for_each_reason_that_rows_are_not_launched_as_a_stack_asks() -> None:
    old, own = "our GEMM needs a newer GPU", {"mode": "graph+own"}
    rows = [{"rows": name, "launches": 8, "of": 8, "reason": old} for name in ("qkv", "o")]
    attention = {"rows": "qk+softmax+av", "launches": 4, "of": 8, "reason": "has head_dim=16"}
    runs = [own | {"left_out": [*rows, attention]}, own | {"left_out": rows}, run("graph", graph=7)]
    assert left_out_lines(runs) == [
        f"graph+own: not launched as its stack asks, in each step: qkv (8 of 8), o (8 of 8): {old}",
        "graph+own: not launched as its stack asks, in each step: qk+softmax+av (4 of 8): has head_dim=16",
    ]


def test_a_line_for_each_arm_that_did_not_fuse_all_of_its_commands() -> None:
    runs = [run("engine", fused=80) | {"unfused_commands": each} for each in (0, 30, 12)]
    assert unfused_lines([*runs, run("graph", graph=80) | {"unfused_commands": 0}, run("baseline", single=80)]) == [
        "engine: 30 of 80 commands were launched without their fusions: the operands of their requests are not evenly"
        " spaced in memory"
    ]


def test_loops_that_requests_do_not_share_because_of_the_deadline_are_said() -> None:
    row = {"mode": "engine+graph_loop+pdl", "requests": 16, "batches": 32, "flush_deadline": 30, "timeout_us": 300.0}
    (line,) = split_loops([row, row | {"flush_deadline": 31}])
    assert line.startswith("engine+graph_loop+pdl: 31 of 32 batches left at their deadline, before the steps of all 16")
    assert "batching.timeout_us above 300 " in line
    for other in ({"mode": "graph"}, {"requests": 1}, {"requests": None}, {"flush_deadline": 3}):
        assert split_loops([row | other]) == []


def test_checks_that_took_most_of_a_long_run_are_said() -> None:
    seconds = {"set-up": 9.0, "timed runs": 3.0, "checks of outputs": 48.2}
    (line,) = long_checks(seconds, has_steps=False)
    least = f"as long as its run, at least {LEAST_BUDGET_S:g} s"
    assert line == f"checks of outputs took 48 of 60 s, each {least}; verify_budget_s=1 checks less in each"
    (line,) = long_checks(seconds, has_steps=False, budget_s=0.5)
    assert line == "checks of outputs took 48 of 60 s, each 0.5 s; verify_budget_s=0.25 checks less in each"
    for other in ({"set-up": 50.0}, {"checks of outputs": 19.0}):
        assert long_checks(seconds | other, has_steps=False) == []
    assert long_checks({}, has_steps=False) == []


def test_of_requests_only_audit_runs_can_be_shortened() -> None:
    seconds = {"set-up": 9.0, "audit runs": 40.0, "checks of outputs": 1.0}
    (line,) = long_checks(seconds, has_steps=True)
    assert line.startswith("audit runs took 40 of 50 s, each as long as its run, at least 5 s; verify_budget_s=1 ")
    assert long_checks({"audit runs": 1.0, "checks of outputs": 40.0}, has_steps=True) == []

"""The metric that decides between two modes, and that `compare` and the screen of a run take the same one."""

from __future__ import annotations

import re

import pytest
from rich.console import Console
from support.results.compared_runs import NINE, in_turn, repeats

from launchopt.analysis.comparison.compare import compare
from launchopt.analysis.comparison.text import block, fields, precise
from launchopt.analysis.metric import GROWING, KEPT_UP, LATENCY, OPEN_LOOP, OVERLOADED, WALL, metric_of, name_of
from launchopt.analysis.tables.as_json import tables_json
from launchopt.analysis.tables.columns import speedup
from launchopt.analysis.tables.rows import build_tables
from launchopt.analysis.tables.speedup_plot import metrics_of
from launchopt.analysis.verdict.diagnosis import diagnose
from launchopt.recording.results import Row
from runner.run.screens.run_results import print_results

OPEN = {"arrival": "poisson", "arrival_rate_per_s": 100.0}


def arms(overloaded: bool | None) -> tuple[list[Row], list[Row]]:
    """Return repeats of an open loop with the same wall time, and a median latency of 50 and of 10 us."""
    common = {**OPEN, "overloaded": overloaded}
    return (
        repeats(*NINE, latency_p50_us=50.0, **common),
        repeats(*NINE, mode="batched", latency_p50_us=10.0, **common),
    )


@pytest.mark.parametrize(("overloaded", "metric"), [(False, LATENCY), (True, WALL), (None, WALL)])
def test_an_open_loop_is_compared_in_latency_only_if_it_kept_up(overloaded: bool | None, metric: str) -> None:
    ours, theirs = arms(overloaded)
    assert metric_of([*ours, *theirs]) == metric


def test_one_overloaded_arm_is_enough_for_wall_time() -> None:
    assert metric_of([*arms(True)[0], *arms(False)[1]]) == WALL


def test_a_closed_loop_and_rows_without_a_latency_are_compared_in_wall_time() -> None:
    assert metric_of(repeats(*NINE, arrival="closed", latency_p50_us=50.0)) == WALL
    assert metric_of(repeats(*NINE, **OPEN, overloaded=False, latency_p50_us=None)) == WALL


@pytest.mark.parametrize(("overloaded", "metric", "note"), [(False, LATENCY, KEPT_UP), (True, WALL, OVERLOADED)])
def test_compare_and_the_screen_take_and_name_the_same_metric(
    overloaded: bool, metric: str, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = arms(overloaded)
    outcome = compare(*in_turn(ours, theirs))
    (found,) = outcome.comparisons
    assert (found.metric, outcome.metric, fields(outcome)["metric"]) == (metric, metric, metric)
    assert note in found.notes
    assert any(metric in text for _, text in block(found))
    print_results([*ours, *theirs], "batched", "outputs/x", Console(width=200))
    shown = " ".join(capsys.readouterr().out.split())
    assert precise(found.factor.interval) in shown
    assert f"as fast as baseline in {name_of(metric)}" in shown


def test_no_note_on_an_overloaded_run_says_that_wall_time_follows_the_arrivals() -> None:
    for metric in (WALL, LATENCY):
        kept_up, overloaded = (compare(*in_turn(*arms(late)), metric=metric).comparisons[0] for late in (False, True))
        assert {OPEN_LOOP, KEPT_UP} & set(kept_up.notes)
        assert not {OPEN_LOOP, KEPT_UP} & set(overloaded.notes)
        assert overloaded.notes[0] == (OVERLOADED if metric == WALL else GROWING)


def test_without_a_base_the_factor_is_over_the_first_mode_of_against(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*repeats(*NINE, interleaved=True), *repeats(*NINE, mode="batched", interleaved=True)]
    print_results(rows, "baseline", "outputs/x", Console(width=200), ["batched"])
    assert "baseline is 1.00" in (text := " ".join(capsys.readouterr().out.split()))
    assert "as fast as batched in wall time" in text
    rows += repeats(*NINE, mode="graph", interleaved=True)
    rows = [each for each in rows if each["mode"] != "baseline"] + repeats(
        *NINE, mode="pointer_array", interleaved=True
    )
    print_results(rows, "pointer_array", "outputs/x", Console(width=200), ["graph", "batched"])
    text = " ".join(capsys.readouterr().out.split())
    assert len(found := re.findall(r"pointer_array is [^.]+\.\d+x \[[^]]+\] as fast as (\w+)", text)) == 1, text
    assert found == ["graph"]


@pytest.mark.parametrize(("overloaded", "metric", "factor"), [(False, LATENCY, 5.0), (True, WALL, 1.0)])
def test_tables_and_the_verdict_take_and_name_the_same_metric(overloaded: bool, metric: str, factor: float) -> None:
    (table,) = build_tables([each for arm in arms(overloaded) for each in arm])
    line = next(each for each in table.lines if each["mode"] == "batched")
    assert line.speedup is not None
    assert (line.metric, line.speedup.value) == (metric, pytest.approx(factor))
    named = speedup(line).endswith(" in median latency")
    assert (named, metrics_of(table.lines) == " in median latency") == (not overloaded, not overloaded)
    (shown,) = [each for each in tables_json([table])["tables"][0]["lines"] if each["mode"] == "batched"]
    assert shown["speedup_metric"] == metric
    (found,) = diagnose([each for arm in arms(overloaded) for each in arm], {}, None)
    (judged,) = [each for each in found.lines if each.mode == "batched"]
    assert judged.speedup_metric == metric
    assert ("in median latency" in found.sentence) is not overloaded

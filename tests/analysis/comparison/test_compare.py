"""The verdict from two sides, which rows are paired, and the text of it."""

from __future__ import annotations

import numpy as np
import pytest
from support.results.compared_runs import NINE, in_turn, repeats, run, sides

from launchopt.analysis.comparison import text as compare_text
from launchopt.analysis.comparison.arms import Side
from launchopt.analysis.comparison.compare import SEPARATELY, compare
from launchopt.analysis.metric import OPEN_LOOP, metrics, unit_of
from launchopt.analysis.tables.rows import SAME_RUN
from launchopt.errors import ConfigError
from launchopt.recording.results import SUMMARY
from launchopt.statistics.interval import Interval, Verdict


def scaled(factor: float) -> list[float]:
    return [factor * wall for wall in NINE]


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(0.5, Verdict.FASTER), (0.98, Verdict.FASTER), (1.0, Verdict.SAME), (1.02, Verdict.SLOWER)],
)
def test_a_verdict_from_pairs_and_without_them(factor: float, expected: Verdict) -> None:
    for a, b in (
        in_turn(repeats(*NINE), repeats(*scaled(factor), mode="batched")),
        sides(repeats(*NINE, processes=3), repeats(*scaled(factor), processes=3)),
    ):
        (found,) = compare(a, b).comparisons
        assert found.verdict is expected
        assert found.factor.interval.value == pytest.approx(1 / factor)
        assert found.ratio_of_medians == pytest.approx(1 / factor)
        assert (found.medians[0].value, found.medians[0].unit) == (10.0, "ms")


def test_of_a_rate_more_is_better() -> None:
    a, b = sides(repeats(*NINE, processes=3), repeats(*scaled(0.5), processes=3))
    (found,) = compare(a, b, metric="commands_per_s").comparisons
    assert (found.verdict, found.factor.interval.value) == (Verdict.FASTER, pytest.approx(2.0))


def test_repeats_taken_in_turn_are_pairs_and_their_drift_cancels() -> None:
    drift = np.linspace(1, 2, 9)
    ours, theirs = (list(drift * scale * np.array(NINE)) for scale in (1.03, 1.0))
    (paired,) = compare(*in_turn(repeats(*ours), repeats(*theirs, mode="batched"))).comparisons
    assert (paired.pairs, paired.verdict) == (9, Verdict.FASTER)
    (apart,) = compare(*sides(repeats(*ours, processes=3), repeats(*theirs, processes=3))).comparisons
    assert (apart.pairs, apart.verdict) == (None, Verdict.UNDECIDED)
    assert SEPARATELY in apart.notes


def test_pairs_are_made_by_repeat_and_only_of_what_both_have() -> None:
    theirs = [each for each in repeats(5, 10, 15, 20, 25, 30, mode="batched") if each["repeat"] != 1][::-1]
    (found,) = compare(*in_turn(repeats(10, 20, 30, 40, 50, 60), theirs)).comparisons
    assert found.pairs == 5
    assert (found.factor.interval.low, found.factor.interval.high) == (pytest.approx(2), pytest.approx(2))
    assert "of 6 and 5 repeats only those in both are used" in found.notes


def test_one_run_that_took_its_modes_one_after_the_other_has_no_pairs() -> None:
    a, b = in_turn(repeats(*NINE, interleaved=False), repeats(*NINE, mode="batched", interleaved=False))
    (found,) = compare(a, b).comparisons
    assert found.pairs is None
    assert SAME_RUN in found.notes


def test_runs_of_one_name_are_not_one_run() -> None:
    (found,) = compare(*sides(repeats(*NINE), repeats(*NINE))).comparisons
    assert found.pairs is None


def test_all_that_occurs_in_both_is_compared_and_the_rest_named() -> None:
    ours = [*repeats(*NINE), *repeats(*NINE, mode="batched"), *repeats(*NINE, dtype="fp32")]
    theirs = [*repeats(*NINE), *repeats(*NINE, mode="batched"), *repeats(*NINE, mode="graph")]
    outcome = compare(*sides(ours, theirs))
    assert [(one.a["mode"], one.b["mode"]) for one in outcome.comparisons] == [("baseline",) * 2, ("batched",) * 2]
    assert [text.partition(": ")[0] for text in outcome.alone] == ["only in A", "only in B"]
    assert "decode fp32" in outcome.alone[0]
    assert "graph" in outcome.alone[1]


def test_the_configuration_is_matched_and_where_there_is_one_of_each_it_may_differ() -> None:
    both = [*repeats(*NINE), *repeats(*NINE, max_batch=512)]
    outcome = compare(*sides(both, both))
    assert [(one.a["max_batch"], one.b["max_batch"]) for one in outcome.comparisons] == [(64, 64), (512, 512)]
    (found,) = compare(*sides(repeats(*NINE), repeats(*NINE, max_batch=512))).comparisons
    assert "max_batch: 64 in A, 512 in B" in found.notes


def test_several_runs_of_the_same_are_told_apart_by_their_place() -> None:
    def side(name: str, *places: str) -> Side:
        return Side(name, None, [run(repeats(*NINE), place, f"{name}/{place}") for place in places])

    outcome = compare(side("old", "0", "1"), side("new", "1", "0"))
    assert [(one.a.run.place, one.b.run.place) for one in outcome.comparisons] == [("0", "0"), ("1", "1")]
    outcome = compare(side("old", "0", "1"), side("new", "x"))
    assert "2 of these in A, 1 in B: name the folder of one of each" in outcome.refused[0]


def test_a_run_is_not_compared_with_itself() -> None:
    one = Side("run", None, [run(repeats(*NINE))])
    with pytest.raises(ConfigError, match=r"B=run: the same repeats as A$"):
        compare(one, one)


@pytest.mark.parametrize(
    ("ours", "theirs", "proposed"),
    [
        (None, None, ("baseline", "batched")),
        (None, "baseline", ("batched", "baseline")),
        (None, "batched", ("baseline", "batched")),
        ("batched", None, ("batched", "baseline")),
        ("batched", "batched", ("batched", "baseline")),
    ],
)
def test_two_modes_of_a_run_are_proposed_and_can_be_compared(
    ours: str | None, theirs: str | None, proposed: tuple[str, str]
) -> None:
    both = run([*repeats(*NINE), *repeats(*NINE, mode="batched")])

    def side(mode: str | None) -> Side:
        return Side("run" if mode is None else f"run:{mode}", mode, [both])

    with pytest.raises(ConfigError, match=r"did you mean run:{} run:{}\?".format(*proposed)):
        compare(side(ours), side(theirs))
    assert len(compare(*map(side, proposed)).comparisons) == 1


def test_the_only_mode_of_each_side_is_compared_without_being_named() -> None:
    a, b = sides(repeats(*NINE, processes=3), repeats(*scaled(0.5), processes=3, mode="graph"))
    (one,) = compare(a, b).comparisons
    assert one.verdict is Verdict.FASTER


def test_a_mode_or_metric_that_is_not_there_is_named() -> None:
    a, b = sides(repeats(*NINE), repeats(*NINE, mode="graph"))
    _, two = sides([], [*repeats(*NINE, mode="graph"), *repeats(*NINE, mode="batched")])
    wanted = r"no mode of A in it: A has baseline, B has batched, graph; did you mean new:batched or new:graph\?"
    with pytest.raises(ConfigError, match=wanted):
        compare(a, two)
    several, _ = sides([*repeats(*NINE), *repeats(*NINE, mode="engine")], [])
    with pytest.raises(ConfigError, match=r"did you mean old:baseline new:batched\?"):
        compare(several, two)
    with pytest.raises(ConfigError, match="no repeats of pdl there, only of graph"):
        compare(a, Side("new", "pdl", b.runs))
    with pytest.raises(ConfigError, match="there are no repeats"):
        compare(a, Side("new", None, []))
    with pytest.raises(ConfigError, match="--metric=energy"):
        compare(a, b, metric="energy")


def test_every_metric_is_a_column_with_a_unit() -> None:
    assert set(metrics()) <= set(SUMMARY.names)
    assert {"wall_ms", "latency_p99_us", "tokens_per_s", "host_submit_ns_per_launch"} <= set(metrics())
    assert not {"timeout_us", "slo_ttft_ms", "copy_gb_per_s", "arrival_rate_per_s", "verified"} & set(metrics())
    assert [unit_of(name) for name in ("wall_ms", "achieved_gb_per_s", "tokens_per_s")] == ["ms", "GB/s", "/s"]


def test_an_open_loop_is_remarked() -> None:
    (found,) = compare(*sides(repeats(*NINE, arrival="poisson"), repeats(*NINE, arrival="poisson"))).comparisons
    assert OPEN_LOOP in found.notes


def test_inputs_that_only_one_side_quantises_are_remarked() -> None:
    other = repeats(*NINE, mode="cublaslt_fp8", quantised_inputs="fp8 per channel")
    (found,) = compare(*in_turn(repeats(*NINE), other)).comparisons
    assert "quantised_inputs: null in A, fp8 per channel in B" in found.notes


def test_what_is_undecided_says_what_would_decide() -> None:
    noise = np.random.default_rng(0).normal(0, 0.02, (2, 40))
    ours, theirs = 10 * np.exp(noise)
    for taken, expected in ((4, "4 pairs: too few to measure the noise"), (10, "would decide (now 10 pairs)")):
        (found,) = compare(*in_turn(repeats(*ours[:taken]), repeats(*theirs[:taken], mode="batched"))).comparisons
        assert found.verdict is Verdict.UNDECIDED
        assert expected in compare_text.advice(found)[0]
    assert "With 10 pairs only differences above" in compare_text.advice(found)[1]
    assert compare_text.advice(found)[1].endswith("% are likely to be found")
    at_the_border = repeats(*scaled(1 / 1.01), mode="batched")
    quiet = [9.99, 10.03, 10.0, 9.97, 10.01, 10.02, 9.98, 10.0, 10.01]
    (near,) = compare(*in_turn(repeats(*quiet), at_the_border)).comparisons
    assert near.verdict is Verdict.UNDECIDED
    assert "the factor lies at the border" in compare_text.advice(near)[0]


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (Interval(1.05123, 1.04931, 1.05334, 9), "1.0512x [1.0493, 1.0533]"),
        (Interval(16.3, 15.7, 17.4, 5), "16.30x [15.70, 17.40]"),
        (Interval(16312.5, 15997, 17729, 5, "ms"), "16,312 ms [15,997, 17,729]"),
        (Interval(2.0, 2.0, 2.0, 5), "2.000x [2.000, 2.000]"),
        (Interval(1.05123, None, None, 4, range=(1.04931, 1.05334)), "1.0512x (1.0493 to 1.0533)"),
        (Interval(1.5, None, None, 1), "1.500x (1 repeat)"),
        (Interval(0.0, None, None, 1, "ms"), "0 ms (1 repeat)"),
    ],
)
def test_an_interval_has_two_digits(interval: Interval, text: str) -> None:
    assert compare_text.precise(interval) == text


def test_a_setup_is_one_measurement_a_process_whatever_the_repeats() -> None:
    a, b = in_turn(repeats(*NINE, setup_ms=1.0), repeats(*NINE, mode="batched", setup_ms=65.0))
    (found,) = compare(a, b, metric="setup_ms").comparisons
    interval = found.factor.interval
    assert (interval.value, interval.low, interval.repeats) == (pytest.approx(1 / 65), None, 1)
    assert found.verdict is Verdict.UNDECIDED
    lines = [text for _, text in compare_text.block(found)]
    assert any("no interval and no verdict: setup_ms is measured once a process" in text for text in lines)
    assert any("one measurement" in text for text in lines)
    assert not any("9 repeats" in text or "[" in text or "repeats=" in text for text in lines)
    assert "next: the same run with processes=" in compare_text.advice(found)[-1]


def test_setups_of_several_processes_have_an_interval() -> None:
    ours, theirs = (
        [{**each, "setup_ms": scale * (1 + 0.001 * each["process"])} for each in repeats(*NINE, processes=9, mode=mode)]
        for mode, scale in (("baseline", 1.0), ("batched", 65.0))
    )
    (found,) = compare(*in_turn(ours, theirs), metric="setup_ms").comparisons
    assert (found.verdict, found.processes) == (Verdict.SLOWER, (9, 9))

"""What is compared with what, what is refused, and what is said of it."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from launchopt.analysis.comparison import likeness
from launchopt.analysis.comparison import text as compare_text
from launchopt.analysis.comparison.arms import Run, Side
from launchopt.analysis.comparison.compare import OPEN_LOOP, SEPARATELY, Outcome, compare, metrics, unit_of
from launchopt.analysis.tables.rows import DEPENDENCIES_IGNORED, SAME_RUN
from launchopt.errors import ConfigError, DataError
from launchopt.recording.results import SUMMARY, Row
from launchopt.statistics.interval import Interval, Verdict

MANIFEST: dict[str, Any] = {
    "status": "ok",
    "config": {
        "workload": {"name": "decode", "tokens": 250, "path": "/data/one/trace.csv"},
        "model": {"hidden": 1024},
        "mode": {"name": "batched", "streams": 4},
        "queue": {"capacity": 4096},
        "seed": 0,
        "repeats": 7,
    },
    "environment": {
        **{"platform": "Linux-6.18", "python": "3.12.3", "cores": 16, "git_revision": "a" * 40, "git_dirty": False},
        **{"packages": {"numpy": "2.5.2"}, "device": {"name": "NVIDIA H200"}},
    },
    "device_versions": {"cuda_driver": "13000", "cuda_runtime": "13020", "cublaslt": "130100", "driver": "580.159"},
}


def row(**columns: Any) -> Row:
    assert not columns.keys() - set(SUMMARY.names)
    plausible = {
        **{"run_id": "run/0", "workload": "decode", "device": "cuda", "gpu": "NVIDIA H200", "dtype": "fp16"},
        **{"commands": 8000, "cache": "cold", "arrival": "closed", "shapes": "1024x1x1024", "requests": 1, "layers": 8},
        **{"ordering": "per_request", "max_batch": 64, "timeout_us": 300.0, "input_footprint_bytes": 2**20},
        **{"traced": False, "interleaved": True, "verified": True, "status": "ok", "mode": "baseline", "repeat": 0},
    }
    return {**dict.fromkeys(SUMMARY.names), **plausible, **columns}


def repeats(*wall_ms: float, **columns: Any) -> list[Row]:
    return [row(repeat=index, wall_ms=wall, commands_per_s=8e6 / wall, **columns) for index, wall in enumerate(wall_ms)]


def run(rows: list[Row], place: str = "0", identity: str = "run", **changes: Any) -> Run:
    """A run whose manifest differs by `changes`, `a__b=1` for what lies within."""
    manifest = copy.deepcopy(MANIFEST)
    for path, value in changes.items():
        *above, last = path.split("__")
        inner = manifest
        for key in above:
            inner = inner[key]
        inner[last] = value
    return Run(place, identity, rows, manifest)


def sides(ours: list[Row], theirs: list[Row], **changes: Any) -> tuple[Side, Side]:
    """Two runs, of which the second differs by `changes`."""
    return Side("old", None, [run(ours, identity="old")]), Side("new", None, [run(theirs, identity="new", **changes)])


def in_turn(a: list[Row], b: list[Row]) -> tuple[Side, Side]:
    """Two modes of one run."""
    both = run([*a, *b])
    return Side("run:baseline", "baseline", [both]), Side("run:batched", "batched", [both])


NINE = (10.0, 10.01, 9.99, 10.02, 9.98, 10.0, 10.01, 9.99, 10.0)


def scaled(factor: float) -> list[float]:
    return [factor * wall for wall in NINE]


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(0.5, Verdict.FASTER), (0.98, Verdict.FASTER), (1.0, Verdict.SAME), (1.02, Verdict.SLOWER)],
)
def test_a_verdict_from_pairs_and_without_them(factor: float, expected: Verdict) -> None:
    for a, b in (
        in_turn(repeats(*NINE), repeats(*scaled(factor), mode="batched")),
        sides(repeats(*NINE), repeats(*scaled(factor))),
    ):
        (found,) = compare(a, b).comparisons
        assert found.verdict is expected
        assert found.factor.interval.value == pytest.approx(1 / factor)
        assert found.ratio_of_medians.value == pytest.approx(1 / factor)
        assert (found.medians[0].value, found.medians[0].unit) == (10.0, "ms")


def test_of_a_rate_more_is_better() -> None:
    a, b = sides(repeats(*NINE), repeats(*scaled(0.5)))
    (found,) = compare(a, b, metric="commands_per_s").comparisons
    assert (found.verdict, found.factor.interval.value) == (Verdict.FASTER, pytest.approx(2.0))


def test_repeats_taken_in_turn_are_pairs_and_their_drift_cancels() -> None:
    drift = np.linspace(1, 2, 9)
    ours, theirs = (list(drift * scale * np.array(NINE)) for scale in (1.03, 1.0))
    (paired,) = compare(*in_turn(repeats(*ours), repeats(*theirs, mode="batched"))).comparisons
    assert (paired.pairs, paired.verdict) == (9, Verdict.FASTER)
    (apart,) = compare(*sides(repeats(*ours), repeats(*theirs))).comparisons
    assert (apart.pairs, apart.verdict) == (None, Verdict.UNDECIDED)
    assert SEPARATELY in apart.notes


def test_pairs_are_made_by_repeat_and_only_of_what_both_have() -> None:
    theirs = [each for each in repeats(5, 10, 15, 20, 25, mode="batched") if each["repeat"] != 1][::-1]
    (found,) = compare(*in_turn(repeats(10, 20, 30, 40, 50), theirs)).comparisons
    assert found.pairs == 4
    assert (found.factor.interval.low, found.factor.interval.high) == (pytest.approx(2), pytest.approx(2))
    assert "of 5 and 4 repeats only those in both are used" in found.notes


def test_one_run_that_took_its_modes_one_after_the_other_has_no_pairs() -> None:
    a, b = in_turn(repeats(*NINE, interleaved=False), repeats(*NINE, mode="batched", interleaved=False))
    (found,) = compare(a, b).comparisons
    assert found.pairs is None
    assert SAME_RUN in found.notes


def test_runs_of_one_name_are_not_one_run() -> None:
    (found,) = compare(*sides(repeats(*NINE), repeats(*NINE))).comparisons
    assert found.pairs is None


UNLIKE = {
    **{"workload": "prefill", "model": "other", "dtype": "fp32", "device": "cpu", "gpu": "NVIDIA A100", "layers": 9},
    **{"commands": 4000, "cache": "hot", "arrival": "poisson", "arrival_rate_per_s": 3.0, "shapes": "1x1x1"},
    **{"requests": 2, "scheduler": "continuous", "sampling": "greedy", "traced": True, "ordering": "none"},
    "input_footprint_bytes": 7,
}


@pytest.mark.parametrize("column", UNLIKE)
def test_unlike_work_is_refused_by_name_and_forced_loudly(column: str) -> None:
    a, b = sides(repeats(*NINE), repeats(*NINE, **{column: UNLIKE[column]}))
    with pytest.raises(DataError, match=f"no work in common with A.*{column}: .* in A, .* in B") as refusal:
        compare(a, b)
    assert refusal.value.exit_code == 2
    outcome = compare(a, b, force=True)
    assert any(text.startswith(f"{column}: ") for text in outcome.comparisons[0].overridden)
    assert_loud(outcome)


OTHER_MACHINE = {
    "environment__device__name": "NVIDIA A100",
    "environment__cores": 64,
    "device_versions__driver": "595.1",
    "device_versions__cuda_runtime": "12090",
    "device_versions__cublaslt": "120900",
}
OTHER_SETTINGS = {"config__workload__tokens": 300, "config__model__hidden": 2048, "config__seed": 1}


@pytest.mark.parametrize("path", [*OTHER_MACHINE, *OTHER_SETTINGS])
def test_another_machine_or_setting_is_refused_by_name_and_forced_loudly(path: str) -> None:
    value = (OTHER_MACHINE | OTHER_SETTINGS)[path]
    a, b = sides(repeats(*NINE), repeats(*NINE), **{path: value})
    outcome = compare(a, b)
    assert not outcome.comparisons
    name = path.rpartition("__")[2]
    assert "not comparable" in outcome.refused[0]
    assert f"{name.replace('_', ' ')}: " in outcome.refused[0].replace("_", " ").replace(".", " ")
    forced = compare(a, b, force=True)
    assert not forced.refused
    assert_loud(forced)


def test_nothing_is_known_of_a_machine_without_a_manifest() -> None:
    a, b = sides(repeats(*NINE), repeats(*NINE))
    b.runs[0] = Run("0", "new", b.runs[0].rows, None)
    assert "B without manifest.json" in compare(a, b).refused[0]
    assert_loud(compare(a, b, force=True))


def test_throttled_repeats_are_refused_and_counted() -> None:
    ours = repeats(*NINE, throttled=False)
    theirs = [each | {"throttled": each["repeat"] == 3, "throttle_reasons": "power"} for each in ours]
    a, b = sides(ours, theirs)
    assert "B: 1 of 9 repeats throttled (power)" in compare(a, b).refused[0]
    forced = compare(a, b, force=True)
    assert_loud(forced)
    assert "throttled repeats: 0 of 9 in A, 1 of 9 in B" in forced.comparisons[0].notes
    (calm,) = compare(*sides(ours, ours)).comparisons
    assert "throttled repeats: 0 of 9 in A, 0 of 9 in B" in calm.notes


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"verified": False}, "not verified"),
        ({"verified": None}, "not verified"),
        ({"status": "failed: 3 outputs wrong"}, "failed: 3 outputs wrong"),
        ({"wall_ms": None}, "wall_ms was not measured, or not above 0"),
        ({"wall_ms": 0.0}, "wall_ms was not measured, or not above 0"),
        ({"repeat": 0}, "several rows for one repeat"),
    ],
)
def test_no_force_compares_what_failed(bad: dict[str, Any], why: str) -> None:
    broken = repeats(*NINE)
    broken[4] |= bad
    for a, b, side in ((*sides(repeats(*NINE), broken), "B"), (*sides(broken, repeats(*NINE)), "A")):
        outcome = compare(a, b, force=True)
        assert not outcome.comparisons
        assert f"cannot be compared: {side}: {why}" in outcome.refused[0]


def assert_loud(outcome: Outcome) -> None:
    """Every output says that it was forced."""
    (one,) = outcome.comparisons
    assert one.overridden
    reasons = [text for label, text in compare_text.block(one) if label == "FORCED"]
    assert reasons == one.overridden
    assert "FORCED" in (compare_text.banner(outcome) or "")
    assert "(FORCED)" in compare_text.cells(one)[-1]
    markdown = compare_text.markdown(outcome)
    assert markdown.startswith("**FORCED")
    assert "- **FORCED**: " in markdown
    fields = json.loads(compare_text.as_json(outcome))
    assert fields["forced"] is True
    assert "FORCED" in fields["warning"]
    assert fields["comparisons"][0]["forced"] == one.overridden


def test_revision_packages_and_other_settings_are_named_and_allowed() -> None:
    changes = {
        "environment__git_revision": "b" * 40,
        "environment__git_dirty": True,
        "environment__packages": {"numpy": "2.4.0", "torch": "2.11"},
        "config__queue__capacity": 64,
        "config__workload__path": "/other/trace.csv",
        "config__repeats": 3,
        "config__mode__name": "graph",
        "environment__python": "3.11",
        "status": "interrupted",
    }
    (found,) = compare(*sides(repeats(*NINE), repeats(*NINE), **changes)).comparisons
    assert not found.overridden
    assert set(found.notes) == {
        SEPARATELY,
        "throttled repeats: not read in A, not read in B",
        "revision: aaaaaaaaaaaa in A, bbbbbbbbbbbb, changed in B",
        "numpy: 2.5.2 in A, 2.4.0 in B",
        "torch: null in A, 2.11 in B",
        "queue.capacity: 4,096 in A, 64 in B",
        "python: 3.12.3 in A, 3.11 in B",
        "B: its run ended with status interrupted",
    }


def test_where_polled_words_lie_is_named_if_both_tell() -> None:
    near, far = {"persistent": "GPU memory, by BAR1"}, {"persistent": "host memory: mode.bar1=false"}
    ours, theirs = run(repeats(*NINE), polled_words=near), run(repeats(*NINE), polled_words=far)
    expected = "words that persistent polls: GPU memory, by BAR1 in A, host memory: mode.bar1=false in B"
    assert expected in likeness.remarks(ours.manifest, theirs.manifest)
    assert not any("polls" in text for text in likeness.remarks(ours.manifest, run(repeats(*NINE)).manifest))


def test_settings_that_one_version_does_not_know_differ_in_nothing() -> None:
    a, b = sides(repeats(*NINE), repeats(*NINE), config__workload__added=1)
    assert compare(a, b).comparisons
    b.runs[0] = run(repeats(*NINE), identity="new", config=None)
    assert compare(a, b).comparisons


def test_null_of_an_earlier_schema_is_no_choice() -> None:
    a, b = sides(repeats(*NINE), repeats(*NINE, scheduler="none", sampling="none"))
    assert compare(a, b).comparisons


def test_order_matters_unless_there_is_none_to_keep() -> None:
    gemv = {"workload": "gemv_micro", "layers": None}
    a, b = sides(repeats(*NINE, **gemv), repeats(*NINE, ordering="none", **gemv))
    assert compare(a, b).comparisons
    (ignored,) = compare(*sides(repeats(*NINE, ordering="none"), repeats(*NINE, ordering="none"))).comparisons
    assert f"A: {DEPENDENCIES_IGNORED}" in ignored.notes


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
    with pytest.raises(ConfigError, match="B=run: the same repeats as A"):
        compare(one, one)


def test_a_mode_or_metric_that_is_not_there_is_named() -> None:
    a, b = sides(repeats(*NINE), repeats(*NINE, mode="graph"))
    with pytest.raises(ConfigError, match="no mode of A in it: A has baseline, B has graph"):
        compare(a, b)
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


def test_what_is_undecided_says_what_would_decide() -> None:
    noise = np.random.default_rng(0).normal(0, 0.02, (2, 40))
    ours, theirs = 10 * np.exp(noise)
    for taken, expected in ((3, "tell too little of the noise"), (10, "would decide (now 10 pairs)")):
        (found,) = compare(*in_turn(repeats(*ours[:taken]), repeats(*theirs[:taken], mode="batched"))).comparisons
        assert found.verdict is Verdict.UNDECIDED
        assert expected in compare_text.advice(found)[0]
    assert "would find a difference from" in compare_text.advice(found)[1]
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
        (Interval(1.5, None, None, 1), "1.500x (no interval)"),
        (Interval(0.0, None, None, 1, "ms"), "0 ms (no interval)"),
    ],
)
def test_an_interval_has_two_digits(interval: Interval, text: str) -> None:
    assert compare_text.precise(interval) == text

"""Which runs may be compared, which are refused unless forced, and which differences are named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.results.compared_runs import NINE, repeats, run, sides

from launchopt.analysis.comparison import likeness
from launchopt.analysis.comparison import text as compare_text
from launchopt.analysis.comparison.arms import Run
from launchopt.analysis.comparison.compare import SEPARATELY, compare
from launchopt.analysis.comparison.outcome import Outcome
from launchopt.analysis.stream_rows import DEPENDENCIES_IGNORED
from launchopt.errors import DataError

UNLIKE = {
    **{"workload": "prefill", "model": "other", "dtype": "fp32", "device": "cpu", "gpu": "NVIDIA A100", "layers": 9},
    **{"commands": 4000, "cache": "hot", "arrival": "poisson", "arrival_rate_per_s": 3.0, "shapes": "1x1x1"},
    **{"requests": 2, "scheduler": "continuous", "sampling": "greedy", "traced": True, "ordering": "none"},
    **{"input_footprint_bytes": 7, "weights": "fp8 per channel"},
    **{"gpus": 2, "tensor": 2, "expert_routing": "balanced", "active_experts": 3.5},
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


def test_a_manifest_with_another_name_of_the_model_does_not_matter_as_the_summary_has_todays() -> None:
    a, b = sides(repeats(*NINE), repeats(*NINE), config__model__name="predecessor")
    assert len(compare(a, b).comparisons) == 1


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


def test_two_types_of_processor_under_one_name_are_two_machines() -> None:
    """A virtual machine calls processors of several years `AMD EPYC`. Results of earlier versions lack the type."""
    kinds = ["vendor_id AuthenticAMD, cpu family 25, model 1", "vendor_id AuthenticAMD, cpu family 25, model 17"]
    a, b = sides(repeats(*NINE), repeats(*NINE), environment__processor=kinds[1])
    assert len(compare(a, b).comparisons) == 1
    manifest = a.runs[0].manifest
    assert manifest is not None
    manifest["environment"]["processor"] = kinds[0]
    assert f"processor: {kinds[0]} in A, {kinds[1]} in B" in compare(a, b).refused[0]


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
    fields = json.loads(json.dumps(compare_text.fields(outcome)))
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

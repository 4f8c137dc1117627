"""Which runs one dataset may have."""

from __future__ import annotations

from typing import Any

import pytest

from launchopt.analysis.comparison.mixture import KEY_COLUMNS, Mixture
from launchopt.errors import DataError
from launchopt.recording.results import Row


def rows(**changed: Any) -> list[Row]:
    """Two repeats of one mode."""
    plain = {"workload": "layer", "commands": 8, "traced": False, "run_id": "run/a", "mode": "baseline", "wall_ms": 1.5}
    return [dict.fromkeys(KEY_COLUMNS) | plain | changed | {"repeat": repeat} for repeat in range(2)]


def manifest(started: str = "1", **changed: Any) -> dict[str, Any]:
    environment = {"device": {"name": changed.pop("device", "CPU")}, "cores": changed.pop("cores", 2)}
    versions = {"driver": changed.pop("driver", "580")}
    config = {"seed": changed.pop("seed", 0), "repeats": changed.pop("repeats", 5), "workload": {"layers": 1}}
    assert not changed
    return {"started_utc": started, "environment": environment, "device_versions": versions, "config": config}


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        ({}, {"device": "GPU"}, "name: CPU in A, GPU in B"),
        ({}, {"cores": 4}, "cores: 2 in A, 4 in B"),
        ({}, {"driver": "590"}, "driver: 580 in A, 590 in B"),
        ({}, {"seed": 1}, "seed: 0 in A, 1 in B"),
    ],
)
def test_the_same_work_of_another_machine_driver_or_seed_is_refused(
    ours: dict[str, Any], theirs: dict[str, Any], why: str
) -> None:
    mixture = Mixture()
    assert mixture.takes("a", rows(), manifest(**ours))
    with pytest.raises(DataError, match=why) as refusal:
        mixture.takes("b", rows(), manifest("2", **theirs))
    assert str(refusal.value).startswith("b: must not be mixed with a, ")
    assert "--force" in str(refusal.value)


def test_traced_runs_are_not_mixed_with_untraced_ones() -> None:
    mixture = Mixture()
    assert mixture.takes("a", rows(), manifest())
    with pytest.raises(DataError, match="traced: false in A, true in B"):
        mixture.takes("b", rows(traced=True), manifest("2"))


def test_one_run_with_a_manifest_and_one_without_are_refused_for_the_same_work() -> None:
    mixture = Mixture()
    assert mixture.takes("a", rows(), manifest())
    assert mixture.takes("other work", rows(commands=9), None)
    with pytest.raises(DataError, match=r"B without manifest\.json"):
        mixture.takes("b", rows(run_id="run/b"), None)


def test_other_work_and_settings_that_change_no_work_are_taken() -> None:
    mixture = Mixture()
    assert mixture.takes("a", rows(), manifest())
    assert mixture.takes("b", rows(commands=9), manifest("2", device="GPU", seed=3))
    assert mixture.takes("c", rows(mode="batched"), manifest("3", repeats=9))
    assert mixture.runs == 3


def test_a_copy_counts_once_and_other_rows_of_the_same_run_are_refused() -> None:
    mixture = Mixture()
    assert mixture.takes("a", rows(), manifest())
    assert not mixture.takes("copy", rows(), manifest())
    assert (mixture.runs, mixture.copies) == (1, 1)
    with pytest.raises(DataError, match="other rows of the run in a"):
        mixture.takes("half", rows()[:1], manifest())


def test_a_run_without_a_summary_is_refused_since_nothing_says_what_it_ran() -> None:
    with pytest.raises(DataError, match=r"no summary\.parquet"):
        Mixture().takes("a", [], manifest())


def test_force_takes_everything_but_copies() -> None:
    mixture = Mixture(force=True)
    assert mixture.takes("a", rows(), manifest())
    assert mixture.takes("b", rows(traced=True), manifest("2", device="GPU"))
    assert mixture.takes("c", [], None)
    assert not mixture.takes("d", rows(), manifest())

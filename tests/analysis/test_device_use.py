"""Devices that jobs of a sweep held: an overlap in time on one of them is found, and so is a job that had none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launchopt.analysis.device_use import Use, overlaps, summary, uses_of
from launchopt.errors import DataError


def use(job: str, device: str, start: int, end: int) -> Use:
    """A use from a second to another one of a minute."""
    return Use(job, device, *(f"2026-11-28T10:00:{second:02}.000000+00:00" for second in (start, end)))


def test_jobs_may_follow_each_other_on_a_gpu_and_be_on_others_meanwhile() -> None:
    found = [use("0", "GPU-a", 0, 10), use("1", "GPU-b", 1, 12), use("2", "GPU-a", 10, 20)]
    assert overlaps(found) == []
    assert summary(Path("sweep"), found) == "3 jobs on 2 devices, one job at a time on each"


@pytest.mark.parametrize("second", [(9, 20), (2, 3)], ids=["partly", "within"])
def test_two_jobs_on_one_gpu_at_a_time_are_found_behind_others(second: tuple[int, int]) -> None:
    found = [use("2", "GPU-a", *second), use("0", "GPU-a", 0, 10), use("1", "GPU-b", 1, 12)]
    assert [(device, one.job, other.job) for device, one, other in overlaps(found)] == [("GPU-a", "0", "2")]
    with pytest.raises(DataError, match="jobs 0 and 2 held GPU-a at the same time"):
        summary(Path("sweep"), found)


def test_sets_of_cores_that_have_one_in_common_overlap() -> None:
    found = [use("0", "cores 0,1", 0, 10), use("1", "cores 1,2", 5, 12)]
    assert [device for device, _, _ in overlaps(found)] == ["core 1"]


@pytest.mark.parametrize("entry", [{}, {"shared": "GPU-a with other jobs"}], ids=["none", "shared"])
def test_a_job_without_a_device_of_its_own_is_refused(entry: dict[str, str], tmp_path: Path) -> None:
    held = {"device": "GPU-a", "from_utc": "2026-11-28T10:00:00+00:00", "until_utc": "2026-11-28T10:00:01+00:00"}
    (tmp_path / "0").mkdir()
    (tmp_path / "0/manifest.json").write_text(json.dumps({"held": held}))
    assert uses_of(tmp_path) == [Use("0", *held.values())]
    (tmp_path / "0/manifest.json").write_text(json.dumps(entry | ({"held": held} if entry else {})))
    with pytest.raises(DataError, match="the job had no device of its own"):
        uses_of(tmp_path)

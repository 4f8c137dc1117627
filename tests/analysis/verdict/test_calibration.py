"""A calibration: written, read back, found again; and what is none is refused by name."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import ROOT

from launchopt.analysis.verdict.calibration import (
    Calibration,
    as_json,
    calibration_markdown,
    default_path,
    find_calibration,
    from_json,
    read_calibration,
    write_calibration,
)
from launchopt.devices.launch_breakdown import Floor
from launchopt.errors import DataError

FLOOR = Floor(1.9, "us", 1.8, 2.1, 7, "a burst")
STAGES = {"null": {"call": {"p50_us": 1.5, "p99_us": 2.5, "how": "events"}}}
rates = st.floats(1e-6, 1e6)


def made(name: str = "NVIDIA H200", when: str = "2026-01-01T00:00:00+00:00", **floors: Floor) -> Calibration:
    return Calibration(when, {"kind": "cuda", "name": name}, {"python": "3.12"}, floors, STAGES)


def changed(**keys: Any) -> dict[str, Any]:
    """What the file holds, with one floor's keys replaced."""
    content = as_json(made(copy_gb_per_s=Floor(4000.0, "GB/s", None, None, 1, "a copy")))
    content["floors"]["copy_gb_per_s"].update(keys)
    return content


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "below" / "one.json"
    calibration = made(null_launch_host_us=FLOOR, copy_gb_per_s=Floor(4000.0, "GB/s", None, None, 1, ""))
    write_calibration(path, calibration)
    assert read_calibration(path) == calibration
    assert [each.name for each in path.parent.iterdir()] == ["one.json"], "the temporary file is gone"
    assert json.loads(path.read_text())["floors"]["copy_gb_per_s"]["low"] is None


def test_a_floor_that_was_not_measured_is_none() -> None:
    calibration = made(null_launch_host_us=FLOOR)
    assert calibration.value("null_launch_host_us") == 1.9
    assert calibration.value("graph_node_gpu_us") is None


@given(
    st.dictionaries(st.text(min_size=1), st.builds(Floor, rates, st.text(), rates, rates, st.integers(0, 9), st.text()))
)
def test_any_floors_survive(floors: dict[str, Floor]) -> None:
    calibration = Calibration("now", {"name": "x"}, {}, floors)
    assert from_json(json.loads(json.dumps(as_json(calibration))), Path("x.json")) == calibration


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["device", "environment", "floors", "stages", "schema_version", "floor"]), json_values)
def test_anything_else_is_read_or_refused(key: str, value: Any) -> None:
    content = changed()
    if key == "floor":
        content["floors"]["copy_gb_per_s"] = value
    else:
        content[key] = value
    with contextlib.suppress(DataError):
        assert isinstance(from_json(content, Path("x.json")), Calibration)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "not a calibration"),
        ({"ceilings": {}}, "not a calibration"),
        ({"floors": {}}, "schema_version=None"),
        ({"schema_version": 2, "floors": {}}, "schema_version=2"),
        ({"schema_version": 1, "floors": []}, "floors=[]"),
        ({"schema_version": 1, "floors": {}}, "device.name=None"),
        (changed(value=0), "floors.copy_gb_per_s.value=0"),
        (changed(value=True), "floors.copy_gb_per_s.value=True"),
        (changed(value=float("nan")), "floors.copy_gb_per_s.value=nan"),
        (changed(value=None), "floors.copy_gb_per_s.value=None"),
        (changed(low="x"), "floors.copy_gb_per_s.low='x'"),
        (changed(unit=1), "floors.copy_gb_per_s: unit and how must be text"),
        (changed(repeats=-1), "floors.copy_gb_per_s.repeats=-1"),
        (changed(repeats=1.5), "floors.copy_gb_per_s.repeats=1.5"),
    ],
)
def test_what_is_none_is_refused_by_name(tmp_path: Path, content: Any, says: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError) as error:
        read_calibration(path)
    assert str(error.value).startswith(f"{path}: {says}")


def test_a_time_may_be_below_zero_and_a_rate_may_not() -> None:
    delay = made(launch_delay_us=Floor(-0.2, "us", -0.3, 0.1, 7, ""))
    assert from_json(as_json(delay), Path("x")).value("launch_delay_us") == -0.2
    with pytest.raises(DataError, match="must be a number above 0"):
        from_json(as_json(made(copy_gb_per_s=Floor(-0.2, "GB/s", None, None, 7, ""))), Path("x"))


@pytest.mark.parametrize("text", ["", "{", "\x00", "[" * 100_000])
def test_what_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(DataError, match="cannot be read as JSON"):
        read_calibration(path)
    with pytest.raises(DataError, match="no such file"):
        read_calibration(tmp_path / "none.json")


def test_where_it_cannot_be_written_is_said_and_nothing_left(tmp_path: Path) -> None:
    (tmp_path / "taken.json").mkdir()
    with pytest.raises(DataError, match="cannot be written"):
        write_calibration(tmp_path / "taken.json", made())
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        write_calibration(tmp_path / "file" / "x.json", made())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "taken.json"]


def test_the_newest_of_this_device_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAUNCHOPT_CALIBRATION", raising=False)
    assert find_calibration("NVIDIA H200") is None
    old, new, other = (made(when=f"202{year}-01-01") for year in (4, 6, 5))
    write_calibration(default_path("NVIDIA H200"), old)
    write_calibration(default_path("a CPU"), made(name="a CPU", when="2029-01-01"))
    (tmp_path / "outputs/calibration/note.json").write_text("{}")
    assert find_calibration("NVIDIA H200") == old
    write_calibration(tmp_path / "more" / "x.json", other)
    assert find_calibration("NVIDIA H200", [tmp_path / "more"]) == other
    write_calibration(tmp_path / "named.json", new)
    monkeypatch.setenv("LAUNCHOPT_CALIBRATION", str(tmp_path / "named.json"))
    assert find_calibration("NVIDIA H200", [tmp_path / "more"]) == new
    assert find_calibration("another") is None


def test_a_named_file_that_is_none_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHOPT_CALIBRATION", str(tmp_path / "gone.json"))
    with pytest.raises(DataError, match=r"gone\.json: no such file"):
        find_calibration("NVIDIA H200")


@pytest.mark.parametrize(
    ("name", "file"),
    [("NVIDIA H200", "nvidia_h200"), ("AMD EPYC, 2 cores", "amd_epyc_2_cores"), ("../../x", "x"), ("é/", "device")],
)
def test_a_file_is_named_after_the_device(name: str, file: str) -> None:
    assert default_path(name) == Path("outputs/calibration") / f"{file}.json"


COMMITTED = ROOT / "outputs/reference/gpu/calibration/calibration.json"


def test_every_floor_and_stage_is_there() -> None:
    calibration = read_calibration(COMMITTED)
    text = calibration_markdown(calibration)
    assert text.startswith("NVIDIA H200, 2026-")
    for name, floor in calibration.floors.items():
        assert any(line.startswith(f"| {name} | ") and f"| {floor.unit} |" in line for line in text.splitlines()), name
    for kernel, stages in calibration.stages.items():
        own = text.split(f"**One launch by stage: {kernel}**")[1].split("**")[0]
        for name in stages:
            assert f"\n| {name} | " in own, (kernel, name)
        assert "| in all | 7-18 | " in own


@pytest.mark.parametrize("stage", [None, {}, 7, {"p50_us": 1.5}, {"p50_us": 1.5, "p99_us": None, "how": "events"}])
def test_a_stage_without_its_parts_is_named_and_left_out(
    stage: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = as_json(made(null_launch_host_us=FLOOR)) | {"stages": {"null": STAGES["null"] | {"other": stage}}}
    found = from_json(content, tmp_path / "made.json")
    assert "| call | 1.500 | " in calibration_markdown(found)
    assert found.stages == STAGES
    assert "shown without keys that are incomplete or of a wrong type: stages.null.other" in capsys.readouterr().err


def test_a_floor_without_an_interval_says_so() -> None:
    alone = {"x_us": Floor(1.5, "us", None, None, 1, "once | twice")}
    text = calibration_markdown(replace(read_calibration(COMMITTED), floors=alone, stages={}))
    assert text.endswith("| x_us | 1.500 | too few repeats | us | once \\| twice |\n")


def test_too_few_repeats_show_their_range_and_keep_it(tmp_path: Path) -> None:
    few = Floor(1.5, "us", None, None, 3, "so", (1.0, 2.0))
    write_calibration(tmp_path / "x.json", Calibration("2026", {"name": "x"}, {}, {"x_us": few}))
    found = read_calibration(tmp_path / "x.json")
    assert found.floors["x_us"] == few
    assert "| (1.000 to 2.000) |" in calibration_markdown(found)


def test_a_range_that_is_no_pair_of_numbers_is_refused(tmp_path: Path) -> None:
    floors = {"x_us": {"value": 1.0, "unit": "us", "range": [1]}}
    with pytest.raises(DataError, match="range"):
        from_json({"schema_version": 1, "device": {"name": "x"}, "floors": floors}, tmp_path / "x.json")

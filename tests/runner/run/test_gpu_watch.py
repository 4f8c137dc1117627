"""Clocks, throttle reasons and energy in the rows and the manifest of a run that the parent watched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.config.composing import planned
from support.cuda.fake_nvml import OTHER_UUID, UUID, Board, installed
from support.processes.own_process import ROOT, environ_of

from launchopt.recording import results
from launchopt.timing import nvml
from runner.run import children
from runner.run import run as run_module

CORES = sorted(os.sched_getaffinity(0))[:2]
PAUSE_MS = 200  # a busy machine may stop this process that long between the clock and the counter


def test_on_the_cpu_nvml_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Board())
    notices: list[str] = []
    assert run_module._watch(planned(), notices) is None
    assert notices == []


@pytest.fixture
def kept_children() -> Iterator[None]:
    yield
    children.dismiss()


def assert_seen(row: results.Row, gpu: dict[str, Any]) -> None:
    """What holds of any repeat, of a second or so, that was watched."""
    assert gpu["looks"] >= 3
    assert row["sm_clock_min_mhz"] == gpu["sm_clock_mhz"]["low"] <= row["sm_clock_mhz"] == gpu["sm_clock_mhz"]["median"]
    assert row["throttled"] == bool(set(gpu["looks_with_reason"]) - nvml.NO_THROTTLING)
    assert gpu["energy_window_ms"] >= row["wall_ms"]
    if gpu["no_energy"] is None:
        assert row["energy_mj_per_command"] == pytest.approx(gpu["energy_mj"] / row["commands"])
        assert row["power_w"] == pytest.approx(gpu["energy_mj"] / gpu["energy_window_ms"])
    else:
        assert row["energy_mj_per_command"] is row["power_w"] is None


def test_a_run_is_watched_from_the_parent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kept_children: None, capsys: pytest.CaptureFixture[str]
) -> None:
    board = installed(monkeypatch, Board())
    board.reasons = 0x4
    monkeypatch.setattr(run_module, "_watch", lambda plan, notices: nvml.GpuWatches([nvml.open_watch(UUID)]))
    job = "mode=baseline workload.cache=hot workload.commands=800 arrival=constant arrival.rate_per_s=1000 repeats=2"
    plan = planned(*job.split())
    rows = run_module.execute(plan, tmp_path, []).rows
    manifest = results.read_manifest(tmp_path)
    for row, about in zip(rows, manifest["runs"], strict=True):
        assert_seen(row, about["gpu"])
        assert (row["sm_clock_mhz"], row["throttle_reasons"]) == (1980.0, "sw_power_cap")
        drawn_mj, a_step_and_a_pause_ms = board.power_w * about["gpu"]["energy_window_ms"], 20 + PAUSE_MS
        assert about["gpu"]["energy_mj"] == pytest.approx(drawn_mj, abs=board.power_w * a_step_and_a_pause_ms)
    throttled = "baseline: repeats throttled: 2 of 2 (sw_power_cap)"
    assert throttled in manifest["notices"]
    assert throttled in capsys.readouterr().out


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
@pytest.mark.parametrize("split", [False, True])
def test_each_gpu_of_a_run_is_watched(
    split: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kept_children: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    board = installed(monkeypatch, Board())
    board.other_clock_mhz, board.reasons = 1500, 0x4
    watches = nvml.GpuWatches([nvml.open_watch(uuid) for uuid in (UUID, OTHER_UUID)])
    monkeypatch.setattr(run_module, "_watch", lambda plan, notices: watches)
    words = ("workload=decode", "model=tiny", "workload.layers=2", "workload.requests=2", "workload.tokens=40")
    parallel = ("parallel.tensor=2", "scheduler=continuous") if split else ()
    gpus = f"device.gpus=[{CORES[0]},{CORES[1]}]"
    plan = planned(*words, "workload.cache=hot", "mode=baseline", "against=[]", "repeats=1", gpus, *parallel)
    (row,) = run_module.execute(plan, tmp_path, []).rows
    assert row["status"] == "ok"
    assert (row["sm_clock_mhz"], row["sm_clock_min_mhz"], row["throttle_reasons"]) == (1500.0, 1500.0, "sw_power_cap")
    of_each = results.read_gpus([tmp_path])
    assert [(each["gpu"], each["sm_clock_mhz"]) for each in of_each] == [(CORES[0], 1980.0), (CORES[1], 1500.0)]
    readings = results.read_manifest(tmp_path)["runs"][0]["gpus"]
    assert [readings[str(core)]["sm_clock_mhz"]["low"] for core in CORES] == [1980, 1500]
    assert f"GPU {CORES[1]}:" in (printed := capsys.readouterr().out)
    assert "SM clock 1,500 MHz, lowest 1,500, throttled (sw_power_cap)" in printed


@pytest.mark.gpu
def test_a_run_on_a_gpu_is_watched(tmp_path: Path) -> None:
    job = "mode=baseline device=cuda workload.cache=hot workload.commands=400000 repeats=2 timing=host"
    words = [sys.executable, "-m", "runner", *job.split(), f"hydra.run.dir={tmp_path}/run"]
    subprocess.run(words, cwd=tmp_path, env=environ_of(ROOT), check=True, capture_output=True, text=True)
    manifest = results.read_manifest(tmp_path / "run")
    rows = results.read_summaries([tmp_path / "run"])
    for row, about in zip(rows, manifest["runs"], strict=True):
        print(json.dumps(about["gpu"], indent=1))
        assert_seen(row, about["gpu"])
        assert 200 < row["sm_clock_mhz"] < 4000
        assert about["gpu"]["no_energy"] is None
        assert 30 < row["power_w"] < 1500

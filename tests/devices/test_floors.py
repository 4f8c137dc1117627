"""Floors: the loops that measure them, floors of a CPU, and floors of launches on a stand-in and on a GPU."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cuda.fake_gpu import COMPLETION_NS, KERNEL_NS, FakeGpu, address_of, fake_floors, function_of
from support.processes.own_process import environ_of

from launchopt.analysis.verdict.calibration import from_json
from launchopt.devices import open_floors
from launchopt.devices.cuda.floors.loops import call_burst, clock_burst, empty_function, lone_launches
from launchopt.devices.floors import Measured, floor_of
from launchopt.devices.launch_breakdown import STAGES, Floor, Stage
from launchopt.devices.launch_breakdown import from_json as stages_from_json
from launchopt.errors import RunError

UNTRACED = {
    "null_launch_host_us",
    "null_launch_sync_p50_us",
    "null_launch_sync_p99_us",
    "lt_launch_host_us",
    "graph_replay_host_us",
    "graph_node_gpu_us",
    "kernel_gap_us",
    "event_record_host_us",
}
TRACED = {"launch_delay_us", "null_kernel_us", "cupti_launch_host_us"}
HOST = {"clock_read_host_us", "nvtx_range_host_us"}
RATES = {"copy_gb_per_s", "read_gb_per_s"}
PEAKS = {"peak_tflops_fp32", "peak_tflops_fp16", "peak_tflops_bf16"}


def check_launches(floors: Mapping[str, Floor], stages: Mapping[str, Mapping[str, Stage]]) -> None:
    """Check what holds for launches on any device."""
    assert all(floor.unit == "us" and floor.how for name, floor in floors.items() if name.endswith("_us"))
    value = {name: floor.value for name, floor in floors.items()}
    assert value["null_launch_sync_p50_us"] <= value["null_launch_sync_p99_us"]
    assert value["null_launch_host_us"] < value["null_launch_sync_p50_us"]
    assert all(value[name] > 0 for name in UNTRACED)
    for one in stages.values():
        assert set(one) == set(STAGES)
        assert all(each.p50_us <= each.p99_us and each.how for each in one.values())
        assert one["call"].p50_us + one["completion"].p50_us < one["whole"].p99_us
        assert one["arguments"].p50_us < one["whole"].p50_us


def test_a_burst_is_as_many_calls() -> None:
    calls: list[tuple[int, int]] = []
    function = function_of(lambda a, b: calls.append((a, b)) or 0, 2)
    spent_ns, status = call_burst(address_of(function), (np.int64(3), np.int64(-4)), 5)
    assert (status, calls) == (0, [(3, -4)] * 5)
    assert spent_ns > 0


def test_a_burst_stops_at_the_first_bad_status() -> None:
    calls: list[int] = []
    function = function_of(lambda a: calls.append(a) or (9 if len(calls) == 3 else 0), 1)
    assert call_burst(address_of(function), (np.int64(1),), 5) == (0, 9)
    assert len(calls) == 3


def test_the_empty_function_takes_anything() -> None:
    for count in (0, 4, 16):
        function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * count)(empty_function())
        assert function(*range(count)) == 0


def test_the_clock_is_read_so_often() -> None:
    assert clock_burst(0) == 0
    assert 0 < clock_burst(1000) < 1_000_000_000


def test_a_floor_is_a_median_with_its_interval() -> None:
    floor = floor_of(Measured("x", "us", [3.0, 1.0, 2.0, 2.0, 2.5], "so"))
    assert floor == Floor(2.0, "us", 1.0, 3.0, 5, "so", (1.0, 3.0))
    assert floor_of(Measured("x", "us", [3.0], "so")) == Floor(3.0, "us", None, None, 1, "so")


def test_floors_of_a_cpu() -> None:
    floors = open_floors("cpu", 0)
    try:
        found = {measured.name: floor_of(measured) for measured in floors.measure(1)}
        assert set(found) == RATES | HOST | {"peak_tflops_fp32", "blas_call_host_us"}
        assert all(floor.value > 0 and floor.repeats == 1 and floor.how for floor in found.values())
        assert found["clock_read_host_us"].value < found["blas_call_host_us"].value
        assert floors.stages() == floors.absent == {}
        assert floors.about()["kind"] == "cpu"
    finally:
        floors.close()


def test_floors_of_launches() -> None:
    launches, absent = fake_floors(FakeGpu())
    found = {measured.name: floor_of(measured) for measured in launches.measure(3)}
    assert (set(found), absent) == (UNTRACED | TRACED, {})
    assert {floor.repeats for floor in found.values()} == {3}
    # These are exact: they are times of the stand-in's clock, without any time of the host.
    for name in ("graph_node_gpu_us", "kernel_gap_us", "null_kernel_us"):
        assert found[name].value == KERNEL_NS / 1e3
    stages = launches.stages()
    assert list(stages) == ["null", "gemm"]
    check_launches(found, stages)
    for one in stages.values():
        assert one["kernel"].p99_us == KERNEL_NS / 1e3
        assert one["gap"].p99_us == 0
        assert one["completion"].p50_us >= COMPLETION_NS / 1e3


def test_without_cupti_the_rest_is_measured_and_says_why() -> None:
    launches, absent = fake_floors(FakeGpu(cupti="cupti-python not installed"))
    found = {measured.name: floor_of(measured) for measured in launches.measure(1)}
    assert set(found) == UNTRACED
    assert absent == dict.fromkeys((*TRACED, "stages by CUPTI"), "cupti-python not installed")
    assert {tuple(one) for one in launches.stages().values()} == {("arguments", "call", "whole")}


@pytest.mark.parametrize(
    ("refuse", "says"),
    [
        ("cuLaunchKernelEx", "status"),
        ("cublasLtMatmul", "status"),
        ("cuStreamSynchronize", "status"),
        ("cuGraphLaunch", "cuGraphLaunch failed with CUresult 1"),
        ("cuEventRecord", "cuEventRecord failed with CUresult 1"),
    ],
)
def test_what_the_driver_refuses_is_an_error(refuse: str, says: str) -> None:
    launches, _ = fake_floors(FakeGpu(refuse=refuse))
    with pytest.raises(RunError, match=says):
        list(launches.measure(1))


def test_a_launch_that_fails_is_not_waited_for() -> None:
    gpu = FakeGpu(refuse="cublasLtMatmul")
    context = np.zeros(16, np.int64)
    context[0] = gpu.address("cublasLtMatmul")
    times = np.zeros((3, 3), np.int64)
    status = lone_launches(context, np.zeros(7, np.int64), np.zeros(4, np.int64), np.int64(empty_function()), times)
    assert (status, gpu.launches, times[1:].any()) == (1, 1, False)


@pytest.mark.gpu
def test_floors_of_a_gpu(tmp_path: Path) -> None:
    """It runs in a process of its own, since CUPTI slows later launches of a process that has used it."""
    call = [sys.executable, "-m", "runner.doctor", "--device", "cuda", "--json", "--repeats", "5", "--save", "h.json"]
    done = subprocess.run(
        call, cwd=tmp_path, env=environ_of(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["calibration"] == json.loads((tmp_path / "h.json").read_text())
    calibration = from_json(found["calibration"], tmp_path / "h.json")
    traced = set() if found["not_measured"] else TRACED
    of_operators = {name for name in calibration.floors if name.startswith("dispatch_")}  # more of them with PyTorch
    assert of_operators >= {"dispatch_cublaslt_launches", "dispatch_cupy_matmul_us"}
    assert set(calibration.floors) - of_operators == UNTRACED | RATES | PEAKS | HOST | traced
    value = {name: floor.value for name, floor in calibration.floors.items()}
    assert value["read_gb_per_s"] > 0.5 * value["copy_gb_per_s"]
    assert value["peak_tflops_fp16"] > value["peak_tflops_fp32"]
    assert value["graph_node_gpu_us"] < value["null_launch_sync_p50_us"]
    if traced:
        check_launches(calibration.floors, stages_from_json(calibration.stages))
        assert value["cupti_launch_host_us"] > value["null_launch_host_us"]

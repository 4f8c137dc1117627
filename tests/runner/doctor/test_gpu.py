"""The doctor's checks of a GPU that is made up: driver, CUPTI, state, profilers and counters."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from launchopt.devices.cuda.info import GpuUsers
from runner.doctor import gpu as doctor_gpu
from runner.doctor.checks import Status

OK, WARNING, MISSING = Status.OK, Status.WARNING, Status.MISSING


@pytest.mark.parametrize(
    ("driver", "cuda", "status"),
    [(None, None, MISSING), ("580.65.06", (13, 0), OK), ("550.1", (12, 4), WARNING)],
)
def test_driver(driver: str | None, cuda: tuple[int, int] | None, status: Status) -> None:
    check = doctor_gpu.driver_check(driver, cuda, needed=True)
    assert (check.status, check.needed, bool(check.mend)) == (status, True, status is not OK)


@pytest.mark.parametrize(
    ("version", "cuda", "status", "mend"),
    [
        (None, None, MISSING, "==13.0.*"),
        (None, (13, 1), MISSING, "==13.1.*"),
        ("13.0.1", None, OK, ""),
        ("13.0.1", (13, 0), OK, ""),
        ("13.0.1", (13, 1), OK, ""),
        ("13.4.0", (13, 0), WARNING, "==13.0.*"),
        ("13.0.1", (12, 8), WARNING, "==12.8.*"),
    ],
)
def test_cupti(version: str | None, cuda: tuple[int, int] | None, status: Status, mend: str) -> None:
    check = doctor_gpu.cupti_check(version, cuda)
    assert check.status is status
    assert mend in check.mend


STATE = {
    "sm_clock_mhz": 1980,
    "memory_clock_mhz": 3201,
    "power_w": 120.4,
    "temperature_c": 31,
    "throttle_reasons": "0x1",
}


@pytest.mark.parametrize(
    ("change", "users", "statuses"),
    [
        ({}, GpuUsers({}, True), [OK, OK, OK]),
        ({"throttle_reasons": "0x24"}, GpuUsers({}, True), [OK, WARNING, OK]),
        ({}, GpuUsers({1: None, 2**31 - 1: 5 << 30}, False), [WARNING, OK, WARNING]),
        ({}, GpuUsers(None, None), [WARNING, OK, WARNING]),
    ],
)
def test_state(change: dict[str, Any], users: GpuUsers, statuses: list[Status]) -> None:
    checks = list(doctor_gpu.state_checks(STATE | change, users))
    assert [check.status for check in checks] == statuses
    assert "SM 1,980 MHz, memory 3,201 MHz, 120 W, 31 °C" in checks[1].found
    if change:
        assert checks[1].found.endswith("throttled: sw_power_cap, sw_thermal_slowdown")
    if users.others:
        assert "(memory unknown)" in checks[2].found
        assert "(name unknown) (5.4 GB)" in checks[2].found


def test_a_gpu_that_tells_nothing_of_itself() -> None:
    _, clocks, _ = doctor_gpu.state_checks({"nvml": "Unknown Error"}, GpuUsers(None, None))
    assert clocks.found == "not reported by NVML; not throttled"


def tool(folder: Path, name: str, script: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_profilers(tmp_path: Path) -> None:
    paths = {
        "nsys": tool(tmp_path, "nsys", "echo NVIDIA Nsight Systems version 2025.3.2.474-0"),
        "ncu": tool(tmp_path, "ncu", "echo lib.so: cannot open shared object file >&2; exit 127"),
    }
    works, broken = doctor_gpu.tool_checks(paths.get)
    assert (works.status, works.found) == (OK, f"2025.3.2.474, {paths['nsys']}")
    assert (broken.status, broken.found) == (WARNING, f"{paths['ncu']} does not start")
    assert [each.status for each in doctor_gpu.tool_checks(lambda name: None)] == [MISSING, MISSING]


@pytest.mark.parametrize(
    ("parameters", "status_file", "status"),
    [
        ("RmProfilingAdminOnly: 0\n", "", OK),
        ("Other: 1\nRmProfilingAdminOnly: 1\n", "CapEff:\t0000000000000000\n", WARNING),
        ("RmProfilingAdminOnly: 1\n", "CapEff:\t000001ffffffffff\n", OK),
        ("RmProfilingAdminOnly: 1\n", None, WARNING),
        (None, "", WARNING),
    ],
)
def test_counters(tmp_path: Path, parameters: str | None, status_file: str | None, status: Status) -> None:
    for name, text in (("params", parameters), ("status", status_file)):
        if text is not None:
            (tmp_path / name).write_text(text)
    check = doctor_gpu.counter_check(tmp_path / "params", tmp_path / "status")
    assert check.status is status

"""The doctor: every check on machines that are made up, what dead processes left, and the command itself."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from packaging.requirements import Requirement
from support.processes.own_process import ROOT, environ_of

from launchopt.analysis.verdict.calibration import Calibration, read_calibration
from launchopt.devices.cuda.info import GpuUsers
from launchopt.devices.launch_breakdown import Floor
from launchopt.errors import DataError, DeviceError
from runner.doctor import __main__ as doctor
from runner.doctor import checks as doctor_checks
from runner.doctor import gpu as doctor_gpu
from runner.doctor import screen as doctor_screen
from runner.doctor.checks import Check, Status, usable
from runner.run.folder_lock import FolderLock
from runner.run.leftovers import LOCK, clean, leftovers

OK, WARNING, MISSING = Status.OK, Status.WARNING, Status.MISSING
CPU_FLOORS = {
    *("copy_gb_per_s", "read_gb_per_s", "peak_tflops_fp32"),
    *("blas_call_host_us", "clock_read_host_us", "nvtx_range_host_us"),
}


def dead_pid() -> int:
    """Of a process that has ended."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


def installed(**versions: str) -> Any:
    """A stand-in for importlib.metadata.version."""

    def version(name: str) -> str:
        if name.replace("-", "_") not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name.replace("-", "_")]

    return version


# Machine


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10, 9), MISSING), ((3, 11, 0), OK), ((3, 13, 5), OK), ((3, 14, 0), MISSING)]
)
def test_python(version: tuple[int, ...], status: Status) -> None:
    check = doctor_checks.python_check(version)
    assert (check.status, check.needed, bool(check.mend)) == (status, True, status is MISSING)


def test_requirements_of_a_checkout_and_of_an_install_are_the_same(tmp_path: Path) -> None:
    checkout = doctor_checks.requirements()
    assert {"", "cuda12", "cuda13", "torch"} <= set(checkout)
    names = {extra: sorted(one.name for one in each) for extra, each in checkout.items()}
    assert "numpy" in names[""]
    try:
        other = doctor_checks.requirements(tmp_path / "no-pyproject.toml")
    except metadata.PackageNotFoundError:
        pytest.skip("launchopt is not installed here")
    assert {extra: sorted(one.name for one in each) for extra, each in other.items() if extra in names} == names


def test_packages() -> None:
    wanted = {"": [Requirement("numpy>=1.26,<3"), Requirement("rich>=13")], "torch": [Requirement("torch>=2.6")]}
    everything = installed(numpy="2.1", rich="14.0", torch="2.7.0+cpu")
    assert [each.status for each in doctor_checks.package_checks(wanted, everything)] == [OK, OK]
    needed, extra = doctor_checks.package_checks(wanted, installed(numpy="3.1", torch="1.0"))
    assert (needed.status, needed.needed) == (MISSING, True)
    assert needed.found == "not installed: rich, numpy 3.1 (wanted <3,>=1.26)"
    assert (extra.status, extra.needed) == (WARNING, False)
    (_, extra) = doctor_checks.package_checks(wanted, installed(numpy="2.1", rich="14"))
    assert (extra.status, extra.mend) == (MISSING, "pip install -e '.[torch]'")
    assert "torch_*" in extra.found


@pytest.mark.parametrize(
    ("cuda", "versions", "name", "status"),
    [
        (13, {"cupy_cuda13x": "14"}, "extra cuda13", OK),
        (13, {"cupy_cuda12x": "14"}, "extra cuda12", OK),
        (12, {}, "extra cuda12", MISSING),
        (13, {}, "extra cuda13", MISSING),
        (11, {}, "extra cuda12", MISSING),
    ],
)
def test_packages_for_a_gpu(cuda: int, versions: dict[str, str], name: str, status: Status) -> None:
    wanted = {"": [], "cuda12": [Requirement("cupy-cuda12x")], "cuda13": [Requirement("cupy-cuda13x")]}
    check = doctor_checks.gpu_package_check(wanted, cuda, installed(**versions))
    assert (check.name, check.status) == (name, status)
    assert name.split()[1] in check.mend or status is OK


@pytest.mark.parametrize(("free", "status"), [(1 << 20, MISSING), (32 << 20, WARNING), (1 << 30, OK)])
def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: Status) -> None:
    monkeypatch.setattr(doctor_checks.shutil, "disk_usage", lambda folder: (1 << 31, 0, free))
    room, left = doctor_checks.shared_memory_checks(tmp_path)
    assert (room.status, room.needed, bool(room.mend)) == (status, True, status is not OK)
    assert left.status is OK


def test_no_shared_memory_is_missing(tmp_path: Path) -> None:
    (check,) = doctor_checks.shared_memory_checks(tmp_path / "none")
    assert (check.status, check.needed) == (MISSING, True)


@pytest.mark.parametrize(
    ("governors", "cores", "statuses"),
    [
        ([], 8, [OK, OK]),
        (["performance"] * 2, 3, [OK, OK]),
        (["performance", "powersave"], 8, [OK, WARNING]),
        (["powersave"], 2, [WARNING, WARNING]),
    ],
)
def test_processor(tmp_path: Path, governors: list[str], cores: int, statuses: list[Status]) -> None:
    for number, governor in enumerate(governors):
        folder = tmp_path / f"devices/system/cpu/cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{governor}\n")
    checks = list(doctor_checks.cpu_checks(tmp_path, cores))
    assert [check.status for check in checks] == statuses
    assert all(bool(check.mend) == (check.status is not OK) for check in checks)


# What dead processes left


def test_only_segments_of_dead_processes_are_left_over(tmp_path: Path) -> None:
    pid = dead_pid()
    left = tmp_path / f"launchopt_{pid}_0a1b2c"
    left.write_bytes(b"x" * 100)
    for name in (f"launchopt_{os.getpid()}_0a1b2c", f"launchopt_{pid}_xyz", f"launchopt_{pid}", f"other_{pid}_0a"):
        (tmp_path / name).write_bytes(b"")
    (found,) = leftovers(tmp_path)
    assert (found.path, found.pid, found.size_bytes) == (left, pid, 100)
    _, check = doctor_checks.shared_memory_checks(tmp_path)
    assert check.status is WARNING
    assert left.name in check.found
    assert clean([found]) == [found]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        (f"launchopt_{os.getpid()}_0a1b2c", f"launchopt_{pid}_xyz", f"launchopt_{pid}", f"other_{pid}_0a")
    )
    assert clean([found]) == [found], "that it is gone already is no error"


def test_what_came_to_life_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / f"launchopt_{dead_pid()}_0a"
    left.write_bytes(b"")
    found = leftovers(tmp_path)
    monkeypatch.setattr(psutil, "pid_exists", lambda pid: True)
    assert (clean(found), left.exists(), leftovers(tmp_path)) == ([], True, [])


def test_what_may_not_be_removed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / f"launchopt_{dead_pid()}_0a").mkdir()  # not even root unlinks a folder
    with pytest.raises(DataError, match="cannot be removed"):
        clean(leftovers(tmp_path))


def killed(folder: Path, is_sweep: bool = False) -> Path:
    """What a process that is gone left: its lock, which nobody holds."""
    folder.mkdir(parents=True)
    (folder / LOCK).write_text(f"{dead_pid()} on {socket.gethostname()}\n")
    if is_sweep:
        (folder / "sweep.json").write_text("{}")
    return folder


def test_killed_runs_are_listed_with_what_happens_next(tmp_path: Path) -> None:
    runs, sweeps = tmp_path / "run", tmp_path / "sweep"
    (none,) = doctor_checks.killed_checks((runs, sweeps))
    assert (none.status, none.found) == (OK, f"none in {runs} or {sweeps}")
    run = killed(runs / "1")
    sweep = killed(sweeps / "1", is_sweep=True)
    job = killed(sweep / "0")
    with FolderLock(runs / "2", "hydra.run.dir"):  # a live one
        checks = list(doctor_checks.killed_checks((runs, sweeps)))
    assert [(check.status, check.found) for check in checks] == [(WARNING, str(each)) for each in (run, job, sweep)]
    assert not any(check.needed for check in checks)
    for check, kind, whole in zip(checks, ("run", "sweep", "sweep"), (run, sweep, sweep), strict=True):
        assert check.mend.startswith(f"the next {kind} in {whole.parent} marks it as killed and finishes its tables; ")
        assert check.mend.endswith(f"the same command with hydra.{kind}.dir={whole} resume=true")


def test_where_runs_land_is_where_killed_ones_are_looked_for() -> None:
    landing = yaml.safe_load((ROOT / "conf/config.yaml").read_text())["hydra"]
    assert Path(landing["run"]["dir"]).parent == doctor_checks.RUNS
    assert Path(landing["sweep"]["dir"]).parent == doctor_checks.SWEEPS


def test_the_command_lists_killed_runs_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    killed(tmp_path / "outputs/run/20260101-000000")
    assert doctor.main(["--device", "cpu", "--no-floors"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (at,) = (number for number, line in enumerate(lines) if "outputs/run/20260101-000000" in line and "->" not in line)
    assert lines[at].startswith("warning ")
    assert "hydra.run.dir=outputs/run/20260101-000000 resume=true" in lines[at + 1]


# GPU


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
        assert "(memory not told)" in checks[2].found
        assert "(name not told) (5.4 GB)" in checks[2].found


def test_a_gpu_that_tells_nothing_of_itself() -> None:
    _, clocks, _ = doctor_gpu.state_checks({"nvml": "Unknown Error"}, GpuUsers(None, None))
    assert clocks.found == "not told by NVML; not throttled"


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


# The command


def test_only_what_is_needed_and_missing_makes_it_unusable() -> None:
    assert usable([Check("a", MISSING, ""), Check("b", WARNING, "", needed=True), Check("c", OK, "", needed=True)])
    assert not usable([Check("a", MISSING, "", needed=True)])


def as_process(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "runner.doctor", *words]
    return subprocess.run(call, cwd=folder, env=environ_of(), capture_output=True, text=True, timeout=120, check=False)


def test_floors_of_a_cpu_are_printed_and_saved(tmp_path: Path) -> None:
    done = as_process("--device", "cpu", "--repeats", "3", "--save", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = (tmp_path / "outputs/calibration").iterdir()
    calibration = read_calibration(path)
    assert set(calibration.floors) == CPU_FLOORS
    assert (calibration.device["kind"], calibration.stages) == ("cpu", {})
    assert all(name in done.stdout for name in CPU_FLOORS)
    assert "device=cpu can be used" in done.stdout
    assert f"calibration: {path.relative_to(tmp_path)}" in done.stdout


def test_json_is_all_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.json"
    assert doctor.main(["--device", "cpu", "--json", "--repeats", "1", "--save", str(path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["usable"], told["device"], told["saved"], told["removed"]) == (True, "cpu", str(path), [])
    assert told["calibration"] == json.loads(path.read_text())
    assert {check["status"] for check in told["checks"]} <= {"OK", "warning", "missing"}


def test_without_floors_nothing_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "measure", lambda *_: pytest.fail("measured"))
    assert doctor.main(["--device", "cpu", "--no-floors"]) == 0
    assert "Floors" not in capsys.readouterr().out


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_a_gpu_is_needed_only_where_it_was_asked_for(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_device(kind: str, index: int) -> Any:
        if kind == "cuda":
            raise DeviceError("device=cuda: no usable NVIDIA GPU")
        return type("Info", (), {"kind": "cpu"})(), "no GPU"

    monkeypatch.setattr("launchopt.devices.find_device", find_device)
    monkeypatch.setattr(doctor_gpu, "find_device", find_device)
    monkeypatch.setattr(doctor, "measure", lambda *_: pytest.fail("measured"))
    words = ["--device", device, *([] if device == "cuda" else ["--no-floors"])]
    assert doctor.main(words) == (1 if device == "cuda" else 0)
    out = capsys.readouterr().out
    assert ("device=cuda cannot be used" if device == "cuda" else "device=cpu can be used") in out
    assert "no usable NVIDIA GPU" in out


def test_clean_removes_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = tmp_path / f"launchopt_{dead_pid()}_0a"
    left.write_bytes(b"")
    monkeypatch.setattr(doctor, "FOLDER", tmp_path)
    assert doctor.main(["--device", "cpu", "--no-floors", "--clean"]) == 0
    assert (left.exists(), f"removed {left}" in capsys.readouterr().out) == (False, True)


def test_where_nothing_can_be_saved_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "x.json"
    assert doctor.main(["--device", "cpu", "--repeats", "1", "--save", str(path)]) == 2
    told = capsys.readouterr()
    assert told.err == f"error: {path}: cannot be written (File exists)\n"
    assert "copy_gb_per_s" in told.out, "what was measured is shown first"


@pytest.mark.parametrize(
    "words", [["--save", "--no-floors"], ["--repeats", "0"], ["--repeats", "x"], ["--index", "-1"], ["--device", "tpu"]]
)
def test_bad_options(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        doctor.main(words)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_an_interrupted_doctor_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "measure", interrupted)
    assert doctor.main(["--device", "cpu"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_stages_stand_beside_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    stages = {
        name: {"p50_us": us, "p99_us": 2 * us, "how": f"[{name}]"}
        for name, us in {"arguments": 0.25, "call": 1.5, "launch_delay": 2.25}.items()
    }
    floor = Floor(-0.125, "us", None, None, 1, "[somehow]")
    found = Calibration("now", {"name": "[GPU]"}, {}, {"launch_delay_us": floor}, {"null": stages})
    doctor_screen.print_floors(found, {"null_kernel_us": "no CUPTI"})
    doctor_screen.print_stages(found)
    out = capsys.readouterr().out
    assert all(text in out for text in ("[GPU]", "[somehow]", "-0.125", "none: too few", "[call]"))
    assert "not measured: null_kernel_us: no CUPTI" in out
    rows = {line.split("  ")[0].strip(): line for line in out.splitlines()}
    assert ("7-18" in rows["in all"], "4.00" in rows["in all"], "below it" in rows["in all"]) == (True, True, True)
    assert "not measured" in rows["context"]

"""The doctor's command: its output, its options, what it saves and what it removes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes.killed_runs import dead_pid, killed
from support.processes.own_process import environ_of

from launchopt.analysis.verdict.calibration import Calibration, read_calibration
from launchopt.devices.launch_breakdown import Floor
from launchopt.errors import DeviceError
from runner.doctor import __main__ as doctor
from runner.doctor import gpu as doctor_gpu
from runner.doctor import screen as doctor_screen
from runner.ending import outcome

CPU_FLOORS = {
    *("copy_gb_per_s", "read_gb_per_s", "peak_tflops_fp32"),
    *("blas_call_host_us", "clock_read_host_us", "nvtx_range_host_us"),
}


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
    captured = json.loads(capsys.readouterr().out)
    assert (captured["usable"], captured["device"], captured["saved"], captured["removed"]) == (
        True,
        "cpu",
        str(path),
        [],
    )
    assert captured["calibration"] == json.loads(path.read_text())
    assert {check["status"] for check in captured["checks"]} <= {"OK", "warning", "missing"}


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
    captured = capsys.readouterr()
    assert captured.err == f"error: {path}: cannot be written (File exists)\n"
    assert "copy_gb_per_s" in captured.out, "the floors are printed before the file is opened"


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
    assert outcome(lambda: doctor.main(["--device", "cpu"])) == 130
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
    assert all(text in out for text in ("[GPU]", "[somehow]", "-0.125", "too few repeats", "[call]"))
    assert "not measured: null_kernel_us: no CUPTI" in out
    rows = {line.strip().split("  ")[0]: line for line in out.splitlines()}
    assert ("7-18" in rows["in all"], "4.00" in rows["in all"], "below it" in rows["in all"]) == (True, True, True)
    assert "not measured" in rows["context"]

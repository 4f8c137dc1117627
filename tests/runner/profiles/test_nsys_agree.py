"""`python -m runner.nsys_agree` with a stand-in for nsys, and with the real one and a real profile where they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.paths import ROOT
from support.results.nsys_export import PID, Export
from support.results.summary_rows import row

from launchopt.recording import results
from runner.profiles.nsys_agree import main

REAL = ROOT.parent / "shared/data/traces/cloverleaf_a100.nsys.sqlite"

# Knows one of the two names that the report has had; says $KERNELS kernels of 10 ns each.
FAKE_NSYS = """#!/bin/bash
[[ $3 == "$REPORT" ]] || { echo "ERROR: Report '$3' could not be found." >&2; exit 0; }
echo "Processing..."; echo "Time (%),Total Time (ns),Instances,Name"; echo "100.0,$((KERNELS * 10)),$KERNELS,gemv"
"""


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three kernels of 10 ns, two of them in a range of mode=batched; nsys says the same."""
    (tmp_path / "nsys").write_text(FAKE_NSYS)
    (tmp_path / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("REPORT", "cuda_gpu_kern_sum")
    monkeypatch.setenv("KERNELS", "3")
    export = Export(tmp_path / "profile.sqlite")
    export.domain("launchopt")
    export.span("batched 64x1x8192 fp32", 100, 200)
    for correlation, start in enumerate([50, 110, 150]):
        export.call(start, correlation)
        export.kernel(1000 * (correlation + 1), 1000 * (correlation + 1) + 10, correlation, pid=PID)
    return export.close()


def traced(folder: Path, **columns: object) -> Path:
    folder.mkdir()
    one = row(**{"mode": "batched", "kernels": 2, "gpu_busy_ms": 20e-6, **columns})
    results.write_rows(folder / "summary.parquet", results.SUMMARY, [one], {})
    return folder


@pytest.mark.parametrize("name", ["cuda_gpu_kern_sum", "gpukernsum"])
def test_they_agree_whatever_the_report_is_called(
    name: str, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPORT", name)
    output = tmp_path / "agreement.parquet"
    assert main([str(profile), "--run", str(traced(tmp_path / "run")), "--output", str(output)]) == 0
    assert capsys.readouterr().out.count(" yes\n") == 4
    rows = pq.read_table(output).to_pylist()
    assert [(one["what"], one["theirs"], one["ours"], one["agrees"]) for one in rows] == [
        ("kernels", 3, 3, True),
        ("sum of kernel times ms", 30e-6, 30e-6, True),
        ("kernels", 2, 2, True),
        ("GPU busy ms", 20e-6, 20e-6, True),
    ]


def test_another_count_of_nsys_is_a_failure(
    profile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNELS", "4")
    assert main([str(profile)]) == 1
    assert " NO\n" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [{"kernels": 3}, {"gpu_busy_ms": 21e-6}])
def test_another_value_of_cupti_is_a_failure(profile: Path, tmp_path: Path, columns: dict[str, object]) -> None:
    assert main([str(profile), "--run", str(traced(tmp_path / "run", **columns))]) == 1


def test_errors_are_one_line(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    untraced = traced(tmp_path / "run", kernels=None, gpu_busy_ms=None)
    assert main([str(profile), "--run", str(untraced)]) == 2
    assert capsys.readouterr().err.endswith("mode=batched counted no kernels: run it with timing=cupti\n")
    monkeypatch.setenv("REPORT", "neither")
    assert main([str(profile)]) == 2
    assert "nsys stats failed: ERROR: Report 'gpukernsum' could not be found." in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main([str(profile)]) == 2
    assert capsys.readouterr().err.startswith("error: nsys not found")


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (r"1,30,3,gemv", 0, ""),
        (r"1,30,3,g\xc7mv", 0, ""),
        ("1,30," + "9" * 400 + ",gemv", 2, "more than any profile has"),
        ("1,30,3," + "g" * 200_000, 2, "cannot be read as CSV (field larger than field limit (131072))"),
    ],
    ids=["good", "not UTF-8", "huge", "long"],
)
def test_what_nsys_prints_is_read_or_refused(
    line: str, code: int, message: str, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (profile.parent / "lines").write_text(f"Time (%),Total Time (ns),Instances,Name\\n{line}\\n")
    (profile.parent / "nsys").write_text(f'#!/bin/bash\nprintf "%b" "$(cat {profile.parent}/lines)"\n')
    assert main([str(profile)]) == code
    assert message in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
@pytest.mark.skipif(not REAL.exists(), reason="the shared traces are not beside this checkout")
def test_the_real_nsys_on_a_real_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copy(REAL, tmp_path / "profile.sqlite")  # nsys may write beside it
    assert main([str(copy)]) == 0
    assert "1,312" in capsys.readouterr().out

"""scripts/sanitize.sh with a fake compute-sanitizer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT
from support.processes.own_process import environ_of

from launchopt.recording.results import SCHEMA_VERSION

SCRIPT = ROOT / "scripts" / "sanitize.sh"
RUN = """
for word; do
    case $word in hydra.run.dir=*) mkdir -p "${word#*=}" && cp "$0.json" "${word#*=}/manifest.json" ;; esac
done
"""  # the part of the fake tool that writes the manifest of a run
BY_MODE = {"persistent": {"single": 1, "resident": 96}, "megakernel": {"strided": 2, "megakernel": 7}}


def ran(
    tmp_path: Path, script: str | None, *words: str, by_mode: dict[str, dict[str, int]] = BY_MODE
) -> subprocess.CompletedProcess[str]:
    tool = tmp_path / "sanitizer"
    if script is not None:
        tool.write_text(f"#!/bin/sh\n{RUN}{script}\n")
        tool.chmod(0o755)
        runs = [{"mode": mode, "commands_by_strategy": by} for mode, by in by_mode.items()]
        (tmp_path / "sanitizer.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION, "runs": runs}))
    environment = environ_of() | {"SANITIZER": str(tool), "TOOLS": "memcheck racecheck", "PYTHON": sys.executable}
    return subprocess.run(["bash", str(SCRIPT), *words], env=environment, capture_output=True, text=True, check=False)


def test_without_the_tool(tmp_path: Path) -> None:
    done = ran(tmp_path, None)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "scripts/sanitize.sh: no compute-sanitizer: it comes with the CUDA toolkit; name it with SANITIZER=...\n"
    )


def test_a_line_a_job_and_tool(tmp_path: Path) -> None:
    done = ran(tmp_path, 'echo "========= ERROR SUMMARY: 0 errors"; echo "$@" >> "$0.seen"')
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split(",")[0] for line in lines] == ["memcheck", "racecheck"] * 5
    skipped = [line for line in lines if "skipped" in line]
    assert len(skipped) == 1
    assert "fp16" in skipped[0]
    assert [line.partition(": ")[2] for line in lines if line not in skipped] == [
        f"ERROR SUMMARY: 0 errors, {count} commands by the kernel, exit code 0" for count in (96, 96, *[7] * 7)
    ]
    seen = (tmp_path / "sanitizer.seen").read_text()
    for mode in ("persistent", "megakernel"):
        assert f"mode={mode}" in seen
        assert f"--kernel-name kns={mode}" in seen


def test_only_racecheck_runs_the_kernel_for_racecheck(tmp_path: Path) -> None:
    script = 'echo "========= ERROR SUMMARY: 0 errors"; echo "$@" >> "$0.seen"'
    for mode in BY_MODE:
        lines = ran(tmp_path, script, f"mode={mode}").stdout.splitlines()
        seen = (tmp_path / "sanitizer.seen").read_text().splitlines()[-2:]
        for output in lines, seen:
            assert ["mode.racecheck=true" in line for line in output] == [False, mode == "megakernel"]
    lines = ran(tmp_path, script, "mode=megakernel", "mode.racecheck=false").stdout.splitlines()
    assert [line.count("mode.racecheck=") for line in lines] == [1, 1], "what the job says is left as it is"


@pytest.mark.parametrize("script", ['echo "========= ERROR SUMMARY: 3 errors"; exit 9', "exit 0"])
def test_a_finding_or_no_output_is_a_failure(script: str, tmp_path: Path) -> None:
    done = ran(tmp_path, script, "mode=persistent", "workload=decode")
    assert done.returncode == 1
    assert all("mode=persistent workload=decode" in line for line in done.stdout.splitlines())
    assert len(done.stdout.splitlines()) == 2


def test_the_first_finding_is_shown_before_long_output(tmp_path: Path) -> None:
    script = 'echo "========= Error: Race reported at line 7"; seq 1000; echo the end; exit 9'
    done = ran(tmp_path, script, "mode=persistent", "workload=decode")
    assert done.returncode == 1
    assert done.stderr.count("========= Error: Race reported at line 7\n") == 2
    assert done.stderr.count("\nthe end\n") == 2
    assert len(done.stderr.splitlines()) < 100


@pytest.mark.parametrize("by_mode", [{"megakernel": {"single": 96}}, {"baseline": {"single": 9}}, {"megakernel": {}}])
def test_a_run_without_the_kernel_is_a_failure(by_mode: dict[str, dict[str, int]], tmp_path: Path) -> None:
    done = ran(tmp_path, 'echo "========= ERROR SUMMARY: 0 errors"', "mode=megakernel", by_mode=by_mode)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == (
        "memcheck, mode=megakernel: ERROR SUMMARY: 0 errors, 0 commands by the kernel, exit code 0"
    )


def test_another_mode_has_no_kernel_to_count(tmp_path: Path) -> None:
    done = ran(tmp_path, 'echo "========= ERROR SUMMARY: 0 errors"', "mode=baseline")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "memcheck, mode=baseline: ERROR SUMMARY: 0 errors, exit code 0"

"""scripts/launcher_check.sh: its committed logs, and what it says when it cannot run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support.paths import ROOT

SCRIPT = ROOT / "scripts/launcher_check.sh"
LOGS = ROOT / "outputs/reference/launchers"
VERSIONS = {"ray": ("hydra-ray-launcher 1.2.2", "ray 2.60.0"), "slurm": ("submitit 1.5.4", "slurm-wlm 22.05.8")}


def ended(*words: str, **environ: str) -> tuple[int, str]:
    call = ["bash", str(SCRIPT), *words]
    done = subprocess.run(call, env=environ, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("name", VERSIONS)
def test_a_committed_log_names_a_clean_revision_its_versions_and_no_failure(name: str) -> None:
    text = (LOGS / f"{name}.log").read_text()
    assert re.search(r"^launchopt [0-9a-f]{40}, \d{4}-\d\d-\d\d, \d+ cores$", text, re.MULTILINE)
    for each in VERSIONS[name]:
        assert each in text
        assert each.split()[-1] in (ROOT / "docs/launchers.md").read_text()
    assert re.search(r"^=+ \d+ passed(, \d+ deselected)? in ", text, re.MULTILINE)
    assert not re.search(r"FAILED|ERROR|SKIPPED|/(tmp|home|root|work|opt|usr)/", text)


@pytest.mark.parametrize("words", [[], ["sge"]])
def test_another_launcher_is_refused(words: list[str]) -> None:
    assert ended(*words, PATH="/usr/bin:/bin") == (
        2,
        "scripts/launcher_check.sh: give the launcher to check: ray or slurm\n",
    )


def test_an_interpreter_without_the_packages_is_told_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    code, stderr = ended("ray", PATH="/usr/bin:/bin", PYTHON=str(tmp_path / "python"))
    assert code == 2
    assert stderr.endswith("type: pip install -e '.[dev,ray]', or name another one with PYTHON=...\n")

"""Where committed results come from: a clean revision of the history, a known schema; the exceptions only shrink."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from support.results.revisions_listed import CLEAN, LISTED, REVISION, put

from launchopt.errors import DataError
from launchopt.recording.environment import blobs, code_sha1
from launchopt.recording.manifest import SCHEMA_VERSION
from runner.provenance.origins import REVISIONS, faults, read_revisions

REFERENCE = ROOT / "outputs/reference"
UNPROVEN = REFERENCE / "unproven.json"
MOST_UNPROVEN = 12  # lower it with every exception that goes; it never rises
PROVEN_COPY = {"git_revision": REVISION, "git_dirty": None, "code_sha1": "c0de"}


def test_every_committed_result_is_of_a_clean_revision_of_the_history_or_a_listed_exception() -> None:
    """An exception that is repaired or gone must leave the list; a result that is unproven must not be committed."""
    listed = json.loads(UNPROVEN.read_text())
    assert faults(REFERENCE) == listed, "outputs/reference/unproven.json lists other results"
    assert len(listed) == MOST_UNPROVEN


def test_the_list_of_revisions_is_that_of_the_history() -> None:
    revisions = importlib.import_module("scripts.revisions")
    try:
        history = revisions.history_of(ROOT, revisions.named_below(REFERENCE))
    except DataError as error:
        pytest.skip(f"{error}; the committed list stands in for the history")
    listed = read_revisions(REFERENCE)
    assert listed == history, "run: python scripts/revisions.py"


def test_the_hash_of_a_copy_is_that_of_its_revision(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    for name in ("runner/sub/a.py", "launchopt/b.py", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    head = subprocess.check_output(["git", "-C", str(tmp_path), "rev-parse", "HEAD"], text=True).strip()
    (about,) = importlib.import_module("scripts.revisions").history_of(tmp_path, {head[:7]}).values()
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "new").write_text("results are no code")
    assert (about["commit"], about["code_sha1"]) == (1, code_sha1(blobs(tmp_path)))
    (tmp_path / "launchopt" / "b.py").write_text("changed")
    assert code_sha1(blobs(tmp_path)) != about["code_sha1"]


@pytest.mark.parametrize("environment", [CLEAN, PROVEN_COPY, CLEAN | {"git_revision": REVISION[:7]}])
def test_a_clean_result_of_a_listed_revision_has_no_fault(environment: dict[str, Any], tmp_path: Path) -> None:
    put(tmp_path / "run", environment)
    assert faults(tmp_path) == {}


@pytest.mark.parametrize(
    ("environment", "more", "fault"),
    [
        (CLEAN | {"git_dirty": True}, {}, "uncommitted changes"),
        (CLEAN | {"git_dirty": None}, {}, "not known to be clean"),
        (PROVEN_COPY | {"code_sha1": "0ther"}, {}, "not known to be clean"),
        (CLEAN | {"git_revision": "b2" * 20}, {}, f"revision {'b2' * 20} is not in the history"),
        ({}, {}, "no revision; not known to be clean"),
        (CLEAN, {"schema_version": SCHEMA_VERSION + 1}, f"unknown schema {SCHEMA_VERSION + 1}"),
        (CLEAN, {"schema_version": "4"}, "unknown schema '4'"),
    ],
)
def test_a_result_that_proves_nothing_is_refused(
    environment: dict[str, Any], more: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    put(tmp_path / "run", environment, **more)
    assert faults(tmp_path) == {"run": fault}


def test_results_without_a_manifest_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "run", CLEAN)
    for name in ("run/summary.parquet", "loose.parquet"):
        (tmp_path / name).write_bytes(b"")
    assert faults(tmp_path) == {"loose.parquet": "no manifest"}


def test_a_sweep_of_several_revisions_is_refused(tmp_path: Path) -> None:
    other = "b2" * 20
    (tmp_path / "sweep").mkdir()
    put(tmp_path / "sweep" / "0", CLEAN)
    put(tmp_path / "sweep" / "1", CLEAN | {"git_revision": other})
    (tmp_path / "sweep" / REVISIONS).unlink()
    (tmp_path / REVISIONS).write_text(json.dumps(LISTED | {other: LISTED[REVISION]}))
    assert faults(tmp_path) == {"sweep": "jobs of 2 revisions"}

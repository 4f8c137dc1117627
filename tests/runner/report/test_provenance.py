"""Where committed results come from: a clean revision of the history, a known schema; the exceptions only shrink."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

from launchopt.errors import DataError
from launchopt.recording.environment import blobs, code_sha1
from launchopt.recording.manifest import SCHEMA_VERSION
from runner.report import provenance

REFERENCE = ROOT / "outputs/reference"
UNPROVEN = REFERENCE / "unproven.json"
MOST_UNPROVEN = 12  # lower it with every exception that goes; it never rises

REVISION = "a1" * 20
LISTED = {REVISION: {"commit": 7, "date": "2026-01-02", "code_sha1": "c0de"}}
CLEAN = {"git_revision": REVISION, "git_dirty": False}
PROVEN_COPY = {"git_revision": REVISION, "git_dirty": None, "code_sha1": "c0de"}
MACHINE = {"device": {"name": "NVIDIA H200"}}


def put(folder: Path, environment: dict[str, Any], **more: Any) -> Path:
    """A manifest in a folder below one with a list of revisions."""
    (folder.parent / provenance.REVISIONS).write_text(json.dumps(LISTED))
    folder.mkdir(exist_ok=True)
    content = {"schema_version": SCHEMA_VERSION, "started_utc": "2026-01-03T04:05:06+00:00", **MACHINE, **more}
    (folder / "manifest.json").write_text(json.dumps(content | {"environment": environment}))
    return folder


def test_every_committed_result_is_of_a_clean_revision_of_the_history_or_a_listed_exception() -> None:
    """An exception that is repaired or gone must leave the list; a result that is unproven must not be committed."""
    listed = json.loads(UNPROVEN.read_text())
    assert provenance.faults(REFERENCE) == listed, "outputs/reference/unproven.json lists other results"
    assert len(listed) == MOST_UNPROVEN


def test_the_list_of_revisions_is_that_of_the_history() -> None:
    revisions = importlib.import_module("scripts.revisions")
    try:
        history = revisions.history_of(ROOT, revisions.named_below(REFERENCE))
    except DataError as error:
        pytest.skip(f"{error}; the committed list stands in for the history")
    listed = provenance.read_revisions(REFERENCE)
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
    assert provenance.faults(tmp_path) == {}


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
    assert provenance.faults(tmp_path) == {"run": fault}


def test_results_without_a_manifest_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "run", CLEAN)
    for name in ("run/summary.parquet", "loose.parquet"):
        (tmp_path / name).write_bytes(b"")
    assert provenance.faults(tmp_path) == {"loose.parquet": "no manifest"}


def test_a_sweep_of_several_revisions_is_refused(tmp_path: Path) -> None:
    other = "b2" * 20
    (tmp_path / "sweep").mkdir()
    put(tmp_path / "sweep" / "0", CLEAN)
    put(tmp_path / "sweep" / "1", CLEAN | {"git_revision": other})
    (tmp_path / "sweep" / provenance.REVISIONS).unlink()
    (tmp_path / provenance.REVISIONS).write_text(json.dumps(LISTED | {other: LISTED[REVISION]}))
    assert provenance.faults(tmp_path) == {"sweep": "jobs of 2 revisions"}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (CLEAN, "2026-01-03, revision a1a1a1a (commit 7)"),
        (CLEAN | {"git_dirty": True}, "2026-01-03, revision a1a1a1a (commit 7) with uncommitted changes"),
        (CLEAN | {"git_dirty": None}, "2026-01-03, revision a1a1a1a (commit 7), not known to be clean"),
        (CLEAN | {"git_revision": "b2" * 20}, "2026-01-03, revision b2b2b2b (not in the history)"),
        ({}, "2026-01-03, unknown revision"),
    ],
)
def test_a_page_says_gpu_date_revision_and_place_in_the_history(
    environment: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert provenance.line([put(tmp_path / "run", environment)]) == f"Measured on NVIDIA H200: {said}.\n"


def test_a_result_without_a_date_is_of_the_day_of_its_revision_or_later(tmp_path: Path) -> None:
    run = put(tmp_path / "run", CLEAN, started_utc=None)
    assert provenance.line([run]) == "Measured on NVIDIA H200: 2026-01-02 or later, revision a1a1a1a (commit 7).\n"


def test_a_file_of_a_report_has_the_origins_of_the_folders_it_names(tmp_path: Path) -> None:
    put(tmp_path / "one", CLEAN)
    put(tmp_path / "two", {}, device={"name": "AMD EPYC"})
    put(tmp_path / "three", {}, device={"name": "not named"})
    goals = tmp_path / "goals.json"
    goals.write_text(json.dumps({"goals": [{"run": "one", "over": "two"}]}))
    said = "Measured on NVIDIA H200: 2026-01-03, revision a1a1a1a (commit 7). AMD EPYC: 2026-01-03, unknown revision.\n"
    assert provenance.line([goals]) == said


def test_a_table_of_results_has_the_origin_of_the_manifest_beside_it(tmp_path: Path) -> None:
    run = put(tmp_path / "run", CLEAN)
    (run / "summary.parquet").write_bytes(b"PAR1\xca\xfe")
    assert provenance.line([run / "summary.parquet"]) == provenance.line([run])
    (tmp_path / "alone.parquet").write_bytes(b"PAR1")
    assert provenance.line([tmp_path / "alone.parquet"]) == f"{provenance.NOT_RECORDED}\n"


def test_a_short_sentence_has_the_first_and_last_day_and_counts_revisions_and_clean_runs(tmp_path: Path) -> None:
    put(tmp_path / "one", CLEAN)
    put(tmp_path / "two", CLEAN | {"git_revision": REVISION[:7], "git_dirty": True})
    put(tmp_path / "three", CLEAN | {"git_revision": "b2" * 20}, started_utc="2026-01-01T00:00:00+00:00")
    goals = tmp_path / "goals.json"
    goals.write_text(json.dumps({"goals": [{"run": "one", "over": "two"}, {"run": "three"}]}))
    summed = "2026-01-01 to 2026-01-03, 2 revisions (commit 7); 2 of 3 results cannot be traced to a clean revision"
    assert provenance.short_line(goals) == f"Measured on NVIDIA H200: {summed}.\n"
    assert provenance.line([goals]) == f"Measured on NVIDIA H200: {summed}.\n"
    goals.write_text(json.dumps({"goals": [{"run": "two"}]}))
    summed = "2026-01-03, one revision (commit 7); 1 of 1 results cannot be traced to a clean revision"
    assert provenance.short_line(goals) == f"Measured on NVIDIA H200: {summed}.\n"
    goals.write_text(json.dumps({"goals": [{"run": "one"}]}))
    said = "Measured on NVIDIA H200: 2026-01-03, revision a1a1a1a (commit 7).\n"
    assert provenance.short_line(goals) == provenance.line([goals]) == said


def test_a_page_says_that_parts_ran_side_by_side(tmp_path: Path) -> None:
    put(tmp_path / "alone", CLEAN, part={"before": {}})
    put(tmp_path / "beside", CLEAN, part={"before": {"at_once": 4}})
    said = "Measured on NVIDIA H200: 2026-01-03, revision a1a1a1a (commit 7)."
    assert provenance.line([tmp_path / "alone"]) == f"{said}\n"
    for each in provenance.line([tmp_path]), provenance.short_line(tmp_path):
        assert each == f"{said} Up to 4 parts ran at a time, each with GPUs and cores of its own.\n"


def test_profiles_have_their_note_and_others_say_that_nothing_was_recorded(tmp_path: Path) -> None:
    assert provenance.line([tmp_path]) == f"{provenance.NOT_RECORDED}\n"
    (tmp_path / provenance.NOTE).write_text("Nsight Compute,\none NVIDIA H200\n")
    assert provenance.line([tmp_path]) == "Nsight Compute, one NVIDIA H200\n"


def test_a_result_is_stale_if_the_nearest_list_says_so_of_its_revision_and_folder(tmp_path: Path) -> None:
    one, two = put(tmp_path / "one", CLEAN), put(tmp_path / "two", CLEAN)
    about = "Measured on NVIDIA H200: 2026-01-03, revision a1a1a1a (commit 7)."
    assert provenance.line([tmp_path]) == f"{about}\n"
    found = {REVISION: {"one": ["launchopt/queue"], "tw": ["never"]}, "b2" * 20: {"two": ["never"]}}
    (tmp_path / provenance.STALE).write_text(json.dumps(found))
    assert provenance.line([one]) == f"{about} *Stale*: `launchopt/queue` has changed since.\n"
    assert provenance.line([two]) == f"{about}\n"
    assert provenance.line([one, two]) == f"{about} *Stale* (1 of 2 results): `launchopt/queue` has changed since.\n"
    found[REVISION]["two"] = ["a", "b", "c"]
    (tmp_path / provenance.STALE).write_text(json.dumps(found))
    assert provenance.line([two]) == f"{about} *Stale*: `a`, `b` and 1 more path have changed since.\n"
    (tmp_path / "goals.json").write_text(json.dumps({"goals": [{"run": "two"}]}))
    assert provenance.short_line(tmp_path / "goals.json") == provenance.line([two])


@pytest.mark.parametrize("text", ["[1]", "{", json.dumps({REVISION: ["one"]}), json.dumps({REVISION: {"one": 7}})])
def test_a_list_of_stale_results_of_another_form_is_named(text: str, tmp_path: Path) -> None:
    folder = put(tmp_path / "one", CLEAN)
    (tmp_path / provenance.STALE).write_text(text)
    with pytest.raises(DataError, match=r"stale\.json: "):
        provenance.line([folder])


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    (put(tmp_path / "run", CLEAN) / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match=r"manifest\.json.*not a manifest"):
        provenance.line([tmp_path / "run"])


@pytest.mark.parametrize(
    "text", ["[1]", "{", json.dumps({REVISION: 7}), json.dumps({REVISION: {"commit": "7", "date": "2026-01-02"}})]
)
def test_a_list_of_revisions_of_another_form_is_named(text: str, tmp_path: Path) -> None:
    folder = put(tmp_path / "run", CLEAN)
    assert "commit 7" in provenance.line([folder])
    (tmp_path / provenance.REVISIONS).write_text(text)
    with pytest.raises(DataError, match=r"revisions\.json: "):
        provenance.line([folder])


def test_every_table_of_every_page_says_where_it_comes_from() -> None:
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *REFERENCE.glob("*.md")]:
        for block in page.read_text(encoding="utf-8").split("<!-- report:")[1:]:
            last = block.split("<!-- /report:")[0].rstrip().rpartition("\n\n")[2]
            assert "revision" in last, f"{page.name}: {block.splitlines()[0]}"

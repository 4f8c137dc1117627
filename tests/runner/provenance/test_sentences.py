"""The sentence on where the results of a page come from, and on code that has changed since."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from support.results.revisions_listed import CLEAN, REVISION, put

from launchopt.errors import DataError
from runner.provenance.origins import REVISIONS
from runner.provenance.sentences import NAMING, NOT_RECORDED, NOTE, STALE, line, short_line
from runner.report.blocks import FILES

REFERENCE = ROOT / "outputs/reference"


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
    assert line([put(tmp_path / "run", environment)]) == f"Measured on NVIDIA H200: {said}.\n"


def test_a_result_without_a_date_is_of_the_day_of_its_revision_or_later(tmp_path: Path) -> None:
    run = put(tmp_path / "run", CLEAN, started_utc=None)
    assert line([run]) == "Measured on NVIDIA H200: 2026-01-02 or later, revision a1a1a1a (commit 7).\n"


def test_a_file_of_a_report_has_the_origins_of_the_folders_it_names(tmp_path: Path) -> None:
    put(tmp_path / "one", CLEAN)
    put(tmp_path / "two", {}, device={"name": "AMD EPYC"})
    put(tmp_path / "three", {}, device={"name": "not named"})
    goals = tmp_path / "goals.json"
    goals.write_text(json.dumps({"goals": [{"run": "one", "over": "two"}]}))
    said = "Measured on NVIDIA H200: 2026-01-03, revision a1a1a1a (commit 7). AMD EPYC: 2026-01-03, unknown revision.\n"
    assert line([goals]) == said


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("several_gpus.json", {"rows": [{"one": ["clean"], "several": ["clean", "dirty"]}]}),
        ("step_goals.json", {"goals": [{"run": "clean", "peers": ["dirty"]}]}),
    ],
)
def test_runs_on_several_gpus_and_of_peers_have_origins_too(name: str, content: object, tmp_path: Path) -> None:
    put(tmp_path / "clean", CLEAN)
    put(tmp_path / "dirty", CLEAN | {"git_dirty": True})
    (tmp_path / name).write_text(json.dumps(content))
    assert "with uncommitted changes" in line([tmp_path / name])


def naming_keys(content: object, folder: Path) -> Iterator[str]:
    """Yield the keys of a file of a report whose value, or a part of it, is a folder or file below its own folder."""
    if isinstance(content, list):
        for each in content:
            yield from naming_keys(each, folder)
    elif isinstance(content, dict):
        for key, value in content.items():
            named = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str) and each]
            if any((folder / each).exists() for each in named):
                yield key
            yield from naming_keys(value, folder)


def test_each_key_of_a_committed_report_that_names_results_is_known() -> None:
    paths = [path for name in FILES for path in REFERENCE.rglob(name)]
    found = {key for path in paths for key in naming_keys(json.loads(path.read_text()), path.parent)}
    assert found == set(NAMING)


def test_a_table_of_results_has_the_origin_of_the_manifest_beside_it(tmp_path: Path) -> None:
    run = put(tmp_path / "run", CLEAN)
    (run / "summary.parquet").write_bytes(b"PAR1\xca\xfe")
    assert line([run / "summary.parquet"]) == line([run])
    (tmp_path / "alone.parquet").write_bytes(b"PAR1")
    assert line([tmp_path / "alone.parquet"]) == f"{NOT_RECORDED}\n"


def test_a_short_sentence_has_the_first_and_last_day_and_counts_revisions_and_clean_runs(tmp_path: Path) -> None:
    put(tmp_path / "one", CLEAN)
    put(tmp_path / "two", CLEAN | {"git_revision": REVISION[:7], "git_dirty": True})
    put(tmp_path / "three", CLEAN | {"git_revision": "b2" * 20}, started_utc="2026-01-01T00:00:00+00:00")
    goals = tmp_path / "goals.json"
    goals.write_text(json.dumps({"goals": [{"run": "one", "over": "two"}, {"run": "three"}]}))
    summed = "2026-01-01 to 2026-01-03, 2 revisions (commit 7); 2 of 3 results cannot be traced to a clean revision"
    assert short_line(goals) == f"Measured on NVIDIA H200: {summed}.\n"
    assert line([goals]) == f"Measured on NVIDIA H200: {summed}.\n"
    goals.write_text(json.dumps({"goals": [{"run": "two"}]}))
    summed = "2026-01-03, one revision (commit 7); 1 of 1 results cannot be traced to a clean revision"
    assert short_line(goals) == f"Measured on NVIDIA H200: {summed}.\n"
    goals.write_text(json.dumps({"goals": [{"run": "one"}]}))
    said = "Measured on NVIDIA H200: 2026-01-03, revision a1a1a1a (commit 7).\n"
    assert short_line(goals) == line([goals]) == said


def test_a_page_says_that_parts_ran_side_by_side(tmp_path: Path) -> None:
    put(tmp_path / "alone", CLEAN, part={"before": {}})
    put(tmp_path / "beside", CLEAN, part={"before": {"at_once": 4}})
    said = "Measured on NVIDIA H200: 2026-01-03, revision a1a1a1a (commit 7)."
    assert line([tmp_path / "alone"]) == f"{said}\n"
    for each in line([tmp_path]), short_line(tmp_path):
        assert each == f"{said} Up to 4 parts ran at a time, each with GPUs and cores of its own.\n"


def test_profiles_have_their_note_and_others_say_that_nothing_was_recorded(tmp_path: Path) -> None:
    assert line([tmp_path]) == f"{NOT_RECORDED}\n"
    (tmp_path / NOTE).write_text("Nsight Compute,\none NVIDIA H200\n")
    assert line([tmp_path]) == "Nsight Compute, one NVIDIA H200\n"


def test_a_result_is_stale_if_the_nearest_list_says_so_of_its_revision_and_folder(tmp_path: Path) -> None:
    one, two = put(tmp_path / "one", CLEAN), put(tmp_path / "two", CLEAN)
    about = "Measured on NVIDIA H200: 2026-01-03, revision a1a1a1a (commit 7)."
    assert line([tmp_path]) == f"{about}\n"
    found = {REVISION: {"one": ["launchopt/queue"], "tw": ["never"]}, "b2" * 20: {"two": ["never"]}}
    (tmp_path / STALE).write_text(json.dumps(found))
    assert line([one]) == f"{about} *Stale*: `launchopt/queue` has changed since.\n"
    assert line([two]) == f"{about}\n"
    assert line([one, two]) == f"{about} *Stale* (1 of 2 results): `launchopt/queue` has changed since.\n"
    found[REVISION]["two"] = ["a", "b", "c"]
    (tmp_path / STALE).write_text(json.dumps(found))
    assert line([two]) == f"{about} *Stale*: `a`, `b` and 1 more path have changed since.\n"
    (tmp_path / "goals.json").write_text(json.dumps({"goals": [{"run": "two"}]}))
    assert short_line(tmp_path / "goals.json") == line([two])


@pytest.mark.parametrize("text", ["[1]", "{", json.dumps({REVISION: ["one"]}), json.dumps({REVISION: {"one": 7}})])
def test_a_list_of_stale_results_of_another_form_is_named(text: str, tmp_path: Path) -> None:
    folder = put(tmp_path / "one", CLEAN)
    (tmp_path / STALE).write_text(text)
    with pytest.raises(DataError, match=r"stale\.json: "):
        line([folder])


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    (put(tmp_path / "run", CLEAN) / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match=r"manifest\.json.*not a manifest"):
        line([tmp_path / "run"])


@pytest.mark.parametrize(
    "text", ["[1]", "{", json.dumps({REVISION: 7}), json.dumps({REVISION: {"commit": "7", "date": "2026-01-02"}})]
)
def test_a_list_of_revisions_of_another_form_is_named(text: str, tmp_path: Path) -> None:
    folder = put(tmp_path / "run", CLEAN)
    assert "commit 7" in line([folder])
    (tmp_path / REVISIONS).write_text(text)
    with pytest.raises(DataError, match=r"revisions\.json: "):
        line([folder])


def test_every_table_of_every_page_says_where_it_comes_from() -> None:
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *REFERENCE.glob("*.md")]:
        for block in page.read_text(encoding="utf-8").split("<!-- report:")[1:]:
            last = block.split("<!-- /report:")[0].rstrip().rpartition("\n\n")[2]
            assert "revision" in last, f"{page.name}: {block.splitlines()[0]}"

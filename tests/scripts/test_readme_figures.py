"""scripts/readme_figures.py: results of one clean revision and one GPU become the README's table and picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from support.results.summary_rows import DECODE, repeats, write

from launchopt.recording.manifest import SCHEMA_VERSION
from runner.report.which_strategy import NO_BREAK
from scripts import readme_figures
from scripts.reference_parts import README_PARTS

REVISION = "a1" * 20
GPU = "NVIDIA H100 80GB HBM3"
WALLS = {"baseline": 80.0, "coalesced": 40.0, "graph": 20.0, "pdl": 25.0, "fused_qkv": 30.0, "batched": 50.0}
WALLS |= {"megakernel": 10.0, "engine": 35.0}
REQUESTS = {name: requests for name, (requests, _) in readme_figures.RUNS.items()}
Change = Callable[[str, dict[str, Any]], None]


def measured(folder: Path, change: Change = lambda name, manifest: None) -> Path:
    """Write what reference.py leaves on a GPU; `change` alters a manifest."""
    for part in README_PARTS:
        name = part.folder.partition("/")[2]
        stream = {**DECODE, "requests": REQUESTS[name], "tokens": 64 * REQUESTS[name], "ordering": "per_request"}
        rows = [
            line
            for mode, wall in WALLS.items()
            for line in repeats(*(wall + step for step in (0, 0.1, 0.2, 0.3, 0.4)), mode=mode, run_id=name, **stream)
        ]
        place = write(folder / part.folder, [{**line, "gpu": GPU} for line in rows])
        (place / "histograms.parquet").write_bytes(b"")
        manifest: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "run_id": name,
            "started_utc": "2026-11-27T01:02:03+00:00",
            "overrides": [],
            "environment": {"git_revision": REVISION, "git_dirty": False, "device": {"name": GPU}},
            "part": {"commands": [*part.commands], "exit_code": 0},
        }
        change(name, manifest)
        (place / "manifest.json").write_text(json.dumps(manifest))
    return folder / "readme"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "checkout"
    for page in readme_figures.PAGES:
        (root / page).parent.mkdir(parents=True, exist_ok=True)
        older = (ROOT / page).read_text().replace("outputs/reference/readme/", "outputs/reference/h200/")
        # the headline may be that of whole models, which stays
        (root / page).write_text(older.replace("reference/goals/advice.json", "reference/h200/advice.json"))
    (root / "outputs/reference/h200").mkdir(parents=True)
    for name in ("goals", "waterfall"):
        (root / "outputs/reference" / name).symlink_to(ROOT / "outputs/reference" / name)
    (root / "outputs/reference/h200/decode.svg").touch()
    known = {REVISION: {"commit": 500, "date": "2026-11-27", "code_sha1": "c0de"}}
    monkeypatch.setattr(readme_figures.revisions, "history_of", lambda root, named: known)
    return root


def test_table_and_picture_come_from_the_results(checkout: Path, tmp_path: Path) -> None:
    assert readme_figures.main([str(measured(tmp_path / "new"))], checkout) == 0
    readme = (checkout / "README.md").read_text().replace(NO_BREAK, " ")
    assert "<!-- report:outputs/reference/readme/advice.json -->" in readme
    assert "megakernel 1.98x over graph" in readme
    assert f"Measured on {GPU}: 2026-11-27, revision a1a1a1a (commit 500)." in readme
    assert f"on an {GPU}](outputs/reference/readme/decode.svg)" in readme
    assert "<svg" in (checkout / "outputs/reference/readme/decode.svg").read_text()
    assert [path.parent.name for path in checkout.rglob("decode.svg")] == ["readme"]
    page = (checkout / "docs/which-strategy.md").read_text()
    assert "h200/which_strategy.json" not in page
    assert "- 4 and 64 requests: no run has" in page
    assert not list((checkout / "outputs/reference").glob(".*"))
    kept = {path.name for path in (checkout / "outputs/reference/readme/qkv_1").iterdir()}
    assert kept == {"manifest.json", "summary.parquet"}, "no page reads histograms"
    readme_figures.main([str(tmp_path / "new/readme")], checkout)
    assert (checkout / "README.md").read_text().replace(NO_BREAK, " ") == readme


def other_revision(name: str, manifest: dict[str, Any]) -> None:
    if name == "qkv_1":
        manifest["environment"]["git_revision"] = "b2" * 20


def other_gpu(name: str, manifest: dict[str, Any]) -> None:
    if name == "qkv_1":
        manifest["environment"]["device"]["name"] = "NVIDIA H200"


def dirty(name: str, manifest: dict[str, Any]) -> None:
    manifest["environment"]["git_dirty"] = True


def failed(name: str, manifest: dict[str, Any]) -> None:
    manifest["part"]["exit_code"] = None


def another_command(name: str, manifest: dict[str, Any]) -> None:
    manifest["part"]["commands"] = ["python -m runner mode=batched"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_revision, "results of 2 revisions"),
        (other_gpu, f"results of 2 machines ({GPU}, NVIDIA H200)"),
        (dirty, "uncommitted changes"),
        (failed, "not measured by this script: reference.py --only readme/decode_1"),
        (another_command, "not measured by this script"),
    ],
)
def test_other_results_are_refused_and_change_nothing(
    change: Change, said: str, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    assert readme_figures.main([str(measured(tmp_path / "new", change))], checkout) == 2
    assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before


def test_missing_results_are_named_with_the_command(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert readme_figures.main([str(tmp_path / "new/readme")], checkout) == 2
    assert "readme/decode_1: no results: run `python scripts/reference.py --only readme`" in capsys.readouterr().err


def test_a_folder_of_another_name_is_checked_itself(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(tmp_path / "new")
    other = measured(tmp_path / "others", failed).rename(tmp_path / "new/other")
    assert readme_figures.main([str(other)], checkout) == 2
    assert "other/decode_1: not measured by this script" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("manifest.json", '{"par'),
        ("manifest.json", "[]"),
        ("manifest.json", '{"part": 4}'),
        ("summary.parquet", "PAR1"),
    ],
)
def test_broken_results_change_nothing(
    name: str, content: str, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    new = measured(tmp_path / "new")
    (new / "qkv_1" / name).write_text(content)
    assert readme_figures.main([str(new)], checkout) == 2
    assert "qkv_1" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before


def test_every_gain_of_the_advice_has_a_run_and_every_part_a_place() -> None:
    assert [part.folder for part in README_PARTS] == [f"readme/{name}" for name in readme_figures.RUNS]
    assert {each["requests"] for each in readme_figures.ADVICE} == {*REQUESTS.values()}

"""scripts/revisions.py: the list is written from a history that has the revisions, and stays otherwise."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from scripts import revisions

WHO = ("-c", "user.name=a", "-c", "user.email=a@b")
OLD = '{"older": "list"}'


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *WHO, *words], check=True, capture_output=True, text=True).stdout


def result(root: Path, name: str, revision: str) -> None:
    place = root / revisions.REFERENCE / name
    place.mkdir(parents=True)
    (place / "manifest.json").write_text(json.dumps({"environment": {"git_revision": revision}}))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init")
    (root / "pyproject.toml").write_text("code")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    result(root, "a", git(root, "rev-parse", "HEAD").strip())
    (root / revisions.REFERENCE / "revisions.json").write_text(OLD)
    return root


def listed(root: Path) -> str:
    return (root / revisions.REFERENCE / "revisions.json").read_text()


def test_a_revision_that_is_not_in_the_history_is_named(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = "b2" * 20
    result(checkout, "b", other)
    assert revisions.main([], checkout) == 0
    assert capsys.readouterr().out == f"left out, not in the history: {other}\n"
    assert list(json.loads(listed(checkout))) == [git(checkout, "rev-parse", "HEAD").strip()]


def refused(root: Path, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = listed(root)
    assert revisions.main([], root) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert listed(root) == before


def test_without_the_history_the_list_stays(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git(checkout, "add", "-f", ".")
    git(checkout, "commit", "-m", "second")
    git(tmp_path, "clone", "--depth", "1", checkout.as_uri(), "shallow")
    refused(tmp_path / "shallow", "run `git fetch --unshallow`", capsys)
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(checkout, "git is not installed", capsys)


def test_of_another_repository_the_list_stays(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    within = checkout / "within"
    result(within, "a", "c3" * 20)
    (within / revisions.REFERENCE / "revisions.json").write_text(OLD)
    refused(within, "no checkout with commits", capsys)


def test_of_an_empty_or_another_history_the_list_stays(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / ".git").rename(checkout.parent / "away")
    refused(checkout, "no checkout with commits", capsys)
    git(checkout, "init")
    refused(checkout, "no checkout with commits", capsys)
    git(checkout, "commit", "--allow-empty", "-m", "other")
    refused(checkout, "its history has none of the revisions of the results", capsys)


def test_results_that_are_none_or_broken_are_named(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = checkout / revisions.REFERENCE / "a/manifest.json"
    for content in ("", "[]", '{"environment": 3}'):
        manifest.write_text(content)
        refused(checkout, "not a manifest", capsys)
    manifest.unlink()
    refused(checkout, "no results that name a revision", capsys)

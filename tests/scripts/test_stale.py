"""scripts/stale.py: results that are older than a change to their code are marked, and only a release is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.paths import ROOT

from launchopt.recording.environment import blobs
from runner.provenance.origins import CARRIERS
from runner.provenance.sentences import STALE, line
from scripts import reference_paths, stale
from scripts.reference_parts import PARTS

REFERENCE = ROOT / "outputs/reference"
REVISION = "a1" * 20


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two results of a revision, and a page that shows one."""
    for name in ("launchopt/queue/ring.py", "launchopt/devices/peers/peers.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    for name in ("goals/one", "gpu/bench/collectives"):
        place = tmp_path / stale.REFERENCE / name
        place.mkdir(parents=True)
        about = {"git_revision": REVISION[:9], "git_dirty": False}
        (place / "manifest.json").write_text(json.dumps({"schema_version": 4, "environment": about}))
    known = {"commit": 7, "date": "2026-01-02", "code_sha1": "c0de"}
    known["paths"] = reference_paths.path_hashes(blobs(tmp_path))
    (tmp_path / stale.REFERENCE / "revisions.json").write_text(json.dumps({REVISION: known}))
    return tmp_path


def found(root: Path) -> dict[str, dict[str, list[str]]]:
    loaded: dict[str, dict[str, list[str]]] = json.loads((root / stale.REFERENCE / STALE).read_text())
    return loaded


def test_a_change_makes_stale_what_depends_on_it(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stale.main([], checkout) == stale.main(["--check"], checkout) == 0
    assert found(checkout) == {}
    (checkout / "launchopt/queue/waiter.py").write_text("new")
    (checkout / "launchopt/report.py").write_text("no result depends on it")
    assert stale.main(["--check"], checkout) == 1
    said = capsys.readouterr().out
    assert "stale: goals of revision a1a1a1a: launchopt/queue\n" in said
    assert "stale.json is not today's: run python scripts/stale.py" in said
    assert stale.main([], checkout) == 0
    assert found(checkout) == {REVISION: {"goals": ["launchopt/queue"]}}
    assert stale.main(["--check"], checkout) == 1, "a mark is no excuse"


def test_a_fresh_kind_within_a_stale_one_has_no_mark(checkout: Path) -> None:
    for name in ("gpu/strategies/layer", "gpu/trace_bert"):
        folder = checkout / stale.REFERENCE / name
        folder.mkdir(parents=True)
        shutil.copy(checkout / stale.REFERENCE / "goals/one/manifest.json", folder)
    (checkout / "launchopt/modes").mkdir()
    (checkout / "launchopt/modes/torch_graph.py").write_text("of gpu/strategies, not of gpu/trace_bert")
    stale.main([], checkout)
    kinds = found(checkout)[REVISION]
    assert (kinds["gpu"], kinds["gpu/trace_bert"]) == (["launchopt/modes/torch_"], [])
    for name, is_stale in (("strategies/layer", True), ("trace_bert", False)):
        assert ("*Stale*" in line([checkout / stale.REFERENCE / "gpu" / name])) is is_stale


def test_a_revision_without_hashes_is_older_than_all_of_its_code(checkout: Path) -> None:
    (checkout / stale.REFERENCE / "revisions.json").write_text("{}")
    stale.main([], checkout)
    queue, peers = ["launchopt/queue"], ["launchopt/devices/peers"]
    assert found(checkout) == {REVISION[:9]: {"goals": queue, "gpu/bench/collectives": peers}}


@pytest.mark.parametrize("content", [None, b"", b'{"a', b"[]", b"\xff\xfe"])
def test_a_list_that_is_missing_or_broken_is_named_and_written_again(
    content: bytes | None, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marked = checkout / stale.REFERENCE / STALE
    if content is not None:
        marked.write_bytes(content)
    assert stale.main(["--check"], checkout) == (1 if content is None else 2)
    said = capsys.readouterr()
    assert "stale.json" in said.out + said.err
    assert stale.main([], checkout) == 0
    assert found(checkout) == {}


@pytest.mark.parametrize("words", [[], ["--check"]])
def test_foreign_results_and_unreadable_pages_are_named_and_change_nothing(
    words: list[str], checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = checkout / stale.REFERENCE / "foreign"
    shutil.copytree(checkout / stale.REFERENCE / "goals/one", foreign)
    assert stale.main(words, checkout) == 2
    assert "foreign: scripts/reference_paths.py does not list" in capsys.readouterr().err
    shutil.rmtree(foreign)
    for content in (b"\xff\xfe", b"<!-- report:nothing -->"):
        (checkout / "README.md").write_bytes(content)
        assert stale.main(words, checkout) == 2
        assert "README.md" in capsys.readouterr().err
        assert not (checkout / stale.REFERENCE / STALE).exists()


def test_hashes_of_another_type_are_named(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = {REVISION: {"commit": 7, "date": "2026-01-02", "code_sha1": "c0de", "paths": [1]}}
    (checkout / stale.REFERENCE / "revisions.json").write_text(json.dumps(known))
    assert stale.main([], checkout) == 2
    assert "run python scripts/revisions.py" in capsys.readouterr().err


def test_every_part_and_every_committed_result_has_a_list_of_code() -> None:
    committed = [path.parent for name in CARRIERS for path in REFERENCE.rglob(name)]
    folders = [*(part.folder for part in PARTS), *(each.relative_to(REFERENCE).as_posix() for each in committed)]
    assert {reference_paths.kind_of(folder) for folder in folders} == set(reference_paths.DEPENDS)
    with pytest.raises(KeyError, match="does not list the code"):
        reference_paths.kind_of("gpu_other")


def test_every_mode_and_all_of_the_producer_but_its_judgement_are_listed() -> None:
    files = [path for folder in ("modes", "producing") for path in (ROOT / "launchopt" / folder).glob("*.py")]
    names = [path.relative_to(ROOT).as_posix() for path in files if path.stat().st_size > 0]
    listed = tuple({*reference_paths.ALL_MODES, "launchopt/producing/__init__"})
    assert [name for name in names if not name.startswith(listed)] == ["launchopt/producing/overload.py"]


def test_every_listed_path_is_there() -> None:
    assert set(reference_paths.path_hashes(blobs(ROOT))) == set(reference_paths.ALL_PATHS)

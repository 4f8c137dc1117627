"""What is written, and who may read and write it: results, and the shared memory between our processes."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.paths import TESTS

from launchopt.analysis.verdict.calibration import read_calibration, write_calibration
from launchopt.errors import ConfigError
from launchopt.queue.ring import Ring
from launchopt.recording import results

Write = Callable[[Path], Path]
CORPUS = TESTS / "corpus"


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.skipif(sys.platform != "linux", reason="segments are files on Linux")
def test_shared_memory_is_for_its_owner_under_a_name_that_cannot_be_guessed() -> None:
    os.umask(0)
    with Ring.create(16) as ring, Ring.create(16) as other:
        names = [ring.name.lstrip("/"), other.name.lstrip("/")]
        for name in names:
            assert re.fullmatch(rf"launchopt_{os.getpid()}_[0-9a-f]{{12,}}", name)
            about = Path("/dev/shm", name).stat()
            assert stat.S_IMODE(about.st_mode) == 0o600
            assert about.st_uid == os.getuid()
        assert names[0] != names[1]


def test_a_planted_segment_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who knows the name beforehand gains nothing: a segment that is there is not opened."""
    monkeypatch.setattr("secrets.token_hex", lambda _: "0" * 12)
    with Ring.create(16), pytest.raises((FileExistsError, ConfigError), match="File exists"):
        Ring.create(16)


def _write_manifest(folder: Path) -> Path:
    results.write_manifest(folder, {"status": "ok"})
    return folder / "manifest.json"


def _write_summary(folder: Path) -> Path:
    path = folder / "summary.parquet"
    results.write_rows(path, results.SUMMARY, results.read_summaries([CORPUS / "summary.parquet"]), {})
    return path


def _write_calibration(folder: Path) -> Path:
    path = folder / "calibration.json"
    write_calibration(path, read_calibration(CORPUS / "calibration.json"))
    return path


WRITERS = [_write_manifest, _write_summary, _write_calibration]


@pytest.mark.parametrize("write", WRITERS)
def test_files_are_writable_by_their_owner_alone(write: Write, tmp_path: Path) -> None:
    assert stat.S_IMODE(write(tmp_path).stat().st_mode) & 0o022 == 0


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(
    write: Write, dangling: bool, tmp_path: Path
) -> None:
    treasure, folder = tmp_path / "treasure", tmp_path / "run"
    folder.mkdir()
    if not dangling:
        treasure.write_text("gold")
    name = {_write_manifest: "manifest.json", _write_summary: "summary.parquet"}.get(write, "calibration.json")
    (folder / name).symlink_to(treasure)
    path = write(folder)
    assert path.is_file()
    assert not path.is_symlink()
    assert (treasure.read_text() == "gold") if not dangling else not treasure.exists()
    assert [each.name for each in folder.iterdir()] == [name]

"""Pictures of groups of results are made again when a part of the group is new, and no others."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from support.paths import ROOT
from support.results.browser import needs_browser

from scripts import reference_pictures
from scripts.reference_parts import PARTS

COMMITTED = ROOT / "outputs/reference"


def test_a_group_with_a_new_part_has_a_new_picture_and_page_and_no_other_group_has(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    folder = "gpu/timeout_bucket/1800000"
    shutil.copytree(COMMITTED / folder, tmp_path / folder)
    made = reference_pictures.refresh(tmp_path, [folder, "goals/loop"])
    assert made == [tmp_path / "gpu/frontier.svg"]
    assert "1,800,000/s" in made[0].read_text()
    page = (tmp_path / "gpu/timeout_bucket/frontier.md").read_text()
    assert "\n## gemv_micro fp32, 200,000 commands, poisson 1,800,000/s\n" in page
    assert {path.name for path in (tmp_path / "gpu").iterdir()} == {"timeout_bucket", "frontier.svg"}


@pytest.mark.parametrize("group", reference_pictures.GROUPS)
def test_a_group_has_parts_and_a_committed_picture(group: str) -> None:
    assert any(part.folder.startswith(f"{group}/") for part in PARTS)
    assert (COMMITTED / reference_pictures.GROUPS[group][0]).is_file()


@needs_browser
def test_the_top_of_the_html_page_is_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / reference_pictures.SCREENSHOT
    reference_pictures.screenshot(COMMITTED / "readme/qkv_1", picture)
    assert picture.read_bytes()[16:24] == struct.pack(">II", *reference_pictures.SIZE), "width and height of a PNG"


def test_without_chromium_the_picture_stays_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference_pictures, "CHROMIUM", ("no-such-browser",))
    picture = tmp_path / reference_pictures.SCREENSHOT
    picture.write_bytes(b"as before")
    reference_pictures.screenshot(COMMITTED / "readme/qkv_1", picture)
    assert picture.read_bytes() == b"as before"
    assert "no Chromium on the PATH" in "".join(capsys.readouterr())

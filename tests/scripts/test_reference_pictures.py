"""Pictures of groups of results are made again when a part of the group is new, and no others."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from support.paths import ROOT
from support.results.browser import needs_browser

from launchopt.errors import DataError
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


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("#!/bin/sh\nexec sleep 60\n", r"no picture within 0\.1 s"),
        ("#!/bin/sh\necho broken >&2\n", "no picture: broken"),
        ("#!/no/such/shell\n", "no picture: No such file or directory"),
    ],
)
def test_a_chromium_without_a_picture_is_an_error_of_one_line(
    program: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chromium").write_text(program)
    (tmp_path / "chromium").chmod(0o755)
    monkeypatch.setattr(reference_pictures, "CHROMIUM", (str(tmp_path / "chromium"),))
    monkeypatch.setattr(reference_pictures, "LIMIT_S", 0.1 if "sleep" in program else 60)
    monkeypatch.setattr(reference_pictures, "html", lambda folders, page: page.write_text(""))
    picture = tmp_path / reference_pictures.SCREENSHOT
    with pytest.raises(DataError, match=why):
        reference_pictures.screenshot(COMMITTED / "readme/qkv_1", picture)
    assert not picture.exists()


def test_without_chromium_the_picture_stays_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference_pictures, "CHROMIUM", ("no-such-browser",))
    picture = tmp_path / reference_pictures.SCREENSHOT
    picture.write_bytes(b"as before")
    reference_pictures.screenshot(COMMITTED / "readme/qkv_1", picture)
    assert picture.read_bytes() == b"as before"
    assert "no Chromium on the PATH" in "".join(capsys.readouterr())

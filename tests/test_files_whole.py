"""A file is there whole, or as it was before."""

from __future__ import annotations

from pathlib import Path

import pytest

from launchopt.errors import RunError
from launchopt.whole_file import atomically, written


def test_it_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path, seen = tmp_path / "file", []

    def write(temporary: Path) -> None:
        temporary.write_text("whole")
        seen.append((temporary.parent, path.exists()))

    atomically(path, write)
    assert (seen, path.read_text()) == ([(tmp_path, False)], "whole")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("before", [None, "what was there"])
def test_where_writing_fails_there_is_what_was_there(before: str | None, tmp_path: Path) -> None:
    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError(28, "whatever a library says")

    if before is not None:
        (tmp_path / "file").write_text(before)
    with pytest.raises(RunError) as caught:
        written(tmp_path / "file", fail)
    assert str(caught.value) == f"{tmp_path}: file cannot be written: No space left on device"
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == ({} if before is None else {"file": before})

"""A damaged, foreign or unwritable file of compiled code counts as absent. The function is compiled again."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest

from launchopt import native
from launchopt.compiled_files import CheckedFiles


def square(x: int) -> int:
    return x * x


@pytest.fixture
def new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Return the compiled `square` of a process that has not called it yet."""
    monkeypatch.setattr(native, "compiled_folder", lambda: str(tmp_path / "cache"))
    return lambda: native.compiled(square)


def files(folder: Path) -> dict[str, Path]:
    """Return the index (.nbi) and the data file (.nbc) by suffix."""
    return {path.suffix: path for path in (folder / "cache").rglob("*") if path.is_file()}


def hits(function: Any) -> int:
    return sum(function.stats.cache_hits.values())


def test_a_second_process_reads_the_file(new_process: Callable[[], Any], tmp_path: Path) -> None:
    assert new_process()(7) == 49
    assert sorted(files(tmp_path)) == [".nbc", ".nbi"]
    second = new_process()
    assert (second(7), hits(second)) == (49, 1)


def flipped(content: bytes) -> bytes:
    place = len(content) * 2 // 3
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "a byte": lambda content: b"\x80",
    "cut in the checksum": lambda content: content[:20],
    "cut": lambda content: content[: len(content) // 2],
    "last byte": lambda content: content[:-1],
    "random": lambda content: os.urandom(len(content)),
    "one bit": flipped,
    "zeros": lambda content: bytes(len(content)),
    "longer": lambda content: content + b"x",
    "a pickle of Numba's own": lambda content: pickle.dumps(numba.__version__) + pickle.dumps(("stamp", {})),
}


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_a_miss(
    suffix: str, damage: Callable[[bytes], bytes], new_process: Callable[[], Any], tmp_path: Path
) -> None:
    new_process()(7)
    path = files(tmp_path)[suffix]
    path.write_bytes(damage(path.read_bytes()))
    after = new_process()
    assert (after(7), hits(after)) == (49, 0)
    mended = new_process()
    assert (mended(7), hits(mended)) == (49, 1)


def test_a_file_of_another_version_is_a_miss(new_process: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        other.setattr(numba, "__version__", "0.1")
        new_process()(7)
    after = new_process()
    assert (after(7), hits(after)) == (49, 0)


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "link to nothing", "gone"])
def test_what_is_no_file_is_a_miss(suffix: str, kind: str, new_process: Callable[[], Any], tmp_path: Path) -> None:
    new_process()(7)
    path = files(tmp_path)[suffix]
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to nothing":
        path.symlink_to("nothing")
    after = new_process()
    assert (after(7), hits(after)) == (49, 0)


def test_a_file_of_another_user_is_not_read(
    new_process: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To unpickle it could run any code."""
    new_process()(7)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    after = new_process()
    assert (after(7), hits(after)) == (49, 0)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_file_that_cannot_be_written_stops_nobody(
    number: int, new_process: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: CheckedFiles, path: str, content: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(CheckedFiles, "_write", full)
    assert new_process()(7) == 49


@pytest.mark.parametrize("folder", [None, "/dev/null/none"])
def test_without_a_folder_a_function_is_compiled_in_each_process(
    folder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "compiled_folder", lambda: folder)
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    assert native.compiled(square)(7) == 49


def test_numbas_other_folders_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a change of a function that is compiled into another one would not be noticed."""
    (tmp_path / "cache").touch()
    monkeypatch.setattr(native, "compiled_folder", lambda: str(tmp_path / "cache"))
    for _ in range(2):
        function = native.compiled(square)
        assert (function(7), hits(function)) == (49, 0)

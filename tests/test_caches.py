"""Compiled code goes to a private temporary folder where the usual ones cannot be written to."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.processes.own_process import environ_of

from launchopt import caches
from launchopt.caches import DEFAULTS, IN_MEMORY, ensure_home, prepare

NOWHERE = "/dev/null/none"  # not even root can make it
CONCERNED = (*DEFAULTS, IN_MEMORY, "HOME", "XDG_CACHE_HOME", "TRITON_HOME", "TMPDIR")


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home and a folder for temporary files below tmp_path; `prepare` has not been called."""
    for name in CONCERNED:
        monkeypatch.setenv(name, "x")  # so that the end of the test restores it, whatever `prepare` sets
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    prepare.cache_clear()
    yield
    prepare.cache_clear()


@pytest.fixture
def private(tmp_path: Path) -> Path:
    return tmp_path / "tmp" / f"launchopt-cache-{os.geteuid()}"


def test_a_usual_home_is_used_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare() == tmp_path / "home" / ".cache"
    assert [name for name in DEFAULTS if name in os.environ] == []
    assert capsys.readouterr().err == ""
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    "environ",
    [
        {"HOME": NOWHERE},
        {"XDG_CACHE_HOME": NOWHERE},
        {"NUMBA_CACHE_DIR": NOWHERE},
        {"NUMBA_CACHE_DIR": "/proc/1/none", "HOME": "/proc/none"},
    ],
    ids=str,
)
def test_a_private_folder_is_used_and_named_once(
    environ: Mapping[str, str], private: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert prepare() == private / "numba"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"compiled code is kept in {private}: ")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    prepare.cache_clear()
    assert prepare() == private / "numba"
    assert capsys.readouterr().err == "", "a child inherits the choice and says nothing"


def test_a_file_in_place_of_our_folder(private: Path, tmp_path: Path) -> None:
    (cache := tmp_path / "home" / ".cache").mkdir()
    (cache / "launchopt").touch()
    assert prepare() == private / "numba"


def test_every_library_has_another_folder(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", NOWHERE)
    prepare()
    of_libraries = {name for name in DEFAULTS if name != "TORCHINDUCTOR_CACHE_DIR"}  # that is a temporary folder anyway
    for name in of_libraries:
        assert Path(os.environ[name]).parent == private
    assert len({os.environ[name] for name in of_libraries}) == len(of_libraries)


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch, private: Path) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", nameless)
    prepare()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(private / "torchinductor")


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("HOME", "relative")
    ensure_home()
    assert os.environ.pop("HOME") == "/"
    monkeypatch.setattr(Path, "home", homeless)
    ensure_home()
    assert os.environ["HOME"] == "/"


@pytest.mark.parametrize("kind", ["link", "open to all", "file"])
def test_a_folder_that_another_user_prepared_is_not_used(
    kind: str, tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", NOWHERE)
    if kind == "link":
        (elsewhere := tmp_path / "elsewhere").mkdir(0o700)
        private.symlink_to(elsewhere)
    elif kind == "file":
        private.touch()
    else:
        private.mkdir()
        private.chmod(0o777)
    found = prepare()
    assert found is not None
    assert found.parent.parent == private.parent
    assert found.parent != private
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700


def test_a_folder_of_another_user_is_not_used(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", NOWHERE)
    private.mkdir(0o700)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    private.rename(private.with_name(f"launchopt-cache-{me + 1}"))
    found = prepare()
    assert found is not None
    assert found.parent.name != f"launchopt-cache-{me + 1}"


def test_without_any_folder_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", NOWHERE)
    monkeypatch.setattr(tempfile, "tempdir", NOWHERE)
    assert prepare() is None
    assert os.environ[IN_MEMORY] == "1"
    assert capsys.readouterr().err.startswith("compiled code is not kept: ")


def test_a_library_does_not_write_to_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(caches, "LEAST_BYTES", 1 << 60)
    assert prepare() == tmp_path / "home" / ".cache", "our own files may be absent"
    assert os.environ[IN_MEMORY] == "1"


def test_a_process_compiles_without_a_home(tmp_path: Path) -> None:
    environ = environ_of() | {"HOME": NOWHERE, "TMPDIR": str(tmp_path)}
    call = [sys.executable, "-c", "from launchopt.native import load_numba; load_numba()"]
    first, second = (subprocess.run(call, env=environ, capture_output=True, text=True, check=True) for _ in range(2))
    (line,) = first.stderr.splitlines()
    assert second.stderr.splitlines() == [line], "each start says it"
    assert line.startswith(f"compiled code is kept in {tmp_path}/")
    assert len(list(tmp_path.rglob("*.nbc"))) == 1

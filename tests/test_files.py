"""Files are complete or absent; allocated bytes are there, on a disk and in shared memory."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT
from support.processes.own_mounts import in_own_mounts
from support.processes.own_process import environ_of

from launchopt.errors import ConfigError, DataError, RunError
from launchopt.files import (
    NotRegularError,
    Reserve,
    allocate,
    is_there,
    open_regular,
    reason,
    save_result,
    write_atomically,
)
from launchopt.queue.ring import Ring
from launchopt.queue.shared_segment import FOLDER

can_claim = pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="nothing can be allocated ahead here")


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "text of a library")


@can_claim
def test_a_claim_is_allocated_and_not_only_promised(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        allocate(file.fileno(), 1 << 20)
        about = os.fstat(file.fileno())
    assert about.st_size == 1 << 20
    assert about.st_blocks * 512 >= 1 << 20


@can_claim
@pytest.mark.parametrize(("code", "matters"), [(errno.ENOSPC, True), (errno.EFBIG, True), (errno.EOPNOTSUPP, False)])
def test_only_a_file_system_that_cannot_know_is_believed(
    code: int, matters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    if matters:
        with pytest.raises(OSError, match=os.strerror(code)):
            allocate(0, 1)
    else:
        allocate(0, 1)


def test_a_reason_is_the_systems_own() -> None:
    assert reason(OSError(errno.ENOSPC, "[Errno 28] Error writing bytes to file. Detail: ...")) == os.strerror(28)
    assert reason(OSError("some text")) == "some text"


def test_a_reserve_has_no_name_and_is_given_back(tmp_path: Path) -> None:
    with Reserve(tmp_path, 1 << 20) as reserve:
        assert list(tmp_path.iterdir()) == []
        reserve.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_folder_that_takes_nothing_is_named(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / kind
    if kind == "file":
        folder.write_text("")
    with pytest.raises(RunError, match=rf"{kind} cannot be written to: "):
        Reserve(folder)


def test_a_reserve_grows_until_it_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()
    monkeypatch.setattr("launchopt.files.allocate", lambda _, size: sizes.append(size))
    with Reserve(tmp_path, 1 << 20) as reserve:
        reserve.grow(1 << 19)
        reserve.grow(64 << 20)
    reserve.grow(128 << 20)
    assert sizes == [1 << 20, 64 << 20]


@can_claim
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError) as caught:
        Reserve(tmp_path)
    assert str(caught.value) == f"{tmp_path} cannot be written to: {os.strerror(errno.ENOSPC)}"


@can_claim
@pytest.mark.skipif(not FOLDER.is_dir(), reason="shared memory has no file here")
def test_a_ring_without_room_is_refused_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(FOLDER.glob(f"launchopt_{os.getpid()}_*"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError) as caught:
        Ring.create(1 << 16)
    why = f"has no space for a ring of 4.2 MB ({os.strerror(errno.ENOSPC)}): lower it, or make {FOLDER} larger"
    assert str(caught.value) == f"queue.capacity=65536: {FOLDER} {why}"
    assert set(FOLDER.glob(f"launchopt_{os.getpid()}_*")) == before


RING = """
import sys
from launchopt.errors import ConfigError
from launchopt.queue.ring import Ring
from launchopt.queue.shared_segment import FOLDER
try:
    with Ring.create(int(sys.argv[1])) as ring:
        ring.reset()  # writes to every page
except ConfigError as error:
    print(error, list(FOLDER.iterdir()))
"""


@pytest.mark.parametrize(("capacity", "fits"), [(512, True), (2048, False)])
def test_a_shared_memory_that_is_too_small_is_no_bus_error(capacity: int, fits: bool) -> None:
    command = in_own_mounts(f"mount -t tmpfs -o size=64k tmpfs {FOLDER}", sys.executable, "-c", RING, str(capacity))
    done = subprocess.run(command, env=environ_of(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    if fits:
        assert done.stdout == ""
    else:
        assert done.stdout.startswith(f"queue.capacity={capacity}: {FOLDER} has no space for a ring of 0.1 MB (")
        assert done.stdout.endswith(" []\n")


def test_it_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path, seen = tmp_path / "file", []

    def write(temporary: Path) -> None:
        temporary.write_text("whole")
        seen.append((temporary.parent, path.exists()))

    write_atomically(path, write)
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
        save_result(tmp_path / "file", fail)
    assert str(caught.value) == f"{tmp_path}: file cannot be written: No space left on device"
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == ({} if before is None else {"file": before})


def opened(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def test_a_regular_file_is_opened_and_anything_else_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert opened(tmp_path / "file") == opened(tmp_path / "link") == b"x"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    refused = {"pipe": "a named pipe", "to_pipe": "a named pipe", "socket": "a socket", "/dev/zero": "a device"}
    for name, kind in refused.items():
        with pytest.raises(NotRegularError, match=f"{kind}, not a regular file"):
            opened(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        opened(tmp_path)
    with pytest.raises(OSError, match="NUL"):
        opened(tmp_path / "a\0b")


OPENS = re.compile(
    r"""\.open\("r|\.open\(\)|\.read_text\(|\.read_bytes\(|(?<![\w.])open\(|pq\.read_|pq\.ParquetFile\("""
)
# The package's own files, files of the system, and parts that this process wrote.
OWN = {
    "launchopt/files.py",
    "launchopt/caches.py",
    "launchopt/reading/parquet.py",
    *(f"launchopt/{name}.py" for name in ("report/page", "kernels/__init__", "modes/options", "recording/environment")),
    *("launchopt/analysis/tables/reference.py", "launchopt/devices/cpu/info.py", "launchopt/timing/torch_trace.py"),
    *(f"runner/{name}.py" for name in ("help/settings", "budget", "bench/recorder", "plan/memory", "worker/tables")),
    *(
        f"runner/{name}.py"
        for name in ("config/tables", "config/composed", "doctor/checks", "doctor/gpu", "run/leftovers")
    ),
    *("runner/ending/limits.py", "runner/ending/outputs.py", "runner/worker/orphans.py", "runner/advise/__main__.py"),
    *("runner/plan/cores.py", "runner/parallel/records.py"),  # lock files of their own, which are not read
    "launchopt/traces/record_hook.py",  # writes within the recorded program, where nothing of launchopt is imported
}


def test_readers_open_files_with_one_function() -> None:
    """A reader with an `open` of its own would wait for ever at a named pipe."""
    found = set()
    for top in ("launchopt", "runner"):
        for path in (ROOT / top).rglob("*.py"):
            lines = (line for line in path.read_text().splitlines() if OPENS.search(line) and "def " not in line)
            if any(lines):
                found.add(str(path.relative_to(ROOT)))
    assert found <= OWN


def test_a_folder_that_may_not_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_there(tmp_path)
    assert not is_there(tmp_path / "nothing")

    def refuse(path: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="cannot be read: Permission denied"):
        is_there(tmp_path)

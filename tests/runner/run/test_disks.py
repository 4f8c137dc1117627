"""Disks that are full, too small or read-only, at the start of a run and in the middle of it.

Each is a real one: a tmpfs of a few megabytes in mounts of the process's own, or a limit on the size of files. What is
asked for: an exit code, one line that names folder and reason, what was measured before, and no half of a file.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.processes.own_mounts import in_own_mounts
from support.processes.own_process import environ_of, without_progress
from support.thorough import some

RUNNER = (sys.executable, "-m", "runner", "device=cpu", "workload.cache=hot", "against=[]")
SMALL = ("workload.m=16", "workload.k=64")
ENOSPC, EFBIG, EROFS = (os.strerror(code) for code in (errno.ENOSPC, errno.EFBIG, errno.EROFS))
EMPTY_MB = 4  # what a run wants to find
PATIENCE_S = 180
# Disks without room: options of the mount, the command that fills the disk, and the reason in the message.
DISKS = {
    "too small": ("size=1m", "true", ENOSPC),
    "nearly full": ("size=8m", "head -c 6000000 /dev/zero > other", ENOSPC),
    "read-only": ("ro", "true", EROFS),
}
# Every disk for a run. By default one of them for a sweep, and all with --thorough.
DISKS_BY_KIND = [*(("run", disk) for disk in DISKS), *(("sweep", disk) for disk in some(DISKS))]


def ran(command: list[str], folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    environ = environ_of()
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False, **options
    )
    done.stderr = without_progress(done.stderr)
    return done


def on_disk(tmp_path: Path, options: str, *arguments: str, before: str = "true") -> subprocess.CompletedProcess[str]:
    """A run into a tmpfs at `disk`, whose content is in `kept` afterwards."""
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    mounts = f"mount -t tmpfs -o {options} tmpfs '{disk}' && cd '{disk}' && {before} && cd '{tmp_path}'"
    command = in_own_mounts(mounts, *RUNNER, *SMALL, *arguments, afterwards=f"cp -a '{disk}/.' '{kept}'")
    return ran(command, tmp_path)


def contents(folder: Path) -> dict[str, int]:
    """Rows of every Parquet file below, all of which can be read; and no file that is half of one."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path.name for path in files if path.name.startswith(".") or path.suffix == ".tmp"] == []
    return {path.name: pq.read_table(path).num_rows for path in files if path.suffix == ".parquet"}


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return found


@pytest.mark.parametrize(("kind", "disk"), DISKS_BY_KIND)
def test_a_disk_without_room_is_refused_before_anything_is_written(kind: str, disk: str, tmp_path: Path) -> None:
    options, before, reason = DISKS[disk]
    target = tmp_path / "disk/results/one"
    asked = [f"hydra.{kind}.dir={target}", *(["-m"] if kind == "sweep" else [])]
    done = on_disk(tmp_path, options, *asked, before=before)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        f"error: hydra.{kind}.dir={target}: {tmp_path / 'disk'} cannot be written to: {reason}"
    )
    assert {path.name for path in (tmp_path / "kept").rglob("*")} <= {"other"}


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    done = ran([*RUNNER, f"hydra.run.dir={tmp_path}/file/results"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: hydra.run.dir={tmp_path}/file/results: {tmp_path}/file is not a folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_fills_up_with_tables_keeps_the_repeats_before(tmp_path: Path) -> None:
    """Tables are what grows from repeat to repeat."""
    commands = 20_000
    recorded = ("record.commands=all", "repeats=500", "mode=baseline", f"workload.commands={commands}")
    done = on_disk(tmp_path, f"size={EMPTY_MB + 4}m", *recorded, f"hydra.run.dir={tmp_path}/disk/run")
    folder = tmp_path / "kept/run"
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1
    # A table, or what a run under way records: whichever asks for the last bytes, which is chance.
    assert (
        f"cannot be written: {ENOSPC}" in done.stderr
        or f"cannot be written in {tmp_path}/disk/run: {ENOSPC}" in done.stderr
    )
    about, rows = manifest(folder), contents(folder)
    assert about["status"] == "failed"
    assert done.stderr == f"error: {about['error']}\n"
    repeats = about["repeats_done"]
    assert repeats >= 1
    assert rows["summary.parquet"] == repeats
    for name in ("launches", "commands"):
        of_table = [count for file, count in rows.items() if file.startswith(f"{name}.")]
        assert repeats * commands <= sum(of_table) <= (repeats + 1) * commands


def test_a_disk_too_small_for_one_run_says_so(tmp_path: Path) -> None:
    """The rows of a run under way go to a file, too."""
    asked = ("mode=baseline", "workload.commands=200000", f"hydra.run.dir={tmp_path}/disk/run")
    done = on_disk(tmp_path, f"size={EMPTY_MB + 2}m", *asked)
    folder = tmp_path / "kept/run"
    reason = f"consumer: recorded rows cannot be written in {tmp_path}/disk/run: {ENOSPC}"
    assert (done.returncode, done.stderr) == (1, f"error: {reason}\n")
    assert (manifest(folder)["status"], manifest(folder)["error"]) == ("failed", reason)
    assert contents(folder) == {}


def test_a_limit_on_files_is_as_a_full_disk(tmp_path: Path) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, 6 << 20))

    asked = (*SMALL, "mode=baseline", "workload.commands=200000", f"hydra.run.dir={tmp_path}/run")
    done = ran([*RUNNER, *asked], tmp_path, preexec_fn=limited)
    reason = f"consumer: recorded rows cannot be written in {tmp_path}/run: {EFBIG}"
    assert (done.returncode, done.stderr) == (1, f"error: {reason}\n")
    assert manifest(tmp_path / "run")["error"] == reason
    assert contents(tmp_path / "run") == {}


def test_shared_memory_too_small_is_said_and_no_bus_error(tmp_path: Path) -> None:
    asked = (*SMALL, "workload.commands=100", "queue.capacity=65536", f"hydra.run.dir={tmp_path}/run")
    done = ran(in_own_mounts("mount -t tmpfs -o size=1m tmpfs /dev/shm", *RUNNER, *asked), tmp_path)
    reason = f"queue.capacity=65536: /dev/shm has no space for a ring of 4.2 MB ({ENOSPC})"
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {reason}")
    assert done.stderr.count("\n") == 1
    assert manifest(tmp_path / "run")["status"] == "failed"
    assert contents(tmp_path / "run") == {}

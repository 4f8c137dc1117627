"""What killed runs left is removed by the next one; what lives is not touched."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest
from support.processes.own_run import LONG, SHORT, Victim, on_linux

from launchopt.recording.results import read_manifest, write_manifest
from runner.run.leftovers import FOLDER, KILLED, LOCK, YOUNG_S, held, killed_runs, leftovers, tidy
from runner.worker.lifeline import name_semaphores


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.fixture
def segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder; temporary folders and stopped processes that other tests leave meanwhile stay unseen."""
    folder = tmp_path / "segments"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("runner.worker.orphans.MARK", f"LAUNCHOPT_TEST_{os.getpid()}")
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs"
    folder.mkdir()
    return folder


def make_old(path: Path) -> Path:
    past_s = time.time() - 2 * YOUNG_S
    os.utime(path, (past_s, past_s))
    return path


def test_a_held_segment_is_in_use_whatever_its_name_says(segments: Path, runs: Path, dead_pid: int) -> None:
    """As of a process in another container, whose ids mean nothing here."""
    segment = segments / f"launchopt_{dead_pid}_0a"
    segment.write_bytes(b"x")
    with held(segment):
        assert leftovers(segments) == []
        assert tidy(runs / "new", segments) == []
        assert segment.exists()
    assert tidy(runs / "new", segments) == [f"removed {segment}, left by killed process {dead_pid}"]
    assert not segment.exists()


def test_stopped_processes_of_killed_runs_are_named(
    segments: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.run.leftovers.end_orphans", lambda: {7: 5})
    assert tidy(runs / "new", segments) == ["killed the stopped process 7, left by killed process 5"]


def test_semaphores_of_dead_processes_are_removed_by_our_name_alone(segments: Path, runs: Path, dead_pid: int) -> None:
    ours = segments / f"sem.launchopt_{dead_pid}-a1_b2c3d"
    of_others = [
        segments / name
        for name in ("sem.mp-a1_b2c3d", f"sem.launchopt_{dead_pid}", f"sem.other_{dead_pid}-a", "sem.launchopt_x-a")
    ]
    for each in (ours, *of_others):
        each.write_bytes(b"x")
    assert tidy(runs / "new", segments) == [f"removed {ours}, left by killed process {dead_pid}"]
    assert sorted(segments.iterdir()) == sorted(of_others)


@on_linux
def test_a_live_process_keeps_its_semaphores() -> None:
    name_semaphores()
    lock = get_context("spawn").Lock()
    (path,) = FOLDER.glob(f"sem.launchopt_{os.getpid()}-*")
    make_old(path)
    assert path not in [each.path for each in leftovers()]
    del lock


def test_an_id_that_is_used_again(segments: Path) -> None:
    """This process lives, but does not map the segment, and did not just make it."""
    segment = segments / f"launchopt_{os.getpid()}_0a"
    segment.write_bytes(b"x")
    assert leftovers(segments) == [], "it may be about to"
    make_old(segment)
    assert [each.path for each in leftovers(segments)] == [segment]


@on_linux
def test_a_live_process_keeps_what_it_maps() -> None:
    memory = SharedMemory(f"launchopt_{os.getpid()}_{os.urandom(6).hex()}", create=True, size=64)
    try:
        make_old(path := FOLDER / memory.name)
        assert path not in [each.path for each in leftovers()]
    finally:
        memory.close()
        memory.unlink()


@pytest.fixture
def killed(runs: Path) -> Path:
    """A run that was killed while it wrote."""
    return killed_run(runs / "killed")


def killed_run(folder: Path, status: str = "running", owner: str | None = None) -> Path:
    folder.mkdir(parents=True)
    write_manifest(folder, {"status": status, "repeats_done": 2})
    (folder / ".launchopt-launches.parquet.7.tmp").write_bytes(b"PAR1")
    (folder / ".launchopt.lock").write_text(owner if owner is not None else f"12345 on {socket.gethostname()}\n")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_killed_run_says_so_after_the_next_start(killed: Path, runs: Path, segments: Path) -> None:
    assert killed_runs(runs) == [killed]
    assert tidy(runs / "new", segments) == [f"{killed}: was killed, its manifest says so now"]
    manifest = read_manifest(killed)
    assert (manifest["status"], manifest["repeats_done"]) == ("killed", 2)
    assert manifest["error"].startswith("ended without a message")
    assert names(killed) == ["manifest.json"]
    assert tidy(runs / "new", segments) == []


@pytest.fixture
def lock(killed: Path) -> Iterator[None]:
    with (killed / ".launchopt.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.usefixtures("lock")
def test_a_live_run_is_not_touched(killed: Path, runs: Path, segments: Path) -> None:
    before = names(killed)
    assert killed_runs(runs) == []
    assert tidy(runs / "new", segments) == []
    assert (names(killed), read_manifest(killed)["status"]) == (before, "running")


@pytest.mark.parametrize("owner", ["12345 on another-host", "", "somebody else's lock"])
def test_locks_of_others_are_not_touched(owner: str, runs: Path, segments: Path) -> None:
    other = killed_run(runs / "other", owner=owner)
    before = names(other)
    assert tidy(runs / "new", segments) == []
    assert names(other) == before


def test_a_finished_run_keeps_its_status(runs: Path, segments: Path) -> None:
    done = killed_run(runs / "done", status="ok")
    assert tidy(runs / "new", segments) == []
    assert read_manifest(done)["status"] == "ok"
    assert not (done / ".launchopt.lock").exists()


def test_a_killed_sweep_beside_a_new_one(tmp_path: Path, segments: Path) -> None:
    old = killed_run(tmp_path / "sweep/old")
    job = killed_run(old / "3")
    new = tmp_path / "sweep/new"
    new.mkdir()
    (new / ".launchopt.lock").write_text("")
    notices = tidy(new / "0", segments)
    assert notices == [f"{each}: was killed, its manifest says so now" for each in (job, old)]
    assert names(job) == ["manifest.json"]


def test_a_killed_sweep_says_so_and_which_job_was_under_way(tmp_path: Path, segments: Path) -> None:
    old = tmp_path / "sweep/old"
    old.mkdir(parents=True)
    (old / ".launchopt.lock").write_text(f"12345 on {socket.gethostname()}\n")
    jobs = [{"job": 0, "status": "ok", "error": None}, {"job": 1, "status": "running", "error": None}]
    about = {"schema_version": 1, "status": "running", "overrides": ["seed=1,2"], "jobs": jobs}
    (old / "sweep.json").write_text(json.dumps(about))
    assert tidy(tmp_path / "sweep/new", segments) == []
    found = json.loads((old / "sweep.json").read_text())
    killed = {"job": 1, "status": "killed", "error": KILLED}
    assert found == about | {"status": "killed", "jobs": [jobs[0], killed]}
    assert names(old) == ["sweep.json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"status": "running"}', '{"schema_version": 1, "status": "running"}'])
def test_what_is_no_sweep_of_ours_stays_as_it_is(text: str, tmp_path: Path, segments: Path) -> None:
    old = tmp_path / "sweep/old"
    old.mkdir(parents=True)
    (old / ".launchopt.lock").write_text(f"12345 on {socket.gethostname()}\n")
    (old / "sweep.json").write_text(text)
    assert tidy(tmp_path / "sweep/new", segments) == []
    assert (old / "sweep.json").read_text() == text


def test_half_a_table_in_the_same_folder(runs: Path, segments: Path) -> None:
    folder = runs / "again"
    folder.mkdir()
    (folder / ".launchopt-launches.parquet.7.tmp").write_bytes(b"PAR1")
    (folder / ".launchopt-summary.parquet.7.tmp").touch()
    mine = {
        "mine.tmp": "",
        ".notes.tmp": "x",
        ".summary.parquet.7.tmp": "PAR1",
        ".launchopt-summary.parquet.8.tmp": "x",
    }
    for name, text in mine.items():
        (folder / name).write_text(text)
    os.mkfifo(folder / ".launchopt-launches.00000.part.tmp")
    assert tidy(folder, segments) == []
    assert names(folder) == sorted([*mine, ".launchopt-launches.00000.part.tmp"])


def test_pipes_in_a_folder_beside_are_left_alone(runs: Path, segments: Path) -> None:
    killed_run(runs / "killed")
    (runs / "other").mkdir()
    for name in (".lock", LOCK, "manifest.json"):
        os.mkfifo(runs / "other" / name)
    assert tidy(runs / "new", segments) == [f"{runs / 'killed'}: was killed, its manifest says so now"]
    assert len(names(runs / "other")) == 3


@on_linux
def test_the_next_start_cleans_up_after_a_killed_group(victim: Callable[[str], Victim]) -> None:
    """With everybody killed at once, Python's tracker of shared memory too, nobody is left to do it before.

    Which start removes the ring is open: shared memory is the whole machine's, and other tests start runs meanwhile.
    """
    run = victim(LONG)
    run.in_the_middle()
    (ring,) = run.rings()
    os.killpg(run.process.pid, signal.SIGKILL)
    run.process.wait()
    folder = run.results_folder()
    following = victim(f"{SHORT} repeats=1")
    assert following.end() == (0, "")
    assert not ring.exists()
    assert read_manifest(folder)["status"] == "killed"
    assert [name for name in names(folder) if name.startswith(".")] == []
    (own,) = (each for each in following.folder.glob("outputs/run/*") if each != folder)
    assert f"{folder}: was killed" in " ".join(read_manifest(own)["notices"])

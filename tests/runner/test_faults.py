"""Runs that are killed, interrupted or wrong: a short reason, an exit code, and nothing left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from hydra import compose, initialize_config_dir
from own_process import environ_of

from launchopt import results
from launchopt.errors import VerificationError
from launchopt.producer import Production
from launchopt.ring import TAIL
from runner import run as run_module
from runner.__main__ import main
from runner.plan import Plan, make_plan
from runner.schema import register, to_config
from runner.session import ChildError

ROOT = Path(__file__).parents[2]
SHARED_MEMORY = Path("/dev/shm")
on_linux = pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="reads /dev/shm, which only Linux has")

LONG = "mode=baseline workload.cache=hot workload.commands=1000000"  # over 10 s on any machine
SHORT = "mode=batched workload.cache=hot workload.commands=500 workload.m=16 workload.k=64 repeats=10000"
PATIENCE_S = 60.0
SOON_S = 10.0


def eventually(condition: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
    """The condition's value once it is true; fails where that takes too long."""
    limit = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)
    return value


class Victim:
    """`python -m runner` in its own process group, and what can be seen of it from outside."""

    def __init__(self, arguments: str, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runner", *arguments.split(), "device=cpu"],
            cwd=folder,
            env=environ_of(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._known: dict[int, psutil.Process] = {}

    def children(self) -> list[psutil.Process]:
        """Consumer and producer, in the order they are started; the resource tracker is none of them."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.process.pid).children()
        self._known |= {child.pid: child for child in found}
        with contextlib.suppress(psutil.NoSuchProcess):
            found = [child for child in found if "--multiprocessing-fork" in child.cmdline()]
        return sorted(found, key=lambda child: child.create_time())

    def alive(self) -> list[psutil.Process]:
        """Every child ever seen that still runs."""
        return [child for child in self._known.values() if child.is_running() and child.status() != "zombie"]

    def rings(self) -> list[Path]:
        return list(SHARED_MEMORY.glob(f"launchopt_{self.process.pid}_*"))

    def popped(self) -> int:
        """Commands that the consumer has taken from the ring."""
        for ring in self.rings():
            with contextlib.suppress(OSError):
                words = np.fromfile(ring, np.uint64, count=TAIL + 1)
                return int(words[TAIL]) if len(words) > TAIL else 0
        return 0

    def in_the_middle(self) -> tuple[psutil.Process, psutil.Process]:
        """Consumer and producer, once a run is under way."""
        eventually(lambda: self.process.poll() is not None or self.popped() > 10_000)
        consumer, producer = self.children()
        return consumer, producer

    def results_folder(self) -> Path:
        (folder,) = self.folder.glob("outputs/run/*")
        return folder

    def manifest(self) -> dict[str, Any]:
        return results.read_manifest(self.results_folder())

    def repeats_done(self) -> int:
        if not list(self.folder.glob("outputs/run/*/manifest.json")):
            return 0
        self.children()
        return int(self.manifest()["repeats_done"])

    def end(self) -> tuple[int, str]:
        """Exit code and standard error."""
        _, stderr = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, stderr

    def close(self) -> None:
        for process in (self.process, *self.alive()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.communicate()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Callable[[str], Victim]]:
    victims: list[Victim] = []

    def start(arguments: str) -> Victim:
        victims.append(Victim(arguments, tmp_path))
        return victims[-1]

    yield start
    for each in victims:
        each.close()


def assert_nothing_left(victim: Victim) -> None:
    eventually(lambda: not victim.alive(), SOON_S)
    eventually(lambda: not victim.rings(), SOON_S)


@on_linux
@pytest.mark.parametrize("name", ["consumer", "producer"])
def test_a_killed_child_ends_the_run(name: str, victim: Callable[[str], Victim]) -> None:
    run = victim(LONG)
    consumer, producer = run.in_the_middle()
    {"consumer": consumer, "producer": producer}[name].kill()
    reason = f"{name} was killed by signal 9"
    assert run.end() == (1, f"error: {reason}\n")
    manifest = run.manifest()
    assert (manifest["status"], manifest["error"], manifest["repeats_done"]) == ("failed", reason, 0)
    assert_nothing_left(run)


@on_linux
def test_a_killed_consumer_leaves_no_half_of_a_table(victim: Callable[[str], Victim]) -> None:
    run = victim(SHORT)
    eventually(lambda: run.repeats_done() >= 2)
    run.children()[0].kill()
    exit_code, stderr = run.end()
    assert (exit_code, stderr) == (1, "error: consumer was killed by signal 9\n")
    left = {path.name for path in run.results_folder().iterdir()}
    assert left == {"manifest.json", "summary.parquet", "histograms.parquet"}
    assert len(results.read_summaries([run.results_folder()])) == run.manifest()["repeats_done"] >= 2
    assert_nothing_left(run)


@on_linux
@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_an_interrupted_run_keeps_its_finished_repeats(how: str, victim: Callable[[str], Victim]) -> None:
    run = victim(SHORT)
    eventually(lambda: run.repeats_done() >= 1)
    if how == "Ctrl-C":
        os.killpg(run.process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    else:
        run.process.terminate()
    exit_code, stderr = run.end()
    manifest, folder = run.manifest(), run.results_folder()
    done = manifest["repeats_done"]
    assert exit_code == 130
    assert stderr == f"error: interrupted; {done} finished repeats are in {folder}\n"
    assert manifest["status"] == "interrupted"
    rows = results.read_summaries([folder])
    assert [row["repeat"] for row in rows] == list(range(done))
    assert {row["status"] for row in rows} == {"ok"}
    assert set(pd.read_parquet(folder / "launches.parquet")["repeat"]) >= set(range(done))
    assert not list(folder.glob(".*"))
    assert_nothing_left(run)


@on_linux
def test_an_interrupted_sweep_stops_there(victim: Callable[[str], Victim]) -> None:
    run = victim(f"-m {SHORT},1".replace("repeats=", "repeats=1,"))
    sweep = run.folder / "outputs/sweep"
    eventually(lambda: run.children() and list(sweep.glob("*/1/summary.parquet")))
    os.killpg(run.process.pid, signal.SIGINT)
    exit_code, stderr = run.end()
    assert exit_code == 130
    assert stderr.startswith("error: interrupted; ")
    assert stderr.count("\n") == 1
    jobs = sorted(path.parent for path in sweep.glob("*/*/manifest.json"))
    assert [results.read_manifest(job)["status"] for job in jobs] == ["ok", "interrupted"]
    assert_nothing_left(run)


def started(run: Victim) -> bool:
    return len(run.children()) == 2


def under_way(run: Victim) -> bool:
    return run.popped() > 10_000


@on_linux
@pytest.mark.parametrize("when", [started, under_way])
def test_impatience_changes_nothing(when: Callable[[Victim], bool], victim: Callable[[str], Victim]) -> None:
    run = victim(LONG)
    eventually(lambda: when(run))
    while run.process.poll() is None:
        os.killpg(run.process.pid, signal.SIGINT)
        time.sleep(0.05)
    assert run.end() == (130, f"error: interrupted; 0 finished repeats are in {run.results_folder()}\n")
    assert run.manifest()["status"] == "interrupted"
    assert_nothing_left(run)


@on_linux
def test_children_do_not_outlive_a_killed_parent(victim: Callable[[str], Victim]) -> None:
    run = victim(LONG)
    assert len(run.in_the_middle()) == 2
    assert len(run.rings()) == 1
    run.process.kill()
    assert_nothing_left(run)


class InterruptedImport:
    """Ctrl-C while runner.app is being imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "runner.app":
            raise KeyboardInterrupt


def test_interrupted_before_it_began(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "meta_path", [InterruptedImport(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "runner.app", raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def plan() -> Plan:
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", overrides=["device=cpu", "workload.cache=hot", "workload.commands=5", "repeats=3"])
    return make_plan(to_config(config), config)


class FakeSession:
    """Every repeat as `outcomes` says: a row's status, or an exception."""

    outcomes: tuple[Any, ...] = ()
    lost = 0
    about: dict[str, Any] = {"versions": {}, "ceilings": {}}  # noqa: RUF012

    def __init__(self, job: Any, progress: Any, watch: Any) -> None:
        self.commands = job.stream.commands

    def __enter__(self) -> "FakeSession":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def run(self, arm: int, repeat: int, label: str) -> tuple[dict[str, Any], Production]:
        status = self.outcomes[repeat]
        if isinstance(status, Exception):
            raise status
        row = dict.fromkeys(results.SUMMARY.names)
        row |= {"mode": "batched", "repeat": repeat, "commands": 5, "status": status, "verified": status == "ok"}
        produced = Production(self.commands - self.lost, blocked_ns=0, late_p99_ns=None, late_max_ns=None)
        return {"row": row, "extra": {}, "histograms": {"queue_wait": [(1, 2, 5)]}}, produced


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setattr(run_module, "Session", FakeSession)
    return lambda *values: monkeypatch.setattr(FakeSession, "outcomes", values)


def test_wrong_numbers_fail_the_run_and_are_kept(outcomes: Callable[..., None], tmp_path: Path) -> None:
    outcomes("ok", "failed: 1 of 5 outputs wrong", "ok")
    with pytest.raises(VerificationError) as caught:
        run_module.execute(plan(), tmp_path, [])
    assert str(caught.value) == "1 of 3 repeats failed; batched repeat 1: failed: 1 of 5 outputs wrong"
    assert caught.value.exit_code == 1
    manifest = results.read_manifest(tmp_path)
    assert (manifest["status"], manifest["repeats_done"]) == ("failed", 3)
    statuses = [row["status"] for row in results.read_summaries([tmp_path])]
    assert statuses == ["ok", "failed: 1 of 5 outputs wrong", "ok"]


def test_right_numbers_do_not(outcomes: Callable[..., None], tmp_path: Path) -> None:
    outcomes("ok", "ok", "ok")
    assert len(run_module.execute(plan(), tmp_path, []).rows) == 3
    assert results.read_manifest(tmp_path)["status"] == "ok"


def test_lost_commands_fail_the_run(
    outcomes: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes("ok", "ok", "ok")
    monkeypatch.setattr(FakeSession, "lost", 1)
    with pytest.raises(VerificationError, match="4 commands pushed, 5 executed"):
        run_module.execute(plan(), tmp_path, [])


def test_what_a_child_could_not_foresee_is_kept_as_a_traceback(outcomes: Callable[..., None], tmp_path: Path) -> None:
    outcomes("ok", ChildError("consumer: ValueError: no", 1, "Traceback: here"))
    with pytest.raises(ChildError, match=r"^consumer: ValueError: no$"):
        run_module.execute(plan(), tmp_path, [])
    manifest = results.read_manifest(tmp_path)
    assert (manifest["status"], manifest["error"]) == ("failed", "consumer: ValueError: no")
    assert (tmp_path / "traceback.txt").read_text() == "Traceback: here"
    assert len(results.read_summaries([tmp_path])) == 1

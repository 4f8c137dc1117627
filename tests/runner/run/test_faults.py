"""Runs that are killed, interrupted or wrong: a short reason, an exit code, and nothing left behind."""

import signal
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from support.paths import ROOT
from support.processes.own_run import LONG, SHORT, Victim, assert_nothing_left, eventually, on_linux

from launchopt.errors import VerificationError
from launchopt.producing.production import Production
from launchopt.recording import results
from launchopt.recording.summary_columns import KNOWN
from runner.config.objects import to_config
from runner.config.schema import register
from runner.plan.memory import oom_kills
from runner.plan.plan import Plan, make_plan
from runner.run import run as run_module
from runner.run.children import ChildError
from runner.run.session import Session
from runner.worker.messages import Order, OrderKind, RepeatResult


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
    folder, done = run.results_folder(), run.manifest()["repeats_done"]
    left = {path.name for path in folder.iterdir()}
    assert left == {"manifest.json", "summary.parquet", "histograms.parquet", "launches.parquet"}
    assert len(results.read_summaries([folder])) == done >= 2
    launches = pd.read_parquet(folder / "launches.parquet")
    assert set(launches["repeat"]) >= set(range(done)), "what it had written is lost"
    assert set(launches.groupby("repeat")["batch_size"].sum()) == {500}
    assert_nothing_left(run)


@on_linux
def test_children_do_not_outlive_a_killed_parent(victim: Callable[[str], Victim]) -> None:
    run = victim(LONG)
    assert len(run.in_the_middle()) == 2
    assert len(run.rings()) == 1
    run.process.kill()
    assert_nothing_left(run)


@on_linux
def test_not_even_a_stopped_child_outlives_a_killed_parent(victim: Callable[[str], Victim]) -> None:
    run = victim(LONG)
    run.in_the_middle()[0].suspend()  # it can do nothing itself, as in a long compiled call
    run.process.kill()
    assert_nothing_left(run)


def plan() -> Plan:
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", overrides=["device=cpu", "workload.cache=hot", "workload.commands=5", "repeats=3"])
    return make_plan(to_config(config), config)


class Gone:
    """A child that died while nobody looked."""

    name = "producer"

    def __init__(self) -> None:
        self.pipe, self.process = self, self
        self.exitcode = -9

    def send(self, message: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    def poll(self, timeout_s: float) -> bool:
        raise EOFError

    def join(self, timeout_s: float) -> None:
        """It is gone."""


@pytest.mark.parametrize(
    ("number", "named"),
    [
        (signal.SIGKILL, "producer was killed by signal 9"),
        (signal.SIGXCPU, "producer was killed by signal 24: it reached the limit of CPU time (ulimit -t)"),
    ],
)
def test_a_child_that_died_between_two_repeats_is_named(number: signal.Signals, named: str) -> None:
    session: Any = object.__new__(Session)
    session._stream, session._oom_kills = None, oom_kills()
    gone = Gone()
    gone.exitcode = -number
    with pytest.raises(ChildError) as caught:
        session._send(gone, Order(OrderKind.RUN))
    assert str(caught.value) == named


# A value in every column without which a summary's row is of no use.
NEEDED = {name: {"string": "cpu", "bool": False}.get(str(results.SUMMARY.field(name).type), 1) for name in KNOWN}


class FakeSession:
    """Every repeat as `outcomes` says: a row's status, or an exception."""

    outcomes: tuple[Any, ...] = ()
    lost = 0
    copy_gb_per_s: float | None = None
    pids: dict[str, int] = {"consumer": 1, "producer": 2}  # noqa: RUF012
    about: dict[str, Any] = {"versions": {}, "ceilings": {}}  # noqa: RUF012

    def __init__(self, jobs: Any, progress: Any, watch: Any, watchdog_s: float, laps: Any) -> None:
        self.commands = jobs[0].stream.commands

    def __enter__(self) -> "FakeSession":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def run(self, arm: int, repeat: int, label: str) -> tuple[list[RepeatResult], Production]:
        status = self.outcomes[repeat]
        if isinstance(status, Exception):
            raise status
        row = dict.fromkeys(results.SUMMARY.names) | NEEDED
        row |= {"mode": "batched", "repeat": repeat, "commands": 5, "status": status, "verified": status == "ok"}
        row["copy_gb_per_s"] = self.copy_gb_per_s
        produced = Production(self.commands - self.lost, blocked_ns=0, late_p99_ns=None, late_max_ns=None)
        return [RepeatResult(row, {"commands_by_strategy": {"single": 5}}, {"queue_wait": [(1, 2, 5)]})], produced


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


def test_what_the_consumer_tells_of_itself_is_in_the_manifest(
    outcomes: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes("ok", "ok", "ok")
    monkeypatch.setattr(FakeSession, "about", {"versions": {"driver": "580.1"}, "ceilings": {"copy": 2.0}})
    run_module.execute(plan(), tmp_path, [])
    manifest = results.read_manifest(tmp_path)
    assert (manifest["device_versions"], manifest["ceilings"]) == ({"driver": "580.1"}, {"copy": 2.0})
    assert "versions" not in manifest


@pytest.mark.parametrize(("change", "left"), [(0.05, 4.0), (0.31, None)])
def test_results_are_not_compared_with_a_bandwidth_that_changed_during_the_run(
    change: float, left: float | None, outcomes: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes("ok", "ok", "ok")
    after = {"ceilings_after": {"copy_gb_per_s": 4.2}, "ceilings_change": change}
    monkeypatch.setattr(FakeSession, "about", {"versions": {}, "ceilings": {"copy_gb_per_s": 4.0}, **after})
    monkeypatch.setattr(FakeSession, "copy_gb_per_s", 4.0)
    run_module.execute(plan(), tmp_path, [])
    manifest, rows = results.read_manifest(tmp_path), results.read_summaries([tmp_path])
    assert [(row["copy_gb_per_s"], row["ceilings_change"]) for row in rows] == [(left, change)] * 3
    assert {name: manifest[name] for name in after} == after
    notices = [each for each in manifest["notices"] if each.startswith("memory bandwidth changed by")]
    assert len(notices) == (left is None)


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

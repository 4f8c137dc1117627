"""How many repeats are taken, in which order, and what a run says of it."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.config.composing import configured, planned
from support.processes.own_process import ROOT, environ_of
from support.results.summary_rows import row

from launchopt.errors import ConfigError, Interrupted
from launchopt.producing.production import Production
from launchopt.recording import results
from runner.run import run as run_module
from runner.run.repeats import HALF_WIDTH, MAX_ROUNDS, MIN_ROUNDS, Rounds
from runner.run.resume import config_hash
from runner.run.saving import Run
from runner.run.watchdog import Moved
from runner.worker.messages import RepeatResult

PAIR = ("baseline", "batched")
Walls = Callable[[int, int], float]  # of an arm and a repeat


class Clock:
    """Moves by `step_s` at every look."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def taken(rounds: Rounds, wall_ms: Walls = lambda arm, repeat: 1.0) -> list[tuple[int, int]]:
    """The order of the runs; what is known of their number never falls below what is under way."""
    order, known = [], rounds.runs
    for arm, repeat in rounds:
        order.append((arm, repeat))
        assert rounds.runs >= max(known, len(order))
        known = rounds.runs
        rounds.took(arm, wall_ms(arm, repeat))
    assert len(order) == known
    return order


def auto(modes: Sequence[str] = PAIR, clock: Clock | None = None) -> Rounds:
    return Rounds(None, 300.0, modes, 0, clock or Clock())


def noisy(arm: int, repeat: int) -> float:
    return 1.0 + repeat % 2


@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 2**31))
def test_a_number_of_rounds_every_arm_once_in_each(asked: int, arms: int, seed: int) -> None:
    rounds = Rounds(asked, 1e-9, [f"mode{arm}" for arm in range(arms)], seed, Clock(1000.0))
    order = taken(rounds, noisy)
    assert [repeat for _, repeat in order] == [repeat for repeat in range(asked) for _ in range(arms)]
    assert set(order) == {(arm, repeat) for arm in range(arms) for repeat in range(asked)}
    assert rounds.as_dict() == {"asked": asked, "taken": asked, "stopped_by": "number", "half_width": None}
    assert rounds.notices() == []


def test_the_order_is_random_and_that_of_the_seed() -> None:
    orders = [taken(Rounds(8, 300.0, ["a", "b", "c"], seed)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    shuffle, arms = random.Random(0), [0, 1, 2]
    shuffle.shuffle(arms)
    assert [arm for arm, _ in orders[0][:3]] == arms
    assert len({tuple(arm for arm, _ in orders[0][first : first + 3]) for first in range(0, 24, 3)}) > 1


@given(st.floats(0.001, 1e6), st.floats(0, 0.9 * HALF_WIDTH), st.integers(0, 99))
def test_auto_takes_the_least_where_there_is_little_noise(wall_ms: float, noise: float, seed: int) -> None:
    rounds, noises = auto(["baseline"]), random.Random(seed)
    order = taken(rounds, lambda arm, repeat: wall_ms * (1 + noise * noises.random()))
    assert len(order) == MIN_ROUNDS
    assert rounds.as_dict() == {"asked": "auto", "taken": 5, "stopped_by": "noise", "half_width": 0.01}
    assert rounds.notices() == []


def test_auto_goes_on_until_the_noise_is_low() -> None:
    rounds = auto()
    order = taken(rounds, lambda arm, repeat: 2.0 if repeat in (1, 3) else 1.0)
    assert rounds.as_dict()["stopped_by"] == "noise"
    assert MIN_ROUNDS < len(order) / 2 == rounds.taken < MAX_ROUNDS


@pytest.mark.parametrize("restless", [0, 1])
def test_auto_waits_for_the_noisiest_arm(restless: int) -> None:
    rounds = auto()
    taken(rounds, lambda arm, repeat: noisy(arm, repeat) if arm == restless else 1.0)
    assert rounds.as_dict()["stopped_by"] == "most"


@pytest.mark.parametrize("modes", [PAIR, ("graph", "batched"), ("batched", "batched"), ("batched",)])
def test_auto_gives_up_after_the_most(modes: Sequence[str]) -> None:
    rounds = auto(modes)
    assert len(taken(rounds, noisy)) == MAX_ROUNDS * len(modes)
    assert rounds.as_dict() == {"asked": "auto", "taken": 50, "stopped_by": "most", "half_width": 0.01}
    (notice,) = rounds.notices()
    assert notice == "repeats=auto: ended after 50 rounds, the maximum; noise still above 1%"


@pytest.mark.parametrize(("round_s", "expected"), [(1000.0, MIN_ROUNDS), (30.0, 9), (29.0, 10)])
def test_no_round_begins_after_the_limit_but_the_least_are_taken(round_s: float, expected: int) -> None:
    rounds = auto(clock=Clock(round_s))
    taken(rounds, noisy)
    assert rounds.taken == expected
    assert rounds.as_dict()["stopped_by"] == "time"
    (notice,) = rounds.notices()
    assert notice == f"repeats=auto: ended after {expected} rounds, by repeats_limit_s=300; noise still above 1%"


def test_low_noise_at_the_limit_is_no_reason_for_a_notice() -> None:
    rounds = auto(clock=Clock(1e6))
    taken(rounds)
    assert rounds.as_dict()["stopped_by"] == "noise"


def test_what_the_user_reads_meanwhile() -> None:
    assert Rounds(3, 300.0, PAIR, 0).label(1, 0) == "batched 1/3"
    assert auto().label(0, 6) == "baseline 7 (auto: 5 to 50)"
    assert auto().runs == MIN_ROUNDS * len(PAIR)


def test_the_setting() -> None:
    assert configured("device=cpu").rounds == 1
    assert configured("device=cpu", "repeats=7").rounds == 7
    given_auto = configured("device=cpu", "repeats=auto", "repeats_limit_s=20")
    assert (given_auto.rounds, given_auto.repeats_limit_s) == (None, 20.0)


class FakeSession:
    """Runs that took what `walls` says; ends with a Ctrl-C at the run numbered `until`."""

    walls: Any = staticmethod(lambda arm, repeat: 1.0)
    until: int | None = None
    about: dict[str, Any] = {"versions": {}, "ceilings": {}}  # noqa: RUF012
    pids: dict[str, int] = {"consumer": 1, "producer": 2}  # noqa: RUF012

    def __init__(self, jobs: Any, progress: Any, watch: Any, watchdog_s: float, laps: Any) -> None:
        assert watch is None, "the device is the CPU"
        self.runs, self.job, self.progress = 0, jobs[0], progress

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def run(self, arm: int, repeat: int, label: str) -> tuple[list[RepeatResult], Production]:
        if self.runs == self.until:
            raise KeyboardInterrupt
        self.runs += 1
        self.progress(label, Moved(5))
        measured = row(mode=self.job.arms[arm].mode, repeat=repeat, wall_ms=type(self).walls(arm, repeat), commands=5)
        result = RepeatResult(measured, {"commands_by_strategy": {"single": 5}}, {})
        return [result], Production(5, 0, None, None)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> type[FakeSession]:
    class Session(FakeSession):
        pass

    monkeypatch.setattr(run_module, "Session", Session)
    return Session


def started(folder: Path, repeats: str, *words: str) -> Run:
    small = ("workload.cache=hot", "workload.commands=5", "against=[baseline]")
    return run_module.execute(planned(*small, f"repeats={repeats}", *words), folder, [])


def test_a_run_says_how_it_ended(
    session: type[FakeSession], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(started(tmp_path, "auto").rows) == MIN_ROUNDS * 2
    manifest = results.read_manifest(tmp_path)
    assert manifest["repeats"] == {
        **{"asked": "auto", "taken": 5, "stopped_by": "noise", "half_width": 0.01},
        "processes": 1,
    }
    assert "ended after" not in capsys.readouterr().out


def test_noise_that_stays_is_said(
    session: type[FakeSession], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session.walls = staticmethod(noisy)
    assert len(started(tmp_path, "auto").rows) == MAX_ROUNDS * 2
    manifest = results.read_manifest(tmp_path)
    assert manifest["notices"][-1].startswith("repeats=auto: ended after 50 rounds")
    assert manifest["notices"][-1] in capsys.readouterr().out
    assert manifest["repeats_done"] == MAX_ROUNDS * 2


@pytest.mark.parametrize(("repeats", "asked"), [("auto", "auto"), ("9", 9)])
def test_ctrl_c_keeps_what_was_measured(
    repeats: str, asked: str | int, session: type[FakeSession], tmp_path: Path
) -> None:
    session.until = 7
    with pytest.raises(Interrupted, match="7 finished repeats"):
        started(tmp_path, repeats)
    manifest = results.read_manifest(tmp_path)
    assert manifest["status"] == "interrupted"
    assert (manifest["repeats"]["asked"], manifest["repeats"]["taken"]) == (asked, 3)
    assert manifest["repeats"]["stopped_by"] is None
    assert len(results.read_summaries([tmp_path])) == 7


def test_auto_from_the_command_line(tmp_path: Path) -> None:
    job = "mode=batched against=[baseline] workload.cache=hot workload.commands=500 workload.m=16 workload.k=64"
    words = [*job.split(), "device=cpu", "repeats=auto", "repeats_limit_s=0.001", f"hydra.run.dir={tmp_path}/run"]
    call = [sys.executable, "-m", "runner", *words]
    run = subprocess.run(call, cwd=tmp_path, env=environ_of(ROOT), capture_output=True, text=True, check=True)
    manifest = results.read_manifest(tmp_path / "run")
    assert manifest["repeats"]["taken"] == MIN_ROUNDS
    assert manifest["repeats"]["stopped_by"] in ("noise", "time")
    assert ("noise still above 1%" in run.stdout) == (manifest["repeats"]["stopped_by"] == "time")
    rows = results.read_summaries([tmp_path / "run"])
    assert sorted((each["mode"], each["repeat"]) for each in rows) == [(mode, n) for mode in PAIR for n in range(5)]
    nvml = ("sm_clock_mhz", "sm_clock_min_mhz", "throttled", "throttle_reasons", "energy_mj_per_command", "power_w")
    assert {each[name] for each in rows for name in nvml} == {None}, "the device is the CPU"
    assert not any("gpu" in about for about in manifest["runs"])


def test_each_set_of_processes_runs_all_repeats_and_rows_say_which(session: type[FakeSession], tmp_path: Path) -> None:
    rows = started(tmp_path, "2", "processes=3").rows
    assert [(each["process"], each["repeat"]) for each in rows] == [
        (process, 2 * process + at) for process in range(3) for at in (0, 0, 1, 1)
    ]
    manifest = results.read_manifest(tmp_path)
    assert (manifest["repeats"]["taken"], manifest["repeats"]["processes"], len(manifest["processes"])) == (6, 3, 3)


def test_a_ctrl_c_keeps_the_processes_before(
    session: type[FakeSession], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []

    class Later(FakeSession):
        def __init__(self, jobs: Any, *rest: Any) -> None:
            super().__init__(jobs, *rest)
            starts.append((jobs[0].first_part, jobs[0].is_last))
            self.until = 1 if len(starts) == 2 else None

    monkeypatch.setattr(run_module, "Session", Later)
    with pytest.raises(Interrupted, match="5 finished repeats"):
        started(tmp_path, "2", "processes=3")
    assert starts == [(0, False), (4, False)]
    assert [each["process"] for each in results.read_summaries([tmp_path])] == [0, 0, 0, 0, 1]
    assert results.read_manifest(tmp_path)["status"] == "interrupted"


def test_processes_are_new_and_their_tables_are_one(tmp_path: Path) -> None:
    job = "mode=batched against=[baseline] workload.cache=hot workload.commands=50 workload.m=16 workload.k=64"
    words = [*job.split(), "device=cpu", "repeats=1", "processes=2", f"hydra.run.dir={tmp_path}/run"]
    call = [sys.executable, "-m", "runner", *words]
    subprocess.run(call, cwd=tmp_path, env=environ_of(ROOT), capture_output=True, text=True, check=True)
    pids = [each[name] for each in results.read_manifest(tmp_path / "run")["processes"] for name in each]
    assert len(set(pids)) == 4
    launches = pq.read_table(tmp_path / "run" / "launches.parquet", columns=["mode", "repeat"]).to_pylist()
    assert {(each["mode"], each["repeat"]) for each in launches} == {(mode, at) for mode in PAIR for at in (0, 1)}
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        *("histograms.parquet", "launches.parquet", "manifest.json", "summary.parquet")
    ]


def test_a_number_of_processes_is_from_1_to_1000() -> None:
    for wrong in ("0", "1001"):
        with pytest.raises(ConfigError, match="processes"):
            configured("device=cpu", f"processes={wrong}")


def test_a_run_of_an_older_version_is_the_same_config_with_one_process() -> None:
    old: dict[str, object] = {"mode": {"name": "batched"}, "repeats": 5}
    assert config_hash(old) == config_hash(old | {"processes": 1}) != config_hash(old | {"processes": 2})

"""The jobs of a sweep: planned as Hydra plans them, those left when it ends early, and what a sweep says of itself."""

import json
import math
import shlex
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from support.results.sweeps import statuses, sweep_json

from launchopt.errors import ConfigError, Interrupted, RunError
from runner import app
from runner.ending.signals import Stopped
from runner.run import sweep as sweep_module
from runner.run.sweep import Sweep, SweepJob, planned, require_given


@pytest.mark.parametrize(
    "words",
    [
        "seed=1,2 mode=baseline,batched",
        "seed=1,2 device=cpu seed=3,4,5",
        "seed=range(1,9,3) +x='a b','c,d',null ~arrival",
        "workload.dtype=choice(fp32,fp16) record={a:1} against=[baseline],[graph,batched]",
        "seed=sort(3,1,2,reverse=true) batching.timeout_us=tag(a,b,interval(1.5,2))",
        "seed=5",
        "",
    ],
)
def test_jobs_are_planned_as_hydra_does(words: str) -> None:
    overrides = shlex.split(words.replace("'", "\\'").replace("a b", "a\\ b"))
    parsed = OverridesParser.create().parse_overrides(overrides)
    try:
        (expected,) = BasicSweeper.split_arguments(parsed, None)
    except HydraException:  # refused before the first job
        return
    assert planned(overrides) == expected


def test_who_cannot_tell_which_jobs_are_left_names_none(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["seed=1,2", "mode=glob(*)"], is_new=True)
    assert planned(sweep.overrides) == []
    other = Sweep(tmp_path, ["seed=1,2"], is_new=True)
    for each in (sweep, other):
        each.add(SweepJob(0, ["seed=7"], status="ok"), tmp_path / "0")
        each.end()
        assert statuses(tmp_path) == ["ok"]


def test_jobs_in_a_random_order_are_told_by_their_overrides(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["seed=shuffle(1,2,3)"], is_new=True)
    sweep.add(SweepJob(0, ["seed=2"], status="ok"), tmp_path / "0")
    sweep.end()
    about = sweep_json(tmp_path)
    assert (about["status"], about["exit_code"]) == ("failed", 1), "something other than the user ended it"
    assert [each["job"] for each in about["jobs"]] == [0, 1, 2]
    assert {each["overrides"][0] for each in about["jobs"][1:]} == {"seed=1", "seed=3"}
    assert sweep.lines("s") == [
        "sweep: 1 ok, 2 not run in s",
        "finish it: the same command with hydra.sweep.dir=s resume=true",
    ]


def test_the_overrides_are_expanded_once_for_all_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expanded: list[list[str]] = []

    def counted(overrides: list[str]) -> list[list[str]]:
        expanded.append(overrides)
        return planned(overrides)

    monkeypatch.setattr(sweep_module, "planned", counted)
    sweep = Sweep(tmp_path, ["seed=range(0,20)"], is_new=True, params=["batching.timeout_us=1,2"])
    assert sweep.varies_batching
    jobs = [
        SweepJob(number, [f"batching.timeout_us={1 + number // 20}", f"seed={number % 20}"]) for number in range(39)
    ]
    for job in jobs:
        sweep.add(job, tmp_path / str(job.job))
        job.ended("ok")
        assert sweep.name(job) == f"job {job.job} ({job.job + 1} of 40)"
    sweep.end()
    assert len(expanded) == 1
    assert statuses(tmp_path) == ["ok"] * 39 + ["not run"]


@pytest.mark.parametrize("status", ["skipped", "ok", "failed"])
def test_asking_for_a_twin_changes_no_job(status: str, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["batching.timeout_us=1,2,3"], is_new=True)
    first, second, third = (SweepJob(number, []) for number in range(3))
    assert sweep.twin_of("work") is None
    for job in (first, second):
        job.ended(status)
        sweep.remember(job, "work")
    stands = {"failed": None}.get(status, first)
    assert sweep.twin_of("work") is stands
    assert (second.status, second.same_as) == (status, None)
    sweep.remember(third, None)
    assert sweep.twin_of(None) is None


def test_a_job_is_written_as_it_ended_however_often_the_sweep_is_saved(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["seed=1,2,3"], is_new=True)
    for number, status in enumerate(("ok", "failed", "refused")):
        job = SweepJob(number, [f"seed={number + 1}"])
        sweep.add(job, tmp_path / str(number))
        sweep.save()
        assert sweep_json(tmp_path)["jobs"][-1]["status"] == "running"
        job.ended(status)
        job.objective = 0.5 if status == "ok" else math.inf
    sweep.end()
    written = [asdict(job) | {"objective": None if job.status != "ok" else 0.5} for job in sweep.jobs]
    assert sweep_json(tmp_path)["jobs"] == written, "JSON has no infinity"
    assert statuses(tmp_path) == ["ok", "failed", "refused"]


@pytest.mark.parametrize("folder", ["out/night ly", "out/a'b", "out/$x (1), [2]", "out/plain"])
def test_the_command_that_finishes_a_sweep_names_its_folder_for_hydra_and_the_shell(
    folder: str, tmp_path: Path
) -> None:
    sweep = Sweep(tmp_path, ["seed=1,2"], is_new=True)
    sweep.end()
    command = sweep.lines(folder)[-1].partition("the same command with ")[2]
    word, resume = shlex.split(command)
    assert resume == "resume=true"
    (override,) = OverridesParser.create().parse_overrides([word])
    assert str(override.value()) == folder


def test_jobs_that_are_refused_for_one_reason_share_a_line_and_say_it_once(tmp_path: Path) -> None:
    sweep, said = Sweep(tmp_path, [], is_new=True), []
    for number in range(6):
        job = SweepJob(number, [f"seed={number}"])
        sweep.add(job, tmp_path / str(number))
        error = ConfigError.required("arrival.rate_per_s", "a number")
        job.ended("refused", error)
        sweep.fail_once(error, lambda error: said.append(str(error)))
    assert said == ["arrival.rate_per_s is required: a number"]
    assert sweep.lines("s")[1:] == ["jobs 0, 1, 2, 3, 4, 5 refused: arrival.rate_per_s is required: a number"]


def test_a_sweep_that_lacks_a_required_setting_is_refused_as_a_whole() -> None:
    config = OmegaConf.create({"arrival": {"kind": "poisson", "rate_per_s": "???"}, "seed": 0})
    with pytest.raises(ConfigError, match=r"^arrival.rate_per_s is required: .*; type arrival.rate_per_s=1000$"):
        require_given(config, ["arrival=poisson", "seed=1,2"])
    for words in (["arrival.rate_per_s=1,2"], ["arrival=closed,poisson"], ["experiment=a,b"]):
        require_given(config, words)


def test_a_job_that_a_signal_comes_before_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep(tmp_path, ["seed=1,2,3"], is_new=True)
    sweep.add(SweepJob(0, ["seed=1"], status="ok"), tmp_path / "0")
    (tmp_path / "1").mkdir()
    about = {"runtime": {"output_dir": str(tmp_path / "1")}, "job": {"num": 1}, "overrides": {"task": ["seed=2"]}}
    monkeypatch.setattr(app.HydraConfig, "get", lambda: OmegaConf.create(about))
    monkeypatch.setattr(app, "_start", app.Start(sweep=sweep))
    stopped = Stopped(signal.SIGTERM)

    def check() -> None:
        raise stopped

    monkeypatch.setattr(app.signals, "check", check)
    with pytest.raises(Stopped):
        app.run_job(OmegaConf.create({}))
    assert capsys.readouterr().err == ""
    sweep.stop(Interrupted(str(stopped), stopped.exit_code))
    sweep.end()
    assert statuses(tmp_path) == ["ok", "not run", "not run"]
    assert (sweep_json(tmp_path)["status"], sweep_json(tmp_path)["exit_code"]) == ("interrupted", 143)
    assert not (tmp_path / "1").exists()


def test_a_job_without_settings_of_its_own_is_named_alone(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["seed=1"], is_new=True)
    job = SweepJob(0, ["seed=1"], status="refused", error="why")
    assert sweep.label(job) == "job 0 (1 of 1)"
    sweep.jobs.append(job)
    assert sweep.lines("s")[1] == "job 0 refused: why"


def swept(folder: Path, *ends: tuple[str, Exception | None]) -> Sweep:
    sweep = Sweep(folder, ["device=cpu", "seed=0,1,2,3"], is_new=True)
    for number, (status, error) in enumerate(ends):
        job = SweepJob(number, ["device=cpu", f"seed={number}", "resume=True"])
        sweep.add(job, folder / str(number))
        if status != "running":
            job.ended(status, error)
    return sweep


REFUSED = ConfigError("seed", 1, "no")


@pytest.mark.parametrize(
    ("ends", "status", "exit_code"),
    [
        ([("ok", None), ("skipped", None)], "ok", 0),
        ([("ok", None), ("failed", RunError("broke")), ("ok", None)], "failed", 1),
        ([("failed", RunError("broke")), ("refused", REFUSED)], "failed", 2),
        ([("failed", RunError("broke")), ("failed", Interrupted("stop"))], "interrupted", 130),
        ([("ok", None), ("running", None)], "interrupted", 130),
    ],
)
def test_a_sweep_is_as_good_as_its_worst_job(ends: list[Any], status: str, exit_code: int, tmp_path: Path) -> None:
    sweep = swept(tmp_path, *ends)
    if ends[-1][0] == "running":
        sweep.save()
        about = json.loads((tmp_path / "sweep.json").read_text())
        assert (about["status"], about["ended_utc"], about["jobs"][-1]["status"]) == ("running", None, "running")
        sweep.stop(Interrupted("interrupted"))
    sweep.save(ended=True)
    about = json.loads((tmp_path / "sweep.json").read_text())
    assert (about["status"], about["exit_code"]) == (status, exit_code)
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]


def test_a_sweep_in_a_few_lines(tmp_path: Path) -> None:
    sweep = swept(tmp_path, ("ok", None), ("failed", RunError("broke")), ("skipped", None), ("refused", REFUSED))
    assert sweep.lines("outputs/s") == [
        "sweep: 1 ok, 1 failed, 1 refused, 1 skipped in outputs/s",
        "job 1 failed (seed=1): broke",
        "job 3 refused (seed=3): seed=1: no",
        "finish it: the same command with hydra.sweep.dir=outputs/s resume=true",
    ]
    assert len(swept(tmp_path, ("ok", None), ("refused", REFUSED)).lines("x")) == 2, "again it would be refused again"


def test_two_jobs_never_share_a_folder(tmp_path: Path) -> None:
    sweep = swept(tmp_path, ("ok", None))
    for place in ("0", "1/../0", "."):
        with pytest.raises(ConfigError, match=r"^hydra\.sweep\.subdir="):
            sweep.add(SweepJob(1, []), Path(f"{tmp_path}/{place}"))


def test_a_sweep_that_cannot_be_noted_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"sweep\.json: No such file or directory"):
        Sweep(tmp_path / "gone", [], is_new=False).save()

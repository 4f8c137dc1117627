"""Sweeps by the launchers of packages: the same end as by the basic launcher, whatever happens to their jobs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.results.side_by_side import (
    LONG,
    SMALL,
    TWELVE,
    begun,
    ended,
    gone,
    has_records,
    job_process,
    only_sweep,
    outcome,
    plain_jobs,
    running,
    started_by,
)
from support.results.sweeps import Ran, statuses, sweep_json
from support.thorough import is_thorough

LAUNCHERS = {
    "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "submitit_local": ["hydra/launcher=submitit_local"],
    "ray": ["hydra/launcher=ray", "hydra.launcher.ray.init.address=local", "+hydra.launcher.ray.init.num_cpus=2"],
}
IN_PAIRS = {"joblib": [], "submitit_local": ["hydra.sweeper.max_batch_size=2"], "ray": []}
# submitit starts five processes for each job, and waits 15 s for a dead worker; Ray starts ten: with --thorough only.
QUICKER = LAUNCHERS if is_thorough() else ["joblib"]
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")  # of Ray, which notice a killed sweep after a minute


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> str:
    """The name of a launcher that is installed."""
    name = str(request.param)
    pytest.importorskip(f"hydra_plugins.hydra_{name.partition('_')[0]}_launcher")
    if name == "ray":
        pytest.importorskip("ray")
        if not is_thorough():
            pytest.skip("Ray takes seconds to start: with --thorough")
    return name


@pytest.fixture(scope="module")
def by_basic(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """What the basic launcher says of twelve jobs, and the folder of their sweep."""
    folder = tmp_path_factory.mktemp("basic")
    return ended(TWELVE, folder), only_sweep(folder)


def errors(stderr: str) -> list[str]:
    """Return the first part of each line, sorted."""
    return sorted(line.partition(";")[0] for line in stderr.splitlines())


@pytest.mark.parametrize("launcher", QUICKER, indirect=True)
def test_twelve_jobs_end_as_by_the_basic_launcher_and_are_resumed(
    launcher: str, by_basic: tuple[Ran, Path], tmp_path: Path
) -> None:
    words = [*LAUNCHERS[launcher], *IN_PAIRS[launcher], *TWELVE]
    (one, basic), two = by_basic, ended(words, tmp_path)
    assert two.exit_code == one.exit_code == 2
    sweep = only_sweep(tmp_path)
    assert plain_jobs(sweep) == plain_jobs(basic)
    assert len(set(statuses(sweep))) == 4
    for name in ("status", "exit_code", "counts", "overrides"):
        assert sweep_json(sweep)[name] == sweep_json(basic)[name], name
    assert errors(two.stderr) == errors(one.stderr)
    assert sorted(path.name for path in sweep.iterdir()) == sorted(path.name for path in basic.iterdir())

    again = ended([*words, "resume=true"], tmp_path)
    assert again.exit_code == 2
    assert statuses(sweep) == ["skipped" if each == "ok" else each for each in statuses(basic)]


def test_joblib_runs_every_job_once_with_numbers_for_its_batches(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    numbers = ["hydra.launcher.pre_dispatch=4", "hydra.launcher.batch_size=2"]
    ran = ended([*LAUNCHERS["joblib"], *numbers, *SMALL.split(), "mode=batched", "repeats=1", "seed=0,1,2,3"], tmp_path)
    assert ran.exit_code == 0, ran.stderr
    assert statuses(only_sweep(tmp_path)) == ["ok"] * 4


def test_ctrl_c_of_a_terminal_ends_all_jobs_and_the_next_start_finishes_them(launcher: str, tmp_path: Path) -> None:
    words = [*LAUNCHERS[launcher], *IN_PAIRS[launcher], *LONG.split(), "seed=0,1,2"]
    with begun(words, tmp_path) as sweep:
        running(tmp_path, 2)
        others = started_by(sweep.pid)
        os.killpg(sweep.pid, signal.SIGINT)
        ran = outcome(sweep)
        assert gone(others)
    folder = only_sweep(tmp_path)
    assert ran.exit_code == 130, ran.stderr
    assert "error: interrupted" in ran.stderr
    assert "/runner/" not in ran.stderr, "a traceback of this program; joblib's own tracker prints one now and then"
    assert statuses(folder) == ["interrupted", "interrupted", "not run"]
    assert [each["exit_code"] for each in sweep_json(folder)["jobs"]] == [130, 130, 0]
    assert not has_records(folder)


def test_jobs_end_with_the_process_of_their_sweep(launcher: str, tmp_path: Path) -> None:
    words = [*LAUNCHERS[launcher], f"hydra.sweep.dir={tmp_path}/outputs/sweep/it"]
    with begun([*words, *LONG.split(), "seed=0,1"], tmp_path) as sweep:
        running(tmp_path, 2)
        others = started_by(sweep.pid)
        assert len(others) >= 8, "two workers, two job processes, and two children of each"
        agents = [each for each in others if each.name() in AGENTS]
        sweep.kill()
        assert gone([each for each in others if each not in agents])
    ran = ended([*words, "device=cpu", "workload.m=16", "seed=nothing"], tmp_path)
    assert ran.exit_code == 2
    assert has_records(tmp_path / "outputs/sweep/it"), "refused before the folder is touched"


def test_a_killed_job_fails_and_the_others_run(launcher: str, tmp_path: Path) -> None:
    words = [*LAUNCHERS[launcher], *LONG.split(), "repeats=1000,1000,1"]
    with begun(words, tmp_path) as sweep:
        running(tmp_path, 2)
        folder = only_sweep(tmp_path)
        killed = [job_process(folder, job) for job in (0, 1)]
        children = [child for each in killed for child in each.children(recursive=True)]
        for each in killed:
            each.kill()
        assert gone([*killed, *children])
        ran = outcome(sweep)
    assert ran.exit_code == 1
    assert statuses(folder) == ["failed", "failed", "ok"]
    errors = [each["error"] for each in sweep_json(folder)["jobs"]]
    assert errors == [*["the process of the job was killed by signal 9"] * 2, None]


@pytest.mark.parametrize("launcher", QUICKER, indirect=True)
def test_a_job_past_its_time_limit_fails(launcher: str, tmp_path: Path) -> None:
    ran = ended([*LAUNCHERS[launcher], *LONG.split(), "job_timeout_s=6", "repeats=1000"], tmp_path)
    folder = only_sweep(tmp_path)
    assert ran.exit_code == 1
    assert statuses(folder) == ["failed"]
    assert "job_timeout_s=6" in str(sweep_json(folder)["jobs"][0]["error"])


@pytest.mark.parametrize("launcher", QUICKER, indirect=True)
def test_a_killed_worker_is_named_and_nothing_outlives_the_sweep(launcher: str, tmp_path: Path) -> None:
    ends = ["failed", "failed" if launcher == "joblib" else "interrupted"]
    with begun([*LAUNCHERS[launcher], *LONG.split(), "seed=0,1"], tmp_path) as sweep:
        running(tmp_path, 2)
        folder, others = only_sweep(tmp_path), started_by(sweep.pid)
        job_process(folder, 0).parent().kill()
        if launcher == "submitit_local":  # its other workers go on
            job_process(folder, 1).parent().send_signal(signal.SIGUSR2)  # as at the end of timeout_min
        elif launcher == "ray":
            job_process(folder, 1).terminate()
        ran = outcome(sweep)
        assert gone(others)
    assert statuses(folder) == ends
    assert ran.exit_code == max(each["exit_code"] for each in sweep_json(folder)["jobs"])
    assert "the launcher could not run all jobs" in ran.stderr
    assert "Traceback" not in ran.stderr
    if launcher == "submitit_local":
        assert sweep_json(folder)["jobs"][1]["error"].endswith("the launcher ended it (hydra.launcher.timeout_min=60)")

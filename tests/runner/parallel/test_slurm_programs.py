"""Slurm's programs, replaced by scripts: what is asked of them, and what their answers mean."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from launchopt.errors import ConfigError
from runner.parallel import slurm
from runner.parallel.slurm import PROGRAMS, RESULT_S, Queue, Slurm

pytest.importorskip("hydra_plugins.hydra_submitit_launcher")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the programs, which come first on PATH. Each notes its words in the file `called`."""
    for name in PROGRAMS:
        answer(tmp_path, name, "")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def answer(folder: Path, name: str, stdout: str, stderr: str = "", code: int = 0) -> None:
    """Let a program print these texts and end with a code."""
    (folder / f"{name}.out").write_text(stdout)
    (folder / f"{name}.err").write_text(stderr)
    note = f'echo {name} "$@" >>{folder}/called'
    lines = ("#!/bin/sh", note, f"cat {folder}/{name}.out", f"cat {folder}/{name}.err >&2", f"exit {code}")
    (folder / name).write_text("\n".join(lines) + "\n")
    (folder / name).chmod(0o755)


def launcher(**settings: object) -> Slurm:
    """Return the launcher with its own settings, and others."""
    from hydra_plugins.hydra_submitit_launcher.config import SlurmQueueConf

    own = OmegaConf.structured(SlurmQueueConf(submitit_folder="here/%j", name="job"))
    return Slurm(OmegaConf.merge(own, settings))


def refusal(of: Slurm) -> str:
    with pytest.raises(ConfigError) as caught, of.reached():
        pass
    return str(caught.value)


def test_a_machine_without_slurm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
    start = "hydra/launcher=submitit_slurm: there is no sbatch here; start the sweep on a machine that submits"
    assert refusal(launcher()).startswith(start)


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("sbatch: error: invalid partition specified: x\nallocation failure: ...\n", "invalid partition specified: x"),
        ("allocation failure: Requested node configuration is not available\n", "allocation failure: Requested node"),
        ("sbatch: error: no server\nsbatch: fatal: no configuration\n", "no configuration"),
        ("", "it gives no reason"),
    ],
)
def test_slurm_says_in_one_line_why_it_takes_no_job(stderr: str, expected: str, programs: Path) -> None:
    answer(programs, "sbatch", "", stderr, 1)
    text = refusal(launcher())
    assert text.startswith(f"hydra/launcher=submitit_slurm: Slurm takes no job with these settings: {expected}")
    assert "\n" not in text


def test_slurm_is_asked_with_the_settings_of_the_jobs(programs: Path) -> None:
    (programs / "sbatch").write_text(f"#!/bin/sh\ncat >{programs}/script\n")
    with launcher(partition="gpu", gpus_per_node=1, cpus_per_task=4).reached():
        script = (programs / "script").read_text()
    for line in ("--partition=gpu", "--gpus-per-node=1", "--cpus-per-task=4", "--time=60"):
        assert f"#SBATCH {line}\n" in script


def test_a_job_has_ended_when_slurm_says_so_or_has_forgotten_it(programs: Path) -> None:
    queue = Queue()
    jobs = [f"7_{number}" for number in range(6)]
    for job in jobs:
        queue.register_job(job)
    lines = ["7_0 PENDING", "7_1 RUNNING", "7_2 COMPLETING", "7_3 NODE_FAIL", "7_4 CANCELLED", "8_5 RUNNING"]
    answer(programs, "squeue", "\n".join(lines) + "\n")
    assert [queue.is_done(job, "force") for job in jobs] == [False, False, False, True, True, True]
    assert queue.get_state("7_5") == "FORGOTTEN"
    queue.cancel("--state=PENDING")
    assert (programs / "called").read_text().splitlines()[-1] == "scancel --quiet --state=PENDING 7"


def test_jobs_go_on_while_the_controller_is_away(programs: Path) -> None:
    queue = Queue()
    queue.register_job("7")
    answer(programs, "squeue", "", "slurm_load_jobs error: Unable to contact slurm controller\n", 1)
    assert not queue.is_done("7", "force")
    (programs / "squeue").unlink()
    assert not queue.is_done("7", "force")


def test_squeue_is_called_at_most_every_two_seconds(programs: Path) -> None:
    queue = Queue()
    for job in ("7_0", "7_1"):
        queue.register_job(job)
    answer(programs, "squeue", "7_0 RUNNING\n7_1 RUNNING\n")
    for _ in range(20):
        assert not queue.is_done("7_0")
        assert not queue.is_done("7_1")
    assert len((programs / "called").read_text().splitlines()) <= 2


def test_the_result_of_a_job_that_ended_is_awaited_once_for_all_jobs(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue()
    queue.register_job("7_0")
    assert queue.is_done("7_0", "force")
    assert 0 < queue.patience_s("7_0") <= RESULT_S
    now = time.monotonic()
    monkeypatch.setattr(slurm.time, "monotonic", lambda: now + RESULT_S + 1)
    assert queue.patience_s("7_0") == 0
    monkeypatch.undo()
    queue.is_stopped = True
    assert queue.patience_s("7_0") == 0

"""Sweeps end to end, on the cpu device: jobs that fail, sweeps that are taken up again.

All but the one that is interrupted run in this process, with children that are kept from one to the next.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from support.config.model_cards import TINY, write_config
from support.processes.own_process import environ_of
from support.results.sweeps import Ran, Run, content, statuses, sweep_json

from launchopt.recording import results
from runner.run import run as run_module
from runner.run import watchdog
from runner.run.resume import config_hash

SMALL = "device=cpu workload.m=16 workload.k=64 workload.commands=200 workload.cache=hot"
DECODE = "device=cpu workload=decode model=tiny workload.cache=hot workload.requests=5 workload.tokens=2"
PATIENCE_S = 60.0

pytestmark = pytest.mark.usefixtures("kept_children")


def test_failing_jobs_are_recorded_and_only_they_are_done_again(run: Run, tmp_path: Path) -> None:
    words = f"-m {DECODE} batching.max_batch=0,4 ordering=violated,per_request"
    first = run(words)
    assert first.exit_code == 2, "the highest: one failed with 1, two were refused with 2"
    (folder,) = tmp_path.glob("outputs/sweep/*")
    assert statuses(folder) == ["refused", "refused", "failed", "ok"]
    about = sweep_json(folder)
    assert (about["status"], about["exit_code"]) == ("failed", 2)
    assert about["counts"] == {"ok": 1, "failed": 1, "refused": 2}
    assert [job["exit_code"] for job in about["jobs"]] == [2, 2, 1, 0]
    for job in about["jobs"]:
        manifest = results.read_manifest(folder / job["folder"])
        assert (manifest["status"], manifest.get("error")) == (job["status"], job["error"])
    assert first.line("sweep: ") == f"sweep: 1 ok, 1 failed, 2 refused in {folder.relative_to(tmp_path)}"
    assert first.line("job 2 failed").startswith("job 2 failed (batching.max_batch=4 ordering=violated): 1 of 1 rep")
    errors = [line for line in first.stderr.splitlines() if not line.startswith("[")]  # "[": progress
    assert [line[:7] for line in errors] == ["error: "] * 2, "both refused jobs have one reason"
    assert "1 of 1 repeats failed" in first.stderr

    failed, kept = content(folder / "2"), content(folder / "3")
    again = run(f"{words} resume=true")
    assert list(tmp_path.glob("outputs/sweep/*")) == [folder], "the newest with these overrides is found"
    assert again.line("resuming") == f"resuming {folder.relative_to(tmp_path)}"
    assert again.exit_code == 2
    assert statuses(folder) == ["refused", "refused", "failed", "skipped"]
    assert again.line("job 3 is") == "job 3 is skipped, finished before: batching.max_batch=4 ordering=per_request"
    assert "job 2 is" not in again.stdout
    assert content(folder / "3") == kept
    assert content(folder / "2")["summary.parquet"] != failed["summary.parquet"], "measured again"
    assert not list(folder.rglob(".*"))


def test_what_a_killed_sweep_left_is_done_again(run: Run, tmp_path: Path) -> None:
    words = f"-m {SMALL} seed=1,2 hydra.sweep.dir=s"
    assert run(words).exit_code == 0
    assert (sweep_json(tmp_path / "s")["status"], statuses(tmp_path / "s")) == ("ok", ["ok", "ok"])
    kept = content(tmp_path / "s/0")
    manifest = results.read_manifest(tmp_path / "s/1")
    assert (
        manifest["config_hash"]
        == config_hash(manifest["config"])
        == sweep_json(tmp_path / "s")["jobs"][1]["config_hash"]
    )
    results.write_manifest(tmp_path / "s/1", manifest | {"status": "running"})  # its process was killed
    (tmp_path / "s/1/tokens.parquet").write_text("of the earlier run, which recorded tokens")
    again = run(f"{words} resume=true job_timeout_s=100 watchdog_s=50")
    assert (again.exit_code, again.stderr) == (0, "")
    assert statuses(tmp_path / "s") == ["skipped", "ok"]
    assert again.line("s/1: ") == "s/1: the earlier run in there is replaced"
    assert results.read_manifest(tmp_path / "s/1")["status"] == "ok"
    assert not (tmp_path / "s/1/tokens.parquet").exists()
    assert content(tmp_path / "s/0") == kept


def test_models_from_files_are_run_and_known_again_by_their_numbers(run: Run, tmp_path: Path) -> None:
    write_config(tmp_path / "a", TINY | {"intermediate_size": 96})
    write_config(tmp_path / "b", TINY | {"num_key_value_heads": 2})
    words = "-m device=cpu workload=decode model=./a,b/config.json workload.cache=hot workload.tokens=1"
    assert run(words).exit_code == 0
    (folder,) = tmp_path.glob("outputs/sweep/*")
    assert [results.read_summaries([folder / job])[0]["model"] for job in "01"] == ["a", "b"]
    assert run(f"{words} resume=true").exit_code == 0
    assert statuses(folder) == ["skipped", "skipped"]
    write_config(tmp_path / "b", TINY)
    again = run(f"{words} resume=true")
    assert again.exit_code == 2
    assert "holds a finished run of another config, which differs in model.kv_heads" in again.stderr
    assert statuses(folder) == ["skipped", "refused"]


def test_finished_results_of_another_config_stay(run: Run, tmp_path: Path) -> None:
    assert run(f"-m {SMALL} seed=1,2 hydra.sweep.dir=s").exit_code == 0
    kept = [content(tmp_path / f"s/{job}") for job in (0, 1)]
    other = run(f"-m {SMALL} seed=1,3,4 hydra.sweep.dir=s resume=true")
    assert other.exit_code == 2
    assert other.stderr == (
        "error: hydra.sweep.dir=s/1: holds a finished run of another config, which differs in seed;"
        " choose another output folder\n"
    )
    assert statuses(tmp_path / "s") == ["skipped", "refused", "ok"]
    assert [content(tmp_path / f"s/{job}") for job in (0, 1)] == kept
    refused = run(f"-m {SMALL} batching.max_batch=0 hydra.sweep.dir=s")
    assert (refused.exit_code, statuses(tmp_path / "s")) == (2, ["refused"])
    assert content(tmp_path / "s/0") == kept[0], "a manifest that says refused would belie the results beside it"


def test_a_single_run_that_is_finished_is_skipped(run: Run, tmp_path: Path) -> None:
    words = f"{SMALL} hydra.run.dir=r resume=true"
    assert run(words).exit_code == 0
    kept = content(tmp_path / "r")
    assert run(words) == Ran(0, "skipped: finished before, in r\n", "")
    other = run(f"{words} seed=5 batching.max_batch=4")
    assert (other.exit_code, other.stdout) == (2, "")
    assert "r: holds a finished run of another config, which differs in batching.max_batch, seed;" in other.stderr
    assert content(tmp_path / "r") == kept
    replaced = run(f"{SMALL} hydra.run.dir=r seed=5")
    assert replaced.exit_code == 0
    assert replaced.line("r: ") == "r: the earlier run in there is replaced"


def test_a_job_that_takes_too_long_is_ended_and_the_sweep_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour passes when the first job has finished its first repeat."""
    measured = tmp_path / "s/0/summary.parquet"
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: 3600.0 * measured.exists()))
    ran = run(f"-m {SMALL} repeats=3,1 job_timeout_s=600 hydra.sweep.dir=s")
    assert ran.exit_code == 1
    late, fine = (results.read_manifest(tmp_path / f"s/{job}") for job in (0, 1))
    assert (late["status"], late["repeats_done"], fine["status"], fine["repeats_done"]) == ("failed", 1, "ok", 1)
    assert late["error"].startswith("timeout: longer than job_timeout_s=600 (at: ")
    assert ran.stderr == f"error: {late['error']}\n"
    (row,) = results.read_summaries([tmp_path / "s/0"])
    assert (row["repeat"], row["status"]) == (0, "ok")
    assert 0 in set(pd.read_parquet(tmp_path / "s/0/launches.parquet")["repeat"])
    assert not list(tmp_path.rglob(".*"))


def test_a_mistake_of_the_program_ends_its_job_only(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, called = run_module.execute, []

    def once(*arguments: Any) -> Any:
        called.append(arguments)
        if len(called) == 1:
            raise ZeroDivisionError("nobody thought of it")
        return real(*arguments)

    monkeypatch.setattr(run_module, "execute", once)
    ran = run(f"-m {SMALL} seed=1,2 hydra.sweep.dir=s")
    assert ran.exit_code == 1
    text = "ZeroDivisionError: nobody thought of it; see traceback.txt in s/0"
    assert ran.stderr == f"error: {text}\n"
    assert statuses(tmp_path / "s") == ["failed", "ok"]
    manifest = results.read_manifest(tmp_path / "s/0")
    assert (manifest["status"], manifest["error"]) == ("failed", text)
    assert "in once" in (tmp_path / "s/0/traceback.txt").read_text()


def test_an_interrupted_sweep_is_taken_up_again(run: Run, tmp_path: Path) -> None:
    words = f"-m {SMALL} repeats=1,10000,2 hydra.sweep.dir=s"
    call = [sys.executable, "-m", "runner", *words.split()]
    with subprocess.Popen(
        call,
        cwd=tmp_path,
        env=environ_of(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as victim:
        limit = time.monotonic() + PATIENCE_S
        while not (tmp_path / "s/1/summary.parquet").exists():
            assert victim.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.02)
        os.killpg(victim.pid, signal.SIGINT)
        stdout, _ = victim.communicate(timeout=PATIENCE_S)
    assert victim.returncode == 130
    about = sweep_json(tmp_path / "s")
    assert (about["status"], about["exit_code"], statuses(tmp_path / "s")) == (
        "interrupted",
        130,
        ["ok", "interrupted", "not run"],
    )
    assert about["counts"] == {"ok": 1, "interrupted": 1, "not run": 1}
    first, *_, last = about["jobs"]
    assert last == {
        "job": 2,
        "overrides": [*first["overrides"][:-1], "repeats=2"],
        "folder": "",
        "config_hash": None,
        "status": "not run",
        "error": None,
        "exit_code": 0,
        "same_as": None,
        "objective": None,
    }
    assert not (tmp_path / "s/2").exists()
    assert "sweep: 1 ok, 1 interrupted, 1 not run in s" in stdout.splitlines()
    assert "finish it: the same command with hydra.sweep.dir=s resume=true" in stdout.splitlines()
    assert not list(tmp_path.rglob(".*"))
    kept = content(tmp_path / "s/0")
    again = run(f"{words} resume=true job_timeout_s=0.01")
    assert again.exit_code == 1
    assert statuses(tmp_path / "s") == ["skipped", "failed", "failed"]
    assert content(tmp_path / "s/0") == kept


def test_a_mode_that_ignores_batching_runs_once_and_a_line_a_job_says_so(run: Run, tmp_path: Path) -> None:
    words = f"-m {SMALL} mode=baseline,batched batching.timeout_us=50,150 hydra.sweep.dir=s"
    first = run(words)
    assert statuses(tmp_path / "s") == ["ok", "same", "ok", "ok"]
    assert [job["same_as"] for job in sweep_json(tmp_path / "s")["jobs"]] == [None, 0, None, None]
    objectives = [job["objective"] for job in sweep_json(tmp_path / "s")["jobs"]]
    assert objectives[0] == objectives[1] > 0
    assert not (tmp_path / "s/1").exists()
    assert first.line("job 1 (2 of 4): ").endswith(
        "mode=baseline batching.timeout_us=150: the same work as job 0, which stands for it"
    )
    assert first.line("job 3 (4 of 4): mode=batched batching.timeout_us=150: batched: ").endswith(" s")
    assert first.stdout.count("device: cpu") == 1, "a notice appears once"
    table = [line.split() for line in first.stdout.splitlines() if line.startswith("    ")]
    assert [row[:3] for row in table if row and row[0].isdigit()] == [
        ["0", "batching.timeout_us=50", "baseline"],
        ["2", "batching.timeout_us=50", "batched"],
        ["3", "batching.timeout_us=150", "batched"],
    ]
    assert "sweep: 3 ok, 1 same in s" in first.stdout.splitlines()

    run(f"{words} resume=true")
    assert statuses(tmp_path / "s") == ["skipped", "same", "skipped", "skipped"]


def test_a_finished_job_keeps_its_results_beside_its_twin(run: Run, tmp_path: Path) -> None:
    words = f"-m {SMALL} mode=baseline hydra.sweep.dir=s"
    run(f"{words} batching.timeout_us=150")
    (tmp_path / "s/0").rename(tmp_path / "s/1")
    run(f"{words} batching.timeout_us=50,150 resume=true")
    again = run(f"{words} batching.timeout_us=50,150 resume=true")
    assert statuses(tmp_path / "s") == ["skipped", "skipped"]
    assert [job["same_as"] for job in sweep_json(tmp_path / "s")["jobs"]] == [None, None]
    assert "sweep: 2 skipped in s" in again.stdout.splitlines()


def test_a_setting_that_does_not_resolve_refuses_its_job(run: Run, tmp_path: Path) -> None:
    ran = run(f"-m {SMALL} seed=${{nothing}},1 hydra.sweep.dir=s")
    assert ran.exit_code == 2
    assert "nothing" in ran.stderr
    assert statuses(tmp_path / "s") == ["refused", "ok"]
    assert results.read_manifest(tmp_path / "s/0")["status"] == "refused"

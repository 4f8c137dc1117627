"""Ctrl-C once and twice, SIGTERM, SIGHUP: to the group, as a terminal and `timeout` send them, and to one process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from support.processes.own_process import environ_of
from support.processes.own_run import LONG, SHORT, Victim, assert_nothing_left, eventually, on_linux

from launchopt.recording import results

SECONDS = f"{SHORT} workload.commands=300000".replace("batched", "baseline")  # a repeat takes about a second


def without_announcement(stderr: str) -> str:
    """A repeat can be over before it is said that it will be finished."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not (line.startswith("finishing ") and line.endswith(" stops now\n")))


def assert_kept(run: Victim) -> int:
    """The finished repeats are there, whole; how many."""
    manifest, folder = run.manifest(), run.results_folder()
    done = int(manifest["repeats_done"])
    assert manifest["status"] == "interrupted"
    rows = results.read_summaries([folder]) if done else []
    assert [row["repeat"] for row in rows] == list(range(done))
    assert {row["status"] for row in rows} <= {"ok"}
    if done:
        assert set(pd.read_parquet(folder / "launches.parquet")["repeat"]) >= set(range(done))
    assert not list(folder.glob(".*"))
    assert_nothing_left(run)
    return done


@on_linux
def test_ctrl_c_once_finishes_the_repeat_and_keeps_it(victim: Callable[[str], Victim]) -> None:
    run = victim(SECONDS)
    run.in_the_middle()
    os.killpg(run.process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    exit_code, stderr = run.end()
    assert exit_code == 130
    done = assert_kept(run)
    assert done >= 1, "the repeat under way was finished"
    announced = f"finishing baseline {done}/10000; Ctrl-C again stops now\n"
    assert stderr == f"{announced}error: interrupted; {done} finished repeats are in {run.results_folder()}\n"


@on_linux
@pytest.mark.parametrize(
    ("whom", "number"),
    [
        ("group", signal.SIGTERM),
        ("group", signal.SIGHUP),
        ("consumer", signal.SIGTERM),
    ],
)
def test_finished_repeats_are_kept(number: signal.Signals, whom: str, victim: Callable[[str], Victim]) -> None:
    run = victim(SHORT)
    eventually(lambda: run.repeats_done() >= 1)
    if whom == "group":
        os.killpg(run.process.pid, number)
    else:
        run.children()[0].send_signal(number)
    exit_code, stderr = run.end()
    assert exit_code == 128 + number
    done = assert_kept(run)
    assert done >= 1
    expected = f"error: interrupted by {number.name}; {done} finished repeats are in {run.results_folder()}\n"
    assert without_announcement(stderr) == expected


@on_linux
def test_an_interrupted_sweep_stops_there(victim: Callable[[str], Victim]) -> None:
    run = victim(f"-m {SHORT},1".replace("repeats=", "repeats=1,"))
    sweep = run.folder / "outputs/sweep"
    eventually(lambda: run.children() and list(sweep.glob("*/1/summary.parquet")))
    os.killpg(run.process.pid, signal.SIGTERM)
    exit_code, message = run.end()
    assert exit_code == 143
    assert message.startswith("error: interrupted by SIGTERM; ")
    assert message.count("\n") == 1
    (about,) = [json.loads(path.read_text()) for path in sweep.glob("*/sweep.json")]
    assert (about["status"], about["exit_code"]) == ("interrupted", 143)
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
    eventually(lambda: run.process.poll() is not None or when(run))
    while run.process.poll() is None:
        os.killpg(run.process.pid, signal.SIGINT)
        time.sleep(0.05)
    exit_code, stderr = run.end()
    assert exit_code == 130
    assert without_announcement(stderr) == f"error: interrupted; 0 finished repeats are in {run.results_folder()}\n"
    assert assert_kept(run) == 0


def handles(pid: int, number: signal.Signals) -> bool:
    """Return whether the process has a handler for the signal."""
    with Path(f"/proc/{pid}/status").open() as status:
        caught = next(line.split()[1] for line in status if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> number - 1 & 1)


@on_linux
@pytest.mark.parametrize("name", ["runner", "runner.report", "launchopt"])
def test_a_signal_before_anything_is_loaded_ends_the_command_with_a_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "launchopt").write_text("from runner.__main__ import main\nmain()\n")  # what pip installs
    words = [str(tmp_path / name)] if name == "launchopt" else ["-m", name]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for _ in range(20):  # a busy machine may look only after the command has printed its usage and ended
        with subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=environ_of(), **pipes) as process:
            eventually(lambda: process.poll() is not None or handles(process.pid, signal.SIGTERM))
            process.send_signal(signal.SIGTERM)
            outputs = process.communicate()
        if process.returncode == 143:
            break
    assert (process.returncode, *outputs) == (143, "", "error: interrupted by SIGTERM\n")
    assert [path.name for path in tmp_path.iterdir()] == ["launchopt"]

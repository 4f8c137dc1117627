"""scripts/nsys_compare.sh with a fake nsys, and with the real one if it is installed."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.results.profiler_bench import NOWHERE, Bench, is_running, needs_bash

pytestmark = needs_bash


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, "nsys_compare.sh")


def test_help_needs_nothing(bench: Bench) -> None:
    done = bench.run("--help", PATH=NOWHERE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")
    assert "no headline times" in done.stdout


def test_without_nsys_it_says_how_to_get_it(bench: Bench) -> None:
    done = bench.run("batched", "graph", PATH=NOWHERE)
    assert done.returncode == 3
    assert "developer.nvidia.com/nsight-systems" in done.stderr
    assert not bench.out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "two modes are needed"),
        (["batched"], "two modes are needed"),
        (["batched", "workload=gemv_micro"], "MODE=workload=gemv_micro: the name of a mode"),
        (["batched", "../graph"], "MODE=../graph"),
        (["batched", "graph", "mode=pdl"], "mode=pdl: set by this script"),
        (["batched", "graph", "against=[baseline]"], "against=[baseline]: set by this script"),
        (["batched", "graph", "hydra.run.dir=here"], "hydra.run.dir=here: set by this script"),
        (["batched", "graph", "-m"], "one run at a time"),
        (["batched", "graph", "timing=cupti"], "CUPTI accepts one tracer"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(bench: Bench, arguments: list[str], message: str) -> None:
    done = bench.run(*arguments, FAKE="0")
    assert done.returncode == 2
    assert message in done.stderr
    assert not bench.notes.exists()
    assert not bench.out.exists()


@pytest.mark.parametrize("modes", [("batched", "graph"), ("graph", "graph")])
def test_each_mode_runs_alone_in_a_folder_of_its_own(bench: Bench, modes: tuple[str, str]) -> None:
    done = bench.run(*modes, "model.name=a b", FAKE="0")
    assert done.returncode == 0, done.stderr
    calls = bench.notes.read_text().splitlines()
    sides = [f"{bench.out}/a-{modes[0]}", f"{bench.out}/b-{modes[1]}"]
    for mode, side, profile, export in zip(modes, sides, calls[0:4:2], calls[1:4:2], strict=True):
        assert profile.startswith("profile -t cuda,nvtx --cuda-graph-trace=node -s none --cpuctxsw=none ")
        assert profile.endswith(
            f"-o {side}/profile {bench.folder}/fake_python -m runner mode={mode} model.name=a b "
            f"hydra.run.dir='{side}/run'"
        )
        assert export.endswith(f"--output {side}/profile.sqlite {side}/profile.nsys-rep")
    assert calls[4:] == [
        f"python -m runner.nsys_compare --output {bench.out}/compare.parquet "
        f"{modes[0]}={sides[0]}/profile.sqlite {modes[1]}={sides[1]}/profile.sqlite"
    ]


def test_the_runs_folder_is_quoted_for_hydra(bench: Bench) -> None:
    assert bench.run("batched", "graph", FAKE="0", NSYS_OUT="it's here").returncode == 0
    assert f"hydra.run.dir='{bench.folder}/it\\'s here/a-batched/run'" in bench.notes.read_text()


@pytest.mark.parametrize(("fake", "code", "profiles"), [("5", 5, 1), ("fail2", 7, 2)])
def test_a_failed_run_is_not_compared(bench: Bench, fake: str, code: int, profiles: int) -> None:
    done = bench.run("batched", "graph", FAKE=fake)
    assert done.returncode == code
    assert f"mode={('batched', 'graph')[profiles - 1]}: ended with exit code {code}" in done.stderr
    calls = bench.notes.read_text().splitlines()
    assert sum(call.startswith("profile ") for call in calls) == profiles
    assert not any(call.startswith("python ") for call in calls)


def test_no_report_is_a_failure(bench: Bench) -> None:
    done = bench.run("batched", "graph", FAKE="silent")
    assert done.returncode == 1
    assert "nsys left no report" in done.stderr


def test_an_earlier_profile_is_never_overwritten(bench: Bench) -> None:
    assert bench.run("batched", "graph", FAKE="0").returncode == 0
    done = bench.run("batched", "graph", FAKE="0")
    assert done.returncode == 2
    assert "another folder" in done.stderr


def test_the_time_limit_ends_nsys_and_the_second_run_is_not_begun(bench: Bench) -> None:
    done = bench.run("batched", "graph", FAKE="hang", NSYS_TIMEOUT_S="1")
    assert done.returncode == 124
    assert "NSYS_TIMEOUT_S" in done.stderr
    assert not is_running(int(bench.pid_file.read_text()))
    assert not (bench.out / "b-graph").exists()


def test_an_interrupt_ends_everything(bench: Bench) -> None:
    with bench.start("batched", "graph", FAKE="hang") as process:
        while not (bench.pid_file.exists() and bench.pid_file.read_text()):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: ending nsys and the run" in message
    assert not is_running(int(bench.pid_file.read_text()))


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
def test_two_modes_under_the_real_nsys(bench: Bench) -> None:
    (bench.folder / "nsys").unlink()  # the fake
    job = ("workload=gemv_micro", "workload.commands=600", "workload.cache=hot", "device=cpu")
    done = bench.run("batched", "baseline", *job, PYTHON=sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("ranges")]
    assert [line[-3:-1] for line in lines] == [["75", "600"]]  # batches of 8 on the CPU, without the warm-up run
    rows = pq.read_table(bench.out / "compare.parquet").to_pylist()
    assert {(row["side"], row["mode"]) for row in rows} == {("A", "batched"), ("B", "baseline")}
    assert (bench.out / "b-baseline/run/summary.parquet").exists()

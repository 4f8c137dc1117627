"""scripts/ncu_profile.sh with a fake ncu."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from support.results.profiler_bench import NOWHERE, Bench, is_running, needs_bash

pytestmark = needs_bash


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, "ncu_profile.sh")


def test_help_needs_nothing(bench: Bench) -> None:
    done = bench.run("--help", PATH=NOWHERE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")


def test_without_ncu_it_says_how_to_get_it(bench: Bench) -> None:
    done = bench.run("mode=batched", PATH=NOWHERE)
    assert done.returncode == 3
    assert "ncu not found: install Nsight-Compute (developer.nvidia.com/nsight-compute" in done.stderr
    assert not bench.out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--launches", "0"], "--launches 0: a whole number from 1"),
        (["--launches", "many"], "--launches many: a whole number"),
        (["--skip", "-1"], "--skip -1: a whole number from 0"),
        (["--launches"], "--launches: needs a value"),
        (["--range"], "--range: needs a value"),
        (["--bench"], "--bench: needs a value"),
        (["--bench", "stream", "mode=batched"], "mode=batched: --bench takes no overrides"),
        (["--set", "full"], "--set: no such option"),
        (["-m", "mode=batched,graph"], "-m: no such option"),
        (["mode=batched", "--multirun"], "one run at a time"),
        (["hydra.run.dir=here"], "hydra.run.dir=here: set by this script"),
        (["timing=torch"], "CUPTI accepts one tracer, and here that is ncu"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(bench: Bench, arguments: list[str], message: str) -> None:
    done = bench.run(*arguments, FAKE="0")
    assert done.returncode == 2
    assert message in done.stderr
    assert not bench.notes.exists()
    assert not bench.out.exists()


def test_every_launchopt_range_by_default_and_the_exit_code_passes_through(bench: Bench) -> None:
    done = bench.run("mode=batched", "model.name=a b", FAKE="7")
    assert done.returncode == 7
    profile, imported, table = bench.notes.read_text().splitlines()
    assert profile == (
        "<--target-processes><all><--nvtx><--nvtx-include><regex:launchopt@.+/><--launch-skip><0><--launch-count><3>"
        "<--section><SpeedOfLight><--section><MemoryWorkloadAnalysis><--section><LaunchStats><--section><Occupancy>"
        "<--metrics><dram__bytes_read.sum>"
        f"<--clock-control><none><--log-file><{bench.out}/ncu.log><--export><{bench.out}/profile>"
        f"<{bench.folder}/fake_python><-m><runner><mode=batched><model.name=a b><hydra.run.dir='{bench.out}/run'>"
    )
    assert imported == f"<--import><{bench.out}/profile.ncu-rep><--csv><--page><raw><--print-units><base>"
    assert table == f"python -m runner.ncu {bench.out}/profile.csv --output {bench.out}/profile.parquet"
    assert (bench.out / "profile.csv").read_text() == '"ID"\n'


def test_one_named_launch(bench: Bench) -> None:
    options = ("--launches", "1", "--skip", "2", "--range", "graph 64x1 [a]@/b,c*+ fp32", "--kernel", "gemv|gemm")
    assert bench.run(*options, "mode=graph", FAKE="0").returncode == 0
    message = bench.notes.read_text()
    # A backslash escapes ncu's special characters in a name. The slash at the end marks a push/pop range.
    assert r"<--nvtx-include><launchopt@graph 64x1 \[a\]\@\/b\,c\*\+ fp32/>" in message
    assert "<--launch-skip><2><--launch-count><1><--kernel-name><regex:gemv|gemm>" in message


def test_a_benchmark_in_place_of_a_run(bench: Bench) -> None:
    assert bench.run("--kernel", "^persistent$", "--bench", "stream", FAKE="0").returncode == 0
    program = f"<-m><runner.bench><stream><--device><cuda><--repeats><1><--output><{bench.out}/run>"
    assert bench.notes.read_text().splitlines()[0].endswith(f"<{bench.folder}/fake_python>{program}")


def test_counters_that_may_not_be_read(bench: Bench) -> None:
    done = bench.run("mode=batched", FAKE="refused")
    assert done.returncode == 4
    assert "ERR_NVGPUCTRPERM" in done.stderr
    assert "NVreg_RestrictProfilingToAdminUsers=0" in done.stderr
    assert not (bench.out / "profile.csv").exists()


def test_no_matching_launch(bench: Bench) -> None:
    done = bench.run("mode=batched", FAKE="nothing")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "==WARNING== No kernels were profiled."
    assert "no kernel of the run matched" in done.stderr


def test_a_report_that_cannot_be_read(bench: Bench) -> None:
    done = bench.run("mode=batched", FAKE="0", FAKE_IMPORT="9")
    assert done.returncode == 9
    assert "ncu could not read" in done.stderr


def test_an_earlier_profile_is_never_overwritten(bench: Bench) -> None:
    assert bench.run(FAKE="0").returncode == 0
    done = bench.run(FAKE="0")
    assert done.returncode == 2
    assert f"NCU_OUT={bench.out}: holds a profile already" in done.stderr


def test_the_time_limit_ends_ncu(bench: Bench) -> None:
    done = bench.run(FAKE="hang", NCU_TIMEOUT_S="1")
    assert done.returncode == 124
    assert "ncu did not finish within 1 s and was ended; NCU_TIMEOUT_S sets the limit" in done.stderr
    assert not is_running(int(bench.pid_file.read_text()))


def test_an_interrupt_ends_everything(bench: Bench) -> None:
    with bench.start(FAKE="hang") as process:
        while not (bench.pid_file.exists() and bench.pid_file.read_text()):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert not is_running(int(bench.pid_file.read_text()))

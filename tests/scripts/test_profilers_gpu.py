"""The profilers on a GPU: the scripts for nsys and ncu, and timing=torch. Their counts must agree.

The number of commands is a multiple of the batch size, and the timeout is long. So all batches are full, and every run
of a job makes the same launches.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.processes.own_process import alone
from support.results.profiler_bench import BASH, SCRIPTS

from launchopt.analysis.profiles.nsys import read_profile
from launchopt.recording.results import read_summaries
from runner.profiles.nsys_agree import main as agree

pytestmark = pytest.mark.gpu

ROOT = SCRIPTS.parent
needs_nsys = pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
needs_ncu = pytest.mark.skipif(shutil.which("ncu") is None, reason="ncu is not installed")
FULL = "workload=gemv_micro device=cuda batching.max_batch=512 batching.timeout_us=1000000"
BATCHES, REPEATS = 128, 3  # 32 ms of GPU time per repeat on an H200, so that the jitter of single kernels averages out
LONG = f"{FULL} workload.commands={512 * BATCHES} repeats={REPEATS}"
SMALL = f"{FULL} workload.commands=4096"
COUNTERS_REFUSED = 4  # exit code of ncu_profile.sh


def script(name: str, *arguments: str, out: Path, codes: tuple[int, ...] = (0,)) -> int:
    """Run one of the scripts with output folder `out`. Return its exit code, which must be one of `codes`."""
    environ = os.environ | {"PYTHON": sys.executable, "NSYS_OUT": str(out), "NCU_OUT": str(out)}
    call = [str(BASH), str(SCRIPTS / name), *arguments]
    done = subprocess.run(call, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode in codes, done.stdout + done.stderr
    return done.returncode


def run(arguments: str, folder: Path) -> Path:
    """Run without an external profiler in `folder`; return the folder."""
    call = [sys.executable, "-m", "runner", *alone(arguments.split()), f"hydra.run.dir={folder}"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module", params=["batched", "graph"])
def profile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return a mode and nsys's SQLite export of a long run with it."""
    mode: str = request.param
    out = tmp_path_factory.mktemp(mode)
    script("nsys_profile.sh", f"mode={mode}", *LONG.split(), f"hydra.run.dir={out}/run", out=out)
    return mode, out / "profile.sqlite"


@needs_nsys
def test_the_join_finds_every_batch_and_its_kernels(profile: tuple[str, Path]) -> None:
    mode, file = profile
    found = read_profile(file, mode)
    assert found.inside.ranges == BATCHES * REPEATS
    assert found.inside.kernels >= BATCHES * REPEATS
    assert found.inside.kernels < found.total.kernels  # the warm-up run lies outside of all ranges
    assert found.untraced_graphs == 0
    assert found.unfinished_ranges == 0
    assert found.inside.launch_delay_us_p50 is not None


@needs_nsys
def test_the_join_agrees_with_nsys(profile: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Within one profile, kernel counts are equal, and kernel times differ by at most 1%."""
    assert agree([str(profile[1])]) == 0, capsys.readouterr().out


@needs_nsys
@pytest.mark.skipif(find_spec("cupti") is None, reason="needs cupti-python")
def test_cupti_in_process_agrees_with_nsys(
    profile: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kernel counts of two runs are equal; GPU busy differs by at most 1%. CUPTI and nsys cannot share a run."""
    mode, file = profile
    traced = run(f"{LONG} mode={mode} timing=cupti", tmp_path / "traced")
    assert all(row["traced"] and row["kernels"] for row in read_summaries([traced]))
    assert agree([str(file), "--run", str(traced)]) == 0, capsys.readouterr().out


@needs_nsys
def test_two_modes_side_by_side(tmp_path: Path) -> None:
    script("nsys_compare.sh", "batched", "graph", *SMALL.split(), out=tmp_path / "compare")
    rows = pq.read_table(tmp_path / "compare/compare.parquet").to_pylist()
    for mode in ("batched", "graph"):
        mine = [row for row in rows if row["name"].startswith(f"{mode} ")]
        assert {row["mode"] for row in mine} == {mode}
        assert sum(row["ranges"] for row in mine) == 4096 // 512
        assert all(row["kernels"] >= row["ranges"] and row["gpu_busy_ms"] > 0 for row in mine)
    assert all(row["verified"] for row in read_summaries([tmp_path / "compare/a-batched/run"]))


@needs_ncu
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("batched", ["--launches", "2"]),
        ("batched", ["--launches", "2", "--skip", "1", "--range", "batched 64x1x8192 fp32"]),
        ("graph", ["--launches", "2"]),
    ],
)
def test_ncu_replays_the_launches_that_were_asked_for(mode: str, options: list[str], tmp_path: Path) -> None:
    out = tmp_path / "ncu"
    overrides = [f"mode={mode}", *SMALL.split()]
    if script("ncu_profile.sh", *options, *overrides, out=out, codes=(0, COUNTERS_REFUSED)):
        pytest.skip("the GPU's counters may not be read here")
    kernels = pq.read_table(out / "profile.parquet").to_pylist()
    assert len(kernels) == 2
    for kernel in kernels:
        assert kernel["name"]
        assert kernel["duration_us"] > 0
        assert kernel["dram_gb_per_s"] > 0
        assert 0 < kernel["dram_percent"] <= 100
        assert 0 < kernel["occupancy_percent"] <= 100
        assert kernel["registers"] > 0
        assert kernel["grid"].count("x") == kernel["block"].count("x") == 2
    assert all(row["verified"] and row["traced"] for row in read_summaries([out / "run"]))  # replays keep results


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install -e '.[torch]'")
def test_torch_profiler_sees_the_kernels_of_a_torch_mode(tmp_path: Path) -> None:
    folder = run(f"{SMALL} mode=torch_eager repeats=2 timing=torch", tmp_path / "run")
    assert all(row["traced"] and row["verified"] for row in read_summaries([folder]))
    for repeat in range(2):
        with gzip.open(folder / f"torch-torch_eager-{repeat}.json.gz", "rt") as trace:
            events = json.load(trace)["traceEvents"]
        categories = [event.get("cat") for event in events]
        assert categories.count("kernel") >= 4096 // 512
        assert "cuda_runtime" in categories or "cuda_driver" in categories
        assert "cpu_op" in categories

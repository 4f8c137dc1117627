"""Requests on a GPU: the assertions of `test_requests`, where order, feedback and sampling are CUDA's."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT
from support.processes.own_process import alone, without_progress

from launchopt.recording import results

pytestmark = pytest.mark.gpu

DECODE = (
    "device=cuda model=tiny workload=decode workload.cache=hot mode=batched against=[baseline] repeats=1 "
    "record.launches=none"
)
SIDE_BY_SIDE = f"{DECODE} workload.requests=6 workload.tokens=8 workload.prompt_tokens=40"
CHUNKED = "scheduler=continuous scheduler.chunk_tokens=16 scheduler.budget_tokens=24 scheduler.max_running=3"


def run(arguments: str, folder: Path) -> tuple[int, str, list[results.Row]]:
    """Exit code, standard error, rows."""
    call = [sys.executable, "-m", "runner", *alone(arguments.split()), f"hydra.run.dir={folder}"]
    done = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, timeout=300)
    return done.returncode, without_progress(done.stderr), results.read_summaries([folder])


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("timing", ["host", "events"])
def test_order_is_kept_and_every_token_checked(dtype: str, timing: str, tmp_path: Path) -> None:
    code, error, rows = run(f"{SIDE_BY_SIDE} workload.dtype={dtype} timing={timing}", tmp_path)
    assert (code, error) == (0, "")
    assert [row["ordering"] for row in rows] == ["per_request"] * 2
    assert all(row["verified"] and row["commands"] == 6 * 8 * 8 for row in rows)
    launches = {row["mode"]: row["launch_calls"] for row in rows}
    assert launches["batched"] < launches["baseline"] == 6 * 8 * 8


def test_a_broken_order_is_found(tmp_path: Path) -> None:
    code, error, rows = run(f"{SIDE_BY_SIDE} ordering=violated", tmp_path)
    assert code == 1
    assert "outputs wrong (first: token" in error
    assert {row["mode"]: row["verified"] for row in rows} == {"baseline": True, "batched": False}


@pytest.mark.parametrize("sampling", ["greedy", "top_k", "top_p"])
def test_the_same_ids_by_every_mode_wherever_they_are_sampled(sampling: str, tmp_path: Path) -> None:
    """And however the prompts are cut: in fp32, where near ties are rare."""
    hashes = set()
    for number, more in enumerate(["sampling.where=gpu", "sampling.where=cpu", CHUNKED]):
        code, error, rows = run(f"{SIDE_BY_SIDE} sampling={sampling} {more}", tmp_path / str(number))
        assert (code, error) == (0, "")
        assert all(row["verified"] and row["sampling_ms"] > 0 for row in rows)
        hashes |= {row["token_hash"] for row in rows}
    assert len(hashes) == 1


def test_requests_that_arrive_at_random(tmp_path: Path) -> None:
    arrivals = "arrival=poisson arrival.rate_per_s=200 workload.requests=40 workload.tokens=4 slo.ttft_ms=1000"
    code, error, rows = run(f"{DECODE} {arrivals}", tmp_path)
    assert (code, error) == (0, "")
    assert all(row["verified"] and not row["overloaded"] and row["goodput_per_s"] > 0 for row in rows)

"""Runs whose GPUs split each layer, on two GPUs of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.config.composing import planned

from launchopt.devices.peers import nccl_library
from launchopt.recording import results
from runner.run import children
from runner.run.run import execute
from runner.verdict import verdict

pytestmark = pytest.mark.gpu
SPLIT = ("device=cuda", "device.gpus=[0,1]", "parallel.tensor=2")
REDUCED = ("engine+reduce+graph", "engine+silu+reduce+graph+own+pdl")
MODES = ("baseline", "coalesced", "engine", "engine+graph", "engine+silu+graph+own+pdl", "engine+reduce", *REDUCED)


@pytest.fixture(autouse=True)
def two_gpus() -> None:
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")


def ran(folder: Path, *words: str) -> list[results.Row]:
    """Run a plan; return the rows of summary.parquet."""
    folder.mkdir(exist_ok=True)
    try:
        execute(planned(*words), folder, list(words))
    finally:
        children.dismiss()
    return results.read_summaries([folder])


@pytest.mark.parametrize("requests", [1, 16])
def test_every_mode_computes_the_whole_model(requests: int, tmp_path: Path) -> None:
    words = ("workload=layer", "model=llama_3_2_1b", "workload.layers=2", f"workload.requests={requests}")
    more = ("workload.tokens=8", "workload.prompt_tokens=20", "workload.dtype=bf16", "sampling=greedy", "repeats=2")
    rows = ran(tmp_path, *words, *more, "mode=graph", f"against=[{','.join(MODES)}]", *SPLIT)
    assert {row["mode"] for row in rows} == {*MODES, "graph"}
    assert {(row["status"], row["verified"], row["tensor"]) for row in rows} == {("ok", True, 2)}
    assert all(row["collectives"] >= 2 * 2 * 8 for row in rows)
    assert all(0 < row["all_reduce_wait_us"] <= row["all_reduce_us"] for row in rows)
    assert {row["as_audited_share"] for row in rows} == {1.0}


@pytest.mark.parametrize(("requests", "dtype"), [(1, "bf16"), (4, "fp32")])
def test_nccl_gives_the_tokens_of_our_own_all_reduce(requests: int, dtype: str, tmp_path: Path) -> None:
    """Sums depend on which requests share a batch; with fp32 not so much that tokens would."""
    if nccl_library.library_path() is None:
        pytest.skip("needs NCCL")
    words = ("workload=layer", "model=llama_3_2_1b", "workload.layers=2", f"workload.requests={requests}")
    more = ("workload.tokens=8", "workload.prompt_tokens=20", f"workload.dtype={dtype}", "sampling=greedy", "repeats=2")
    modes = ("mode=graph", "against=[baseline,engine,engine+graph]")
    own = ran(tmp_path / "own", *words, *more, *modes, *SPLIT)
    nccl = ran(tmp_path / "nccl", *words, *more, *modes, *SPLIT, "parallel.all_reduce=nccl")
    assert {(row["status"], row["verified"], row["collectives"]) for row in nccl} == {("ok", True, None)}
    assert {(row["mode"], row["token_hash"]) for row in nccl} == {(row["mode"], row["token_hash"]) for row in own}


def test_a_trace_has_the_kernels_and_the_skew_of_both_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cupti")
    words = ("workload=layer", "model=tiny", "workload.layers=2", "workload.requests=2", "workload.tokens=8")
    rows = ran(
        tmp_path, *words, "mode=engine", "mode.submit=graph", "against=[baseline]", "repeats=2", "timing=cupti", *SPLIT
    )
    assert {(row["status"], row["kernels_dropped"]) for row in rows} == {("ok", 0)}
    assert all(row["kernels"] > 0 and row["gpu_busy_ms"] <= row["wall_ms"] for row in rows)
    capsys.readouterr()
    assert verdict([tmp_path], output=tmp_path / "verdict.json") == 0
    print(capsys.readouterr().out)
    found = json.loads((tmp_path / "verdict.json").read_text())["all_reduces"]
    for row in rows:
        each = next(one for one in found if (one["mode"], one["gpu"]) == (row["mode"], None))
        assert (each["timed"], each["all_reduces"]) == (2 * row["collectives"],) * 2
        assert each["transfer_p50_us"] > 0


def test_the_clock_of_both_gpus_is_read(tmp_path: Path) -> None:
    words = ("workload=layer", "model=llama_3_2_1b", "workload.layers=4", "workload.requests=1", "workload.tokens=1000")
    (row,) = ran(tmp_path, *words, "mode=engine", "mode.submit=graph", "against=[]", "repeats=1", *SPLIT)
    gpus = results.read_gpus([tmp_path])
    clocks = [each["sm_clock_mhz"] for each in gpus]
    assert len(clocks) == 2
    assert row["sm_clock_mhz"] == min(clocks) > 200
    assert row["throttled"] is not None


def test_fp32_gives_the_tokens_of_one_gpu(tmp_path: Path) -> None:
    words = ("workload=layer", "model=tiny", "workload.layers=2", "workload.requests=3", "workload.tokens=8")
    more = ("workload.replicas=2", "sampling=greedy", "mode=graph", "against=[]", "repeats=1")
    (alone,) = ran(tmp_path / "one", *words, *more, "device=cuda")
    (split,) = ran(tmp_path / "two", *words, *more, *SPLIT)
    assert split["status"] == alone["status"] == "ok"
    assert split["token_hash"] == alone["token_hash"]

"""Runs whose GPUs split each layer, on two GPUs of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.composing import planned

from launchopt.recording import results
from runner.run import children
from runner.run.run import execute

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


def test_fp32_gives_the_tokens_of_one_gpu(tmp_path: Path) -> None:
    words = ("workload=layer", "model=tiny", "workload.layers=2", "workload.requests=3", "workload.tokens=8")
    more = ("workload.replicas=2", "sampling=greedy", "mode=graph", "against=[]", "repeats=1")
    (alone,) = ran(tmp_path / "one", *words, *more, "device=cuda")
    (split,) = ran(tmp_path / "two", *words, *more, *SPLIT)
    assert split["status"] == alone["status"] == "ok"
    assert split["token_hash"] == alone["token_hash"]

"""Models that four GPUs split, requests that four GPUs share, and all-reduces between four GPUs of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.composing import planned

from launchopt.devices.peers import nccl_library
from launchopt.recording import results
from runner.bench.__main__ import main
from runner.bench.figures import read
from runner.run import children
from runner.run.run import execute

pytestmark = pytest.mark.gpu
GPUS = 4
STACKS = ("baseline", "coalesced", "engine", "engine+graph", "engine+silu+graph+own+pdl")
REDUCED = ("engine+reduce+graph", "engine+silu+reduce+graph+own+pdl")


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < GPUS:
        pytest.skip(f"needs {GPUS} GPUs")


def ran(folder: Path, *words: str) -> tuple[list[results.Row], list[results.Row]]:
    """Run a plan; return the rows of summary.parquet and of gpus.parquet."""
    folder.mkdir(exist_ok=True)
    try:
        execute(planned(*words, "device=cuda"), folder, list(words))
    finally:
        children.dismiss()
    return results.read_summaries([folder]), results.read_gpus([folder])


LAYERS = ("workload=layer", "workload.tokens=8", "workload.prompt_tokens=20", "sampling=greedy", "repeats=2")


@pytest.mark.parametrize(("model", "requests"), [("llama_3_2_1b", 1), ("llama_3_2_1b", 16), ("llama_3_70b", 16)])
def test_every_stack_computes_the_whole_model(model: str, requests: int, tmp_path: Path) -> None:
    words = (*LAYERS, f"model={model}", "workload.layers=2", f"workload.requests={requests}", "workload.dtype=bf16")
    against = f"against=[{','.join((*STACKS, *REDUCED))}]"
    rows, _ = ran(tmp_path, *words, "mode=graph", against, f"parallel.tensor={GPUS}")
    assert {row["mode"] for row in rows} == {*STACKS, *REDUCED, "graph"}
    assert {(row["status"], row["verified"], row["tensor"]) for row in rows} == {("ok", True, GPUS)}
    assert all(0 < row["all_reduce_wait_us"] <= row["all_reduce_us"] for row in rows)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_nccl_is_verified_on_four_gpus(dtype: str, tmp_path: Path) -> None:
    if nccl_library.library_path() is None:
        pytest.skip("needs NCCL")
    words = (*LAYERS, "model=llama_3_2_1b", "workload.layers=4", "workload.requests=4", f"workload.dtype={dtype}")
    more = ("mode=graph", "against=[baseline,engine,engine+graph]", "parallel.all_reduce=nccl")
    rows, _ = ran(tmp_path, *words, *more, f"parallel.tensor={GPUS}")
    assert {(row["status"], row["verified"], row["collectives"]) for row in rows} == {("ok", True, None)}


def test_requests_are_shared_by_four_gpus(tmp_path: Path) -> None:
    words = ("workload=decode", "model=llama_3_2_1b", "workload.layers=2", "workload.requests=16", "workload.tokens=8")
    (row,), gpus = ran(tmp_path, *words, "sampling=greedy", "mode=graph", "against=[]", "repeats=1", _all())
    assert (row["status"], row["verified"], row["gpus"], row["gpu_imbalance"]) == ("ok", True, GPUS, 0)
    assert [each["requests"] for each in gpus] == [4] * GPUS


def test_all_reduces_between_all_gpus_are_measured(tmp_path: Path) -> None:
    assert main(["collectives", "--device", "cuda", "--repeats", "1", "--output", str(tmp_path)]) == 0
    cases = {row["case"] for row in read(tmp_path)}
    assert any(case.startswith("4 KB on ") and case.endswith("one-shot, captured") for case in cases)


def _all() -> str:
    return f"device.gpus=[{','.join(map(str, range(GPUS)))}]"

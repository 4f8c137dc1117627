"""Runs with four and eight consumers on the CPU device, which share the cores of a small machine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.config.composing import planned
from support.thorough import is_thorough

from launchopt.recording import results
from runner.config.schema import Config
from runner.plan import consumers, plan
from runner.plan.job import Job
from runner.run import children
from runner.run.run import execute

CORES = sorted(os.sched_getaffinity(0))
SPIN = "queue.spin_us=20"  # cores are shared: who waits lets others run
MANY = pytest.mark.parametrize("count", [4, 8] if is_thorough() else [4])
HEADS = ("model=tiny", "model.q_heads=8", "model.kv_heads=8", "model.head_dim=16", "workload.layers=2")
REQUESTS = ("workload.tokens=3", "workload.cache=hot", "sampling=greedy", "device=cpu", "against=[]", "repeats=1", SPIN)


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans see eight cores; consumers of those that are not there are pinned to others."""
    real = consumers.jobs_of

    def on_real_cores(job: Job, config: Config) -> tuple[Job, ...]:
        jobs = real(job, config)
        return tuple(
            each if each.pin_cpu is None else replace(each, pin_cpu=CORES[each.pin_cpu % len(CORES)]) for each in jobs
        )

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(plan, "jobs_of", on_real_cores)


def ran(folder: Path, *words: str) -> tuple[results.Row, list[results.Row]]:
    """Run a plan of one repeat; return its row of summary.parquet, and those of gpus.parquet."""
    folder.mkdir(exist_ok=True)
    try:
        execute(planned(*words), folder, list(words))
    finally:
        children.dismiss()
    (row,) = results.read_summaries([folder])
    return row, results.read_gpus([folder])


@MANY
def test_ranks_give_the_tokens_of_one_gpu(count: int, tmp_path: Path) -> None:
    words = ("workload=layer", *HEADS, *REQUESTS, "workload.requests=3", "workload.replicas=2", "mode=graph")
    alone, _ = ran(tmp_path / "one", *words)
    row, gpus = ran(tmp_path / "many", *words, f"parallel.tensor={count}")
    assert (row["status"], row["verified"], row["tensor"]) == ("ok", True, count)
    assert row["token_hash"] == alone["token_hash"]
    assert row["collectives"] == 2 * 2 * 3, "two for each layer of each step"
    assert [each["gpu"] for each in gpus] == [*range(count)]


@MANY
def test_each_request_is_executed_by_one_consumer(count: int, tmp_path: Path) -> None:
    words = ("workload=decode", "model=tiny", *REQUESTS, f"workload.requests={2 * count}", "mode=coalesced")
    row, gpus = ran(tmp_path, *words, f"device.gpus=[{','.join(map(str, range(count)))}]")
    assert (row["status"], row["verified"], row["gpus"], row["gpu_imbalance"]) == ("ok", True, count, 0)
    assert [each["requests"] for each in gpus] == [2] * count
    assert row["producer_cpu_ns_per_command"] > 0


@MANY
def test_independent_commands_are_divided(count: int, tmp_path: Path) -> None:
    words = ("workload=gemv_256", "workload.commands=800", "workload.cache=hot", "mode=batched", "device=cpu")
    more = ("batching.max_batch=20", "against=[]", "repeats=1", SPIN)
    row, gpus = ran(tmp_path, *words, *more, f"device.gpus=[{','.join(map(str, range(count)))}]")
    assert (row["status"], row["commands"], row["gpus"]) == ("ok", 800, count)
    assert {each["commands"] for each in gpus} == {800 // count}
    assert row["producer_cpu_ns_per_command"] > 0

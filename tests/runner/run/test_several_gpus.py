"""Runs with several consumers on the CPU device, each with a core of its own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.config.composing import planned

from launchopt.errors import ConfigError
from launchopt.recording import results
from runner.plan.plan import Plan
from runner.run import children
from runner.run.resume import config_hash
from runner.run.run import execute
from runner.run.several import gpu_rows, merged
from runner.verdict import verdict
from runner.worker.messages import RepeatResult

CORES = sorted(os.sched_getaffinity(0))[:2]
TWO = f"device.gpus=[{','.join(map(str, CORES))}]"
NO_CORE = max(os.sched_getaffinity(0)) + 1
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
GEMV = ("workload=gemv_256", "workload.commands=300", "workload.cache=hot", "mode=batched", "against=[]", "repeats=1")
STEPS = ("workload=decode", "model=tiny", "workload.requests=5", "workload.tokens=3", "workload.cache=hot")
DECODE = (*STEPS, "mode=baseline", "against=[]", "repeats=1")


def ran(folder: Path, *words: str) -> tuple[list[results.Row], list[results.Row]]:
    """Run a plan; return the rows of summary.parquet and of gpus.parquet."""
    try:
        execute(planned(*words, TWO), folder, list(words))
    finally:
        children.dismiss()
    return results.read_summaries([folder]), results.read_gpus([folder])


@needs_two_cores
def test_two_consumers_execute_each_command_once_and_check_what_they_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,), gpus = ran(tmp_path, *GEMV)
    assert (row["status"], row["verified"], row["gpus"], row["routing"]) == ("ok", True, 2, "round_robin")
    assert (row["commands"], row["checked_commands"], row["compared_share"]) == (300, 300, 1.0)
    assert [(each["gpu"], each["commands"]) for each in gpus] == [(CORES[0], 172), (CORES[1], 128)]
    assert row["launch_calls"] == sum(each["launch_calls"] for each in gpus) == 5, "batches are strided"
    assert row["gpu_imbalance"] == pytest.approx(172 / 150 - 1)
    assert row["wall_ms"] == max(each["wall_ms"] for each in gpus)
    assert row["producer_commands_per_s"] > 0
    assert row["copy_gb_per_s"] is None, "a ceiling of one core is none of two"
    capsys.readouterr()
    assert verdict([tmp_path]) == 0
    printed = capsys.readouterr().out
    assert f"GPU {CORES[1]}: 128 commands" in printed
    assert "no bound is concluded" in printed


@needs_two_cores
@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding"])
def test_steps_of_a_request_stay_on_one_gpu(routing: str, tmp_path: Path) -> None:
    open_loop = ("arrival=poisson", "arrival.rate_per_s=2000") if routing == "least_outstanding" else ()
    (row,), gpus = ran(tmp_path, *DECODE, f"device.routing={routing}", *open_loop, "sampling=greedy")
    assert (row["status"], row["gpus"], row["tokens"]) == ("ok", 2, 15)
    assert sum(each["requests"] for each in gpus) == 5
    assert min(each["requests"] for each in gpus) >= 1
    assert {each["commands"] % each["requests"] for each in gpus} == {0}, "requests are alike"
    assert row["audited_share"] > 0
    assert row["as_audited_share"] in (None, 1.0)


def plan_of_two() -> Plan:
    plan = planned(*GEMV)
    device = replace(plan.config.device, gpus=[4, 7])
    return replace(plan, config=replace(plan.config, device=device))


def found(own: list[int], commands: int = 300, **changed: Any) -> RepeatResult:
    names = {"verified": True, "max_rel_error": 0.1, "tolerance": 1.0, "status": "ok", "above_ceiling": None}
    numbers = dict.fromkeys(("commands", "launch_calls"), len(own)) | {"wall_ms": 2.0, "achieved_gb_per_s": 8.0}
    row = dict.fromkeys(results.SUMMARY.names) | names | numbers | {"achieved_tflops": 1.0} | changed
    mask = np.zeros(commands, np.bool_)
    mask[own] = True
    extra = {"counts": {"pushed": len(own)}, "commands_by_strategy": {"single": len(own)}}
    latency = {"latency": [(1000, 1003, len(own))], "queue_wait": [], "batch_wait": []}
    return RepeatResult(row, extra, latency, np.packbits(mask).tobytes())


def test_counts_add_up_and_the_slowest_gpu_gives_the_time() -> None:
    halves = [found([*range(200)]), found([*range(200, 300)], wall_ms=4.0, latency_max_us=1.5)]
    row = merged(plan_of_two(), halves).row
    assert (row["commands"], row["wall_ms"], row["commands_per_s"], row["status"]) == (300, 4.0, 75_000.0, "ok")
    assert (row["achieved_gb_per_s"], row["latency_samples"]) == (4.0, None)
    assert [each["gpu"] for each in gpu_rows(plan_of_two(), "run", halves)] == [4, 7]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (range(200), range(199, 300), "1 of 300 commands ran on several GPUs"),
        (range(200), range(203, 300), "3 of 300 commands ran on no GPU"),
    ],
)
def test_a_command_that_ran_twice_or_never_is_a_fault(first: range, second: range, why: str) -> None:
    result = merged(plan_of_two(), [found([*first]), found([*second])])
    assert result.row["status"] == f"failed: {why}"
    assert not result.row["verified"]


def test_wrong_outputs_of_one_gpu_fail_the_repeat_and_name_it() -> None:
    bad = found([*range(200, 300)], status="failed: 1 of 100 outputs wrong", verified=False)
    assert merged(plan_of_two(), [found([*range(200)]), bad]).row["status"] == "failed: GPU 7: 1 of 100 outputs wrong"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((f"device.gpus=[{NO_CORE}]",), f"device.gpus=[{NO_CORE}]: {NO_CORE} is no core of this process"),
        (("device.gpus=[0,0]",), "device.gpus=0: is named twice"),
        (("device.gpus=[]",), "device.gpus=[]: must name one GPU or more"),
        (("device.gpus=[-1]",), "device.gpus=-1: out of range"),
        (("device.gpus=[0]", "device.index=1"), "device.index=1: does not go with device.gpus"),
        (("device.gpus=[0]", "device.pin_cpu=0"), "device.pin_cpu=0: does not go with device.gpus"),
        ((TWO, "device.threads=2"), "device.threads=2: must be 1"),
        ((TWO, "record.commands=all"), "record.commands=all: is for one GPU"),
        ((TWO, "workload.commands=1"), "the workload has 1 commands: fewer than GPUs"),
        ((TWO, *STEPS, "mode=batched", "ordering=violated"), "ordering=violated: is for one GPU"),
        (
            (TWO, *STEPS[:2], "workload.users=5", "mode=batched", "ordering=none"),
            "commands of this workload depend on each other",
        ),
        ((TWO, *DECODE, "workload.requests=1"), "the workload has 1 requests to route: fewer than GPUs"),
    ],
)
def test_what_cannot_be_routed_is_refused(words: tuple[str, ...], why: str) -> None:
    if TWO in words and len(CORES) < 2:
        pytest.skip("needs two cores")
    with pytest.raises(ConfigError) as refusal:
        planned(*(() if "workload=decode" in words else GEMV), *words)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_one_gpu_by_name_is_one_consumer_on_its_core(tmp_path: Path) -> None:
    (job,) = planned(*GEMV, f"device.gpus=[{CORES[0]}]").jobs(tmp_path)
    assert (job.consumers, job.pin_cpu, job.threads, job.record_launches) == (1, CORES[0], 1, True)
    (plain,) = planned(*GEMV).jobs(tmp_path)
    assert (plain.consumers, plain.pin_cpu, plain.all_rings) == (1, None, ())


def test_runs_of_earlier_versions_have_the_same_hash() -> None:
    config = planned(*GEMV).composed
    older = config | {"device": {k: v for k, v in config["device"].items() if k not in ("gpus", "routing")}}
    assert config_hash(older) == config_hash(config) != config_hash(planned(*GEMV, "device.gpus=[0]").composed)

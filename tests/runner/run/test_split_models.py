"""Runs whose GPUs split each layer, on the CPU device with two cores."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.config.composing import planned

from launchopt.analysis.several_gpus import gpu_lines
from launchopt.devices.peers import nccl_library
from launchopt.errors import ConfigError
from launchopt.modes import MODES, mode_class
from launchopt.recording import results
from launchopt.report.perfetto import write_timeline
from runner.config.groups import AllReduce
from runner.plan.plan import Plan
from runner.plan.refusal import refusal_of
from runner.plan.split import require_same_batches
from runner.plan.streams import stream_on
from runner.run import children
from runner.run.resume import config_hash
from runner.run.run import execute
from runner.run.several import gpu_rows, merged
from runner.verdict import verdict
from runner.worker.messages import RepeatResult

ALL_CORES = sorted(os.sched_getaffinity(0))
CORES = ALL_CORES[:2]
SPLIT = (f"device.gpus=[{','.join(map(str, CORES))}]", "parallel.tensor=2")
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
LAYERS = ("model=tiny", "workload.layers=2", "workload.requests=3", "workload.tokens=4", "workload.cache=hot")
STEPS = ("workload=layer", *LAYERS, "workload.replicas=2", "against=[]", "repeats=1")
DECODE = (
    "workload=decode",
    *LAYERS[:2],
    "workload.requests=3",
    "workload.tokens=2",
    "workload.cache=hot",
    "against=[]",
)


def ran(folder: Path, *words: str) -> list[results.Row]:
    """Run a plan; return the rows of summary.parquet."""
    folder.mkdir(exist_ok=True)
    try:
        execute(planned(*words), folder, list(words))
    finally:
        children.dismiss()
    return results.read_summaries([folder])


@needs_two_cores
def test_a_split_model_gives_the_tokens_of_one_gpu_in_every_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*STEPS, "workload.prompt_tokens=5", "sampling=greedy", "mode=graph")
    (alone,) = ran(tmp_path / "one", *words)
    others = ("baseline", "coalesced", "engine", "engine+reduce", "graph+norm+reduce", "coalesced+reduce")
    rows = ran(tmp_path / "two", *words, f"against=[{','.join(others)}]", *SPLIT)
    assert [(row["status"], row["verified"], row["gpus"], row["tensor"]) for row in rows] == [("ok", True, 2, 2)] * 7
    assert {row["token_hash"] for row in rows} == {alone["token_hash"]}
    by_mode = {row["mode"]: row for row in rows}
    steps, layers, requests = 4, 2, 3
    assert by_mode["baseline"]["collectives"] == 2 * layers * steps * requests
    assert by_mode["graph"]["collectives"] == by_mode["graph+norm+reduce"]["collectives"] == 2 * layers * steps
    launches = pq.read_table(tmp_path / "two/launches.parquet").to_pylist()
    ops = {mode: {each["op"] for each in launches if each["mode"] == mode} for mode in by_mode}
    assert "all_reduce" in ops["engine"]
    assert not {"all_reduce", "add"} & ops["engine+reduce"], "each is a part of a fused launch"
    assert all(row["all_reduce_us"] > row["all_reduce_wait_us"] > 0 for row in rows)
    assert all(row["copy_gb_per_s"] is None and row["routing"] is None for row in rows)
    assert alone["tensor"] is None
    gpus = results.read_gpus([tmp_path / "two"])
    assert {(row["mode"], row["gpu"], row["requests"]) for row in gpus} == {
        (mode, core, requests) for mode in by_mode for core in CORES
    }
    capsys.readouterr()
    assert verdict([tmp_path / "two"]) == 0
    assert "graph split over 2 GPUs: 16 all-reduces of" in capsys.readouterr().out


@needs_two_cores
def test_without_names_the_first_cores_split_a_model() -> None:
    plan = planned(*DECODE, "mode=baseline", "device=cpu", "parallel.tensor=2")
    assert plan.consumers == tuple(CORES)
    assert planned(*DECODE, "mode=baseline", *SPLIT).consumers == tuple(CORES)


@needs_two_cores
def test_one_gpu_leaves_out_stacks_that_fuse_an_all_reduce() -> None:
    words = (*STEPS, "device=cpu", "mode=engine", "against=[coalesced,coalesced+reduce]")
    alone, split = planned(*words), planned(*words, "parallel.tensor=2")
    assert [arm.label for arm in alone.arms] == ["coalesced", "engine"]
    assert any("1 mode is left out: coalesced+reduce (mode.fuse=reduce: " in notice for notice in alone.notices)
    assert [arm.label for arm in split.arms] == ["coalesced", "coalesced+reduce", "engine"]


@needs_two_cores
def test_the_launches_have_the_order_and_the_time_of_every_all_reduce(tmp_path: Path) -> None:
    (row,) = ran(tmp_path, *DECODE, "mode=baseline", "scheduler=continuous", *SPLIT)
    assert row["status"] == "ok"
    launches = pq.read_table(tmp_path / "launches.parquet").to_pylist()
    assert {each["gpu"] for each in launches} == set(CORES)
    for core in CORES:
        own = [each for each in launches if each["gpu"] == core]
        assert [each["op"] for each in own] == ["gemm", "gemm", "all_reduce"] * 24
        assert [each["launch"] for each in own] == list(range(72))
    assert row["collectives"] == 24
    assert all(each["submit_start_ns"] < each["submit_end_ns"] for each in launches)


@needs_two_cores
def test_verdict_and_timeline_have_the_skew_of_each_all_reduce(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ran(tmp_path, *DECODE, "mode=baseline", "against=[graph]", "scheduler=continuous", *SPLIT)
    calls = sum(row["collectives"] for row in rows if row["mode"] == "baseline")
    capsys.readouterr()
    assert verdict([tmp_path], output=tmp_path / "verdict.json") == 0
    printed = capsys.readouterr().out
    assert f"{calls} of {calls}" in printed
    assert "graph: no all-reduce has times of its own" in printed
    both, *of_each = json.loads((tmp_path / "verdict.json").read_text())["all_reduces"]
    assert [each["gpu"] for each in of_each] == CORES
    assert sum(each["last_share"] for each in of_each) == pytest.approx(1)
    assert both["clock_error_us"] == 0, "cores have one clock"
    assert 0 <= both["wait_p50_us"] <= both["wait_p99_us"]
    timeline = write_timeline([tmp_path], tmp_path / "timeline.json")
    events = json.loads(timeline.path.read_text())["traceEvents"]
    waits = [event["args"]["wait_us"] for event in events if event["name"].startswith("all_reduce ")]
    assert (len(waits), min(waits)) == (2 * calls, 0)
    assert sum(event["name"] == "transfer" for event in events) == len(waits)


def plan_of_two() -> Plan:
    plan = planned(*DECODE, "mode=baseline", *SPLIT)
    return replace(plan, config=replace(plan.config, device=replace(plan.config.device, gpus=[4, 7])))


def found(**changed: Any) -> RepeatResult:
    names = {"verified": True, "max_rel_error": 0.1, "tolerance": 1.0, "status": "ok", "above_ceiling": None}
    numbers = {"commands": 72, "launch_calls": 72, "batches": 72, "collectives": 24, "wall_ms": 2.0}
    rates = {"achieved_gb_per_s": 8.0, "achieved_tflops": 1.0, "all_reduce_us": 3.0, "all_reduce_wait_us": 1.0}
    row = dict.fromkeys(results.SUMMARY.names) | names | numbers | rates | changed
    extra = {"compared_run": "graph, repeat 0", "check_seconds": {"operands": 0.1, "outputs": 0.2}}
    return RepeatResult(row, extra, {"latency": [(1000, 1003, 72)], "queue_wait": [], "batch_wait": []})


@needs_two_cores
def test_counts_are_those_of_a_rank_rates_add_up_and_the_slowest_gives_the_time() -> None:
    slower = found(wall_ms=4.0, all_reduce_us=5.0, all_reduce_wait_us=4.0)
    row = merged(plan_of_two(), [found(), slower]).row
    assert (row["commands"], row["wall_ms"], row["commands_per_s"], row["status"]) == (72, 4.0, 18_000.0, "ok")
    assert row["achieved_gb_per_s"] == (8.0 * 2 + 8.0 * 4) / 4
    assert (row["all_reduce_us"], row["all_reduce_wait_us"]) == (5.0, 2.5)
    of_each = [found(kernels=90, gpu_busy_ms=busy_ms, kernels_dropped=0) for busy_ms in (1.5, 1.75)]
    row = merged(plan_of_two(), of_each).row
    assert (row["kernels"], row["gpu_busy_ms"]) == (90, 1.75), "kernels of one GPU, as launches"
    assert [each["gpu"] for each in gpu_rows(plan_of_two(), "run", [found(), slower])] == [4, 7]


@needs_two_cores
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"collectives": 23}, "GPUs that split the model have different collectives: [23, 24]"),
        ({"status": "failed: 1 of 72 outputs wrong", "verified": False}, "GPU 7: 1 of 72 outputs wrong"),
    ],
)
def test_what_one_rank_did_otherwise_or_wrong_fails_the_repeat(changed: dict[str, Any], why: str) -> None:
    row = merged(plan_of_two(), [found(), found(**changed)]).row
    assert (row["status"], row["verified"]) == (f"failed: {why}", False)


REFUSED = [
    (
        ("device.kind=cpu", "parallel.tensor=64"),
        f"parallel.tensor=64: needs a core for each part on the cpu device, and this process has {len(ALL_CORES)}",
    ),
    ((SPLIT[0], "parallel.tensor=4"), "parallel.tensor=4: needs as many GPUs, and device.gpus names 2: leave it out"),
    (("device.pin_cpu=0", "parallel.tensor=2"), "device.pin_cpu=0: does not go with parallel.tensor: name the GPUs"),
    (("device.gpus=[0,0]", "parallel.tensor=2"), "device.gpus=0: is named twice"),
    ((*SPLIT, "model.kv_heads=1"), "parallel.tensor=2: does not divide kv_heads=1 of model=tiny: use one of 1"),
    ((*SPLIT, "model.intermediate=129"), "parallel.tensor=2: does not divide intermediate=129 of model=tiny"),
    ((*SPLIT, "batching.max_batch=2"), "use scheduler=continuous, or run with batching.max_batch=3 or more"),
    ((*SPLIT, "arrival=poisson", "arrival.rate_per_s=9"), "use scheduler=continuous, or run in a closed loop"),
    ((*SPLIT, "batching.stall=false"), "batching.stall=false: must be true with parallel.tensor"),
    ((*SPLIT, "record.commands=all"), "record.commands=all: is for one GPU"),
    ((*SPLIT, "timing=torch"), "timing=torch: traces one GPU: use timing=cupti with device.gpus"),
    (("parallel.tensor=0",), "parallel.tensor=0: out of range"),
    (
        (*SPLIT, "parallel.all_reduce=nccl"),
        "parallel.all_reduce=nccl: needs GPUs, and the device is the CPU: type device=cuda, or parallel.all_reduce=own",
    ),
    (
        ("parallel.all_reduce=nccl",),
        "parallel.all_reduce=nccl: adds the parts of GPUs that split a model: add parallel.tensor=2",
    ),
    ((*SPLIT, "mode=batched"), "mode=batched: forms batches of one shape as commands come"),
    ((*SPLIT, "mode=graph_loop"), "mode=graph_loop: mode.submit=graph_loop repeats steps in one launch"),
]


@needs_two_cores
@pytest.mark.parametrize(("words", "why"), REFUSED, ids=[" ".join(words[-2:]) for words, _ in REFUSED])
def test_what_cannot_be_split_is_refused_in_one_line(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        planned("workload=layer", "model=tiny", "workload.requests=3", "mode=coalesced", "against=[]", *words)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)


@needs_two_cores
def test_nccl_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(*DECODE, "mode=baseline", *SPLIT)
    four = replace(plan.config.parallel, tensor=2, all_reduce=AllReduce.nccl)
    monkeypatch.setattr(nccl_library, "library_path", lambda: None)
    with pytest.raises(ConfigError, match="needs NCCL, which is not installed: pip install nvidia-nccl-cu13"):
        require_same_batches(replace(plan.config, parallel=four), plan.stream, "cuda")
    monkeypatch.setattr(nccl_library, "library_path", lambda: "libnccl.so.2")
    require_same_batches(replace(plan.config, parallel=four), plan.stream, "cuda")
    assert stream_on(replace(plan.config, parallel=four), plan.info).split.rounds_sums
    assert not plan.stream.split.rounds_sums
    (job, _) = replace(plan, config=replace(plan.config, parallel=replace(four, tensor=2))).jobs(Path())
    assert job.nccl


@needs_two_cores
def test_nccl_is_no_part_of_a_fused_kernel() -> None:
    plan = planned(*DECODE, "mode=coalesced", *SPLIT)
    config = replace(plan.config, parallel=replace(plan.config.parallel, all_reduce=AllReduce.nccl))
    fused = replace(plan.arms[0], mode="engine", options={"fuse": ["reduce"]})
    gpu = replace(plan.info, kind="cuda")
    assert refusal_of(config, plan.arms[0], gpu, plan.stream) is None
    assert "leave reduce out of mode.fuse" in (refusal_of(config, fused, gpu, plan.stream) or "")


def test_all_reduces_that_nobody_counted_are_no_number() -> None:
    row = {"run_id": "run", "mode": "engine", "gpus": 2, "tensor": 2, "collectives": None, "all_reduce_us": None}
    assert gpu_lines([row], []) == ["engine split over 2 GPUs: all-reduces by NCCL, which counts none"]


@needs_two_cores
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("workload=linear_epilogue",), "workload=linear_epilogue has no model to split: use layer or decode"),
        (("workload=gemv_256",), "workload=gemv_256 has no model to split: use layer or decode"),
        (("workload=decode", "model=tiny", "ordering=none"), "ordering=none has no order of all-reduces"),
    ],
)
def test_work_that_cannot_be_split_is_refused(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=f"parallel.tensor=2: {why}"):
        planned(*words, "mode=batched", "against=[]", *SPLIT)


@needs_two_cores
def test_every_mode_either_takes_steps_or_single_commands_or_says_why_not() -> None:
    stream = planned(*DECODE, "mode=coalesced", *SPLIT).stream
    reasons = {name: mode_class(name).refusal("cpu", stream) for name in MODES}
    able = {name for name, why in reasons.items() if why is None}
    assert {"baseline", "coalesced", "graph"} <= able
    assert not able & {"batched", "grouped", "multistream", "persistent", "megakernel", "graph_loop", "torch_graph"}


def test_runs_of_earlier_versions_have_the_same_hash() -> None:
    config = planned(*DECODE, "mode=baseline").composed
    older = {key: value for key, value in config.items() if key != "parallel"}
    assert config_hash(older) == config_hash(config)
    assert config_hash(older | {"parallel": {"tensor": 1}}) == config_hash(config)
    split = planned(*DECODE, "mode=baseline", *SPLIT).composed
    assert config_hash(split | {"parallel": {"tensor": 2}}) == config_hash(split) != config_hash(config)
    nccl = {"parallel": {"tensor": 2, "all_reduce": "nccl"}}
    assert config_hash(split | nccl) != config_hash(split)
    assert np.isin(config["parallel"]["tensor"], [1])

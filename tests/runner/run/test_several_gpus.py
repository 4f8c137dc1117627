"""Runs with several consumers on the CPU device, each with a core of its own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.config.composing import planned

from launchopt.errors import ConfigError
from launchopt.recording import results
from launchopt.timing.nvml import Look, Readings
from runner.plan.plan import Plan
from runner.run import children
from runner.run.resume import config_hash
from runner.run.run import execute
from runner.run.several import add_readings, gpu_rows, merged
from runner.verdict import verdict
from runner.worker.messages import RepeatResult

CORES = sorted(os.sched_getaffinity(0))[:2]
TWO = f"device.gpus=[{','.join(map(str, CORES))}]"
NO_CORE = max(os.sched_getaffinity(0)) + 1
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
GEMV = ("workload=gemv_256", "workload.commands=300", "workload.cache=hot", "mode=batched", "against=[]", "repeats=1")
NVML = ("sm_clock_mhz", "sm_clock_min_mhz", "throttled", "throttle_reasons", "energy_mj_per_command", "power_w")
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
    launches = pq.read_table(tmp_path / "launches.parquet").to_pylist()
    counts = {core: [each["batch_size"] for each in launches if each["gpu"] == core] for core in CORES}
    assert {core: sum(own) for core, own in counts.items()} == {CORES[0]: 172, CORES[1]: 128}
    assert {core: len(own) for core, own in counts.items()} == {each["gpu"]: each["launch_calls"] for each in gpus}
    assert all(row[name] is None for name in NVML), "cores have no clocks to read"
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
    extra |= {"compared_run": "graph, repeat 0", "check_seconds": {"operands": 0.1, "outputs": 0.2}}
    latency = {"latency": [(1000, 1003, len(own))], "queue_wait": [], "batch_wait": []}
    return RepeatResult(row, extra, latency, np.packbits(mask).tobytes())


def test_counts_add_up_and_the_slowest_gpu_gives_the_time() -> None:
    halves = [found([*range(200)]), found([*range(200, 300)], wall_ms=4.0, latency_max_us=1.5)]
    row = merged(plan_of_two(), halves).row
    assert (row["commands"], row["wall_ms"], row["commands_per_s"], row["status"]) == (300, 4.0, 75_000.0, "ok")
    assert (row["achieved_gb_per_s"], row["latency_samples"]) == (4.0, None)
    assert [each["gpu"] for each in gpu_rows(plan_of_two(), "run", halves)] == [4, 7]


def watched(clock: float, power_w: float, **changed: Any) -> dict[str, Any]:
    """The columns of a GPU that NVML answered for."""
    named = {"sm_clock_mhz": clock, "sm_clock_min_mhz": clock - 100, "throttled": False, "throttle_reasons": None}
    return named | {"energy_mj_per_command": power_w / 100, "power_w": power_w} | changed


def test_the_clock_is_that_of_the_slowest_gpu_and_energy_that_of_all() -> None:
    hot = watched(1500.0, 400.0, throttled=True, throttle_reasons="sw_power_cap")
    halves = [found([*range(200)], **watched(1980.0, 300.0)), found([*range(200, 300)], **hot)]
    row = merged(plan_of_two(), halves).row
    assert {name: row[name] for name in NVML} == {
        **{"sm_clock_mhz": 1500.0, "sm_clock_min_mhz": 1400.0, "throttled": True, "throttle_reasons": "sw_power_cap"},
        **{"energy_mj_per_command": (3.0 * 200 + 4.0 * 100) / 300, "power_w": 700.0},
    }
    gpus = gpu_rows(plan_of_two(), "run", halves)
    assert [(each["sm_clock_mhz"], each["throttled"], each["power_w"]) for each in gpus] == [
        (1980.0, False, 300.0),
        (1500.0, True, 400.0),
    ]


def test_what_is_known_of_one_gpu_alone_is_not_said_of_all() -> None:
    halves = [found([*range(200)], **watched(1980.0, 300.0)), found([*range(200, 300)])]
    row = merged(plan_of_two(), halves).row
    assert {row[name] for name in NVML} == {None}
    hot = watched(1980.0, 300.0, throttled=True, throttle_reasons="sw_power_cap")
    row = merged(plan_of_two(), [found([*range(200)], **hot), halves[1]]).row
    assert (row["throttled"], row["throttle_reasons"]) == (True, "sw_power_cap"), "one throttled GPU slows the run"


def traced(busy_ms: float | None, dropped: int = 0) -> dict[str, Any]:
    known = {"kernels": 200, "gpu_busy_ms": busy_ms, "launch_delay_p50_us": busy_ms, "launch_delay_p99_us": busy_ms}
    return {"kernels_dropped": dropped, "launch_delays_clipped": 1} | ({} if busy_ms is None else known)


def test_kernels_add_up_and_the_busiest_gpu_gives_the_busy_time() -> None:
    halves = [found([*range(200)], **traced(1.5)), found([*range(200, 300)], **traced(1.0))]
    row = merged(plan_of_two(), halves).row
    assert (row["kernels"], row["gpu_busy_ms"], row["launch_delay_p99_us"], row["kernels_dropped"]) == (
        400,
        1.5,
        1.5,
        0,
    )
    halves[1] = found([*range(200, 300)], **traced(None, dropped=3))
    row = merged(plan_of_two(), halves).row
    assert (row["kernels"], row["gpu_busy_ms"], row["launch_delay_p99_us"], row["kernels_dropped"]) == (None,) * 3 + (
        3,
    )


def test_the_manifest_has_the_state_and_the_readings_of_each_gpu() -> None:
    halves = [found([*range(200)]), found([*range(200, 300)])]
    for number, each in enumerate(halves):
        each.extra.update(state={"before": {"sm_clock_mhz": 1000 + number}}, gpu={"looks": number})
        each.extra["device_clock_error_ns"] = 10 * number
    halves[1].extra.update(compared_run="graph, repeat 2", check_seconds={"operands": 0.3, "outputs": 0.1})
    extra = merged(plan_of_two(), halves).extra
    assert extra["state"] == {"before, GPU 4": {"sm_clock_mhz": 1000}, "before, GPU 7": {"sm_clock_mhz": 1001}}
    assert (extra["gpus"], extra["device_clock_error_ns"]) == ({"4": {"looks": 0}, "7": {"looks": 1}}, 10)
    assert "gpu" not in extra
    assert extra["compared_run"] == {"4": "graph, repeat 0", "7": "graph, repeat 2"}
    assert extra["check_seconds"] == {"operands": 0.3, "outputs": 0.2}, "they check side by side"


def test_clocks_are_read_until_a_gpu_is_done_and_energy_until_the_last_one_is() -> None:
    halves = [found([*range(200)]), found([*range(200, 300)], wall_ms=4.0)]
    looks = tuple(Look(at, at, clock, 300.0, 0) for at, clock in ((1_000_000, 1980), (3_000_000, 345)))
    readings = Readings(looks, 900, 4_100_000, 100_000)
    add_readings(halves, [readings, None], 0)
    first, second = (each.row for each in halves)
    assert (first["sm_clock_mhz"], first["sm_clock_min_mhz"]) == (1980.0, 1980.0), "then it idled"
    assert first["energy_mj_per_command"] == 900 / 200
    assert second["sm_clock_mhz"] is None
    assert [("gpu" in each.extra) for each in halves] == [True, False]


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
        ((TWO, "timing=torch"), "timing=torch: traces one GPU: use timing=cupti with device.gpus"),
        ((TWO, "workload.commands=1"), "the workload has 1 commands: fewer than GPUs"),
        (
            (TWO, "workload.commands=64", "batching.max_batch=64"),
            "batching.max_batch=64 of the 64 commands at a time, and one gets none: use batching.max_batch=32 or less",
        ),
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

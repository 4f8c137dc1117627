"""Lines on the GPUs of a run: files of other programs may lack any value."""

from __future__ import annotations

import pytest
from support.results.summary_rows import repeats

from launchopt.analysis.several_gpus import gpu_lines
from launchopt.recording.results import Row

OF_GPU = {
    **{"run_id": "run", "mode": "batched", "gpu": 0, "requests": 4, "commands": 40, "commands_per_s": 4000.0},
    **{"wall_ms": 10.0, "latency_p50_us": 5.0, "latency_p99_us": 9.0},
    **{"sm_clock_mhz": 1980.0, "sm_clock_min_mhz": 1830.0, "throttle_reasons": "sw_power_cap"},
}
ROUTED = {"gpus": 2, "tensor": None, "routing": "round_robin", "gpu_imbalance": 0.25, "producer_commands_per_s": 8500.0}
SPLIT = {"gpus": 2, "tensor": 2, "collectives": 64, "all_reduce_us": 7.0, "all_reduce_wait_us": 2.0}


def rows_of(**more: object) -> list[Row]:
    return repeats(10.0, 10.0, mode="batched", run_id="run", commands_per_s=8000.0, **more)


def test_throughput_imbalance_and_each_gpu_are_said() -> None:
    routed, gpu = gpu_lines(rows_of(**ROUTED), [OF_GPU])
    assert routed == (
        "batched on 2 GPUs (round_robin): 8,000 commands/s, imbalance of commands 25.0%; the producer routes 8,500/s, "
        "which limits them"
    )
    assert gpu == (
        "  GPU 0: 40 commands of 4 requests, 4,000/s, 10.00 ms, latency 5.0 us, p99 9.0 us, SM clock 1,980 MHz, "
        "lowest 1,830, throttled (sw_power_cap)"
    )
    (split,) = gpu_lines(rows_of(**SPLIT), [])
    assert split.endswith("64 all-reduces of 7.0 us, 2.0 us waiting for the other GPUs as a mean over them")


def test_each_of_several_runs_is_named() -> None:
    for about, verb in ((ROUTED, "on"), (SPLIT, "split over")):
        rows = [*rows_of(**about), *(row | {"run_id": "other"} for row in rows_of(**about))]
        first, gpu, second = gpu_lines(rows, [OF_GPU])
        assert first.startswith(f"batched (run run) {verb} 2 GPUs")
        assert gpu.startswith("  GPU 0: ")
        assert second.startswith(f"batched (run other) {verb} 2 GPUs")
    alone = {"gpus": None, "run_id": "other"}
    assert gpu_lines([*rows_of(**SPLIT), rows_of()[0] | alone], [])[0].startswith("batched split over")


@pytest.mark.parametrize("column", [*ROUTED, *SPLIT, "commands_per_s"])
def test_a_run_that_lacks_a_value_is_shown_without_it(column: str) -> None:
    for about in (ROUTED, SPLIT):
        for rows in (rows_of(**about), rows_of(**about)[:1]):
            lines = gpu_lines([row | {column: None} for row in rows], [OF_GPU])
            assert len(lines) == (0 if column == "gpus" else 2)
    assert "imbalance of commands \u2014" in gpu_lines(rows_of(**(ROUTED | {"gpu_imbalance": None})), [])[0]


@pytest.mark.parametrize("column", [each for each in OF_GPU if each not in ("run_id", "mode", "gpu")])
def test_a_gpu_that_lacks_a_value_is_shown_without_it(column: str) -> None:
    _, line = gpu_lines(rows_of(**ROUTED), [OF_GPU | {column: None}])
    assert line.startswith("  GPU 0: ")

"""Rows of summary.parquet for tests of its readers, with a plausible value in every column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launchopt.recording import results

H200 = "NVIDIA H200"
GEMV: dict[str, Any] = {"workload": "gemv_micro", "shapes": "64x1x8192", "commands": 2_000_000}
DECODE: dict[str, Any] = {
    "workload": "decode",
    "shapes": "1536x1x1024, 1024x1x1024, 4096x1x1024, 1024x1x4096",
    "commands": 400_000,
    "layers": 8,
    "requests": 1,
    "max_batch": 16,
    "timeout_us": 300.0,
    "ordering": "none",
}
# Requests of many tokens in an open loop.
TOKENS: dict[str, Any] = {
    **DECODE,
    "commands": 65_536,
    **{"arrival": "poisson", "arrival_rate_per_s": 100.0, "completed_rate_per_s": 99.0, "overloaded": False},
    **{"requests": 64, "scheduler": "continuous", "sampling": "top_p", "sampling_where": "cpu", "timeout_us": 200.0},
    **{"ordering": "per_request", "tokens": 8192, "tokens_per_s": 12_800.0, "sampling_ms": 40.96},
    **{"ttft_p50_ms": 3.5, "ttft_p99_ms": 12.25, "tpot_p50_ms": 0.82, "tpot_p99_ms": 1.5},
    **{"slo_ttft_ms": 10.0, "goodput_per_s": 95.5, "run_id": "tokens"},
}


def row(**columns: Any) -> results.Row:
    """Return a row with every column. Columns that are not given are plausible or null."""
    assert not columns.keys() - set(results.SUMMARY.names)
    plausible = {
        **{"run_id": "run", "repeat": 0, "mode": "baseline", "ordering": "per_request", "device": "cuda"},
        **{"gpu": H200, "dtype": "fp32", "cache": "cold", "arrival": "closed", "requests": 1000},
        **{
            "max_batch": 512,
            "timeout_us": 150.0,
            "wall_ms": 100.0,
            "gpu_span_ms": 90.0,
            "launch_calls": 2_000_000,
        },
        **{"commands_per_s": 2e7, "host_submit_ns_per_launch": 6400.0, "achieved_gb_per_s": 210.0},
        **{"copy_gb_per_s": 4200.0, "latency_p50_us": 9.5, "latency_p99_us": 31.0, "latency_samples": 1000},
        **{
            "traced": False,
            "interleaved": True,
            "verified": True,
            "max_rel_error": 3.1e-7,
            "tolerance": 1e-5,
        },
        **{"status": "ok"},
    }
    return {**dict.fromkeys(results.SUMMARY.names), **plausible, **GEMV, **columns}


def repeats(*wall_ms: float, **columns: Any) -> list[results.Row]:
    return [row(repeat=index, wall_ms=wall, **columns) for index, wall in enumerate(wall_ms)]


def write(folder: Path, rows: list[results.Row]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    results.write_rows(folder / "summary.parquet", results.SUMMARY, rows, {})
    return folder


def everything() -> list[results.Row]:
    """Return rows with a failure, nulls, a rate above the ceiling, a traced run, tokens, overload, and the CPU."""
    batched = {"mode": "batched", "launch_calls": 3907, "achieved_gb_per_s": 4410.0}
    above = {"above_ceiling": "reads only; a copy also writes", "gpu_span_ms": 4.75}
    graph = {"mode": "graph", "launch_calls": 15_625}
    failed = {"verified": False, "max_rel_error": 0.7, "status": "1 of 3 outputs | wrong\nby <far>"}
    decode = {**DECODE, "run_id": "decode"}
    overloaded = {"overloaded": True, "completed_rate_per_s": 61.25, "goodput_per_s": 0.0}
    cpu = {"device": "cpu", "gpu": None, "gpu_span_ms": None, "copy_gb_per_s": None, "run_id": "cpu"}
    return [
        *repeats(100.0, 101.0, 99.0, 100.5, 100.0),
        *repeats(5.0, 5.2, 4.9, 5.1, 5.05, **batched, **above),
        *repeats(20.0, 20.1, 19.9, **graph)[:2],
        row(repeat=2, wall_ms=1.0, **{**graph, **failed}),
        *repeats(700.0, 710.0, 720.0, launch_calls=400_000, **{**decode, "ordering": "per_request"}),
        *repeats(500.0, 505.0, mode="batched", launch_calls=25_000, **{**decode, "run_id": "alone"}),
        *repeats(640.0, 650.0, 660.0, **{**TOKENS, **overloaded}),
        *repeats(640.0, 640.5, 641.0, mode="batched", **TOKENS),
        *repeats(600.0, 600.5, 601.0, mode="chain", **{**TOKENS, "ordering": "violated"}),
        *repeats(300.0, 310.0, 320.0, traced=True, kernels=2_000_000, gpu_busy_ms=80.0),
        *repeats(9.0, 9.1, 9.2, **cpu),
        *repeats(9.0, 9.1, 9.2, mode="batched", latency_p50_us=None, latency_p99_us=None, **cpu),
    ]

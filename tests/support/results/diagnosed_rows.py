"""Rows of streams with chosen times, so that the bottleneck is known, and their diagnosis."""

from __future__ import annotations

from typing import Any

from launchopt.analysis.verdict.calibration import Calibration
from launchopt.analysis.verdict.diagnosis import DiagnosedLine, Diagnosis, diagnose
from launchopt.devices.launch_breakdown import Floor
from launchopt.recording.results import SUMMARY, Row

H200 = "NVIDIA H200"
BANDWIDTH = 4000.0  # GB/s that the device reads; it copies a little less
PEAK = 50.0  # TFLOP/s
EXPERTS: dict[str, Any] = {
    **{"workload": "moe", "expert_routing": "balanced", "experts": 16, "experts_per_token": 4, "requests": 1},
    **{"steps": 250, "step_tokens": 4, "active_experts": 13.0, "largest_expert_tokens": 3.0, "dtype": "bf16"},
}
STEPS: dict[str, Any] = {"workload": "decode", "model": "tiny", "layers": 2, "tokens": 1000, "requests": 16}


def row(mode: str = "baseline", repeat: int = 0, **columns: Any) -> Row:
    """Return the row of a repeat of 10,000 GEMVs in 100 ms. bytes_ms, flops_ms: times of the roofline."""
    wall_ms, bytes_ms, flops_ms = (
        columns.get("wall_ms", 100.0),
        columns.pop("bytes_ms", 5.0),
        columns.pop("flops_ms", 0.5),
    )
    assert not columns.keys() - set(SUMMARY.names)
    plausible = {
        **{"run_id": "run", "workload": "gemv_256", "device": "cuda", "gpu": H200, "dtype": "fp32", "cache": "cold"},
        **{"commands": 10_000, "arrival": "closed", "shapes": "256x1x256", "requests": 10_000, "batch_size_mean": 1.0},
        **{"ordering": "per_request", "max_batch": 64, "timeout_us": 100.0, "wall_ms": wall_ms, "gpu_span_ms": wall_ms},
        **{"launch_calls": 10_000, "batches": 10_000, "host_submit_ns_per_launch": 8000.0, "packed_bytes": 0},
        **{"host_submit_burst_ns": 8000.0, "read_gb_per_s": BANDWIDTH, "copy_gb_per_s": 3900.0, "peak_tflops": PEAK},
        **{"bytes_moved": bytes_ms * BANDWIDTH * 1e6, "achieved_gb_per_s": bytes_ms / wall_ms * BANDWIDTH},
        **{"achieved_tflops": flops_ms / wall_ms * PEAK, "flush_deadline": 0, "flush_idle": 0},
        **{"traced": False, "interleaved": True, "verified": True, "status": "ok"},
    }
    return {**dict.fromkeys(SUMMARY.names), **plausible, "mode": mode, "repeat": repeat, **columns}


def repeats(mode: str, *wall_ms: float, **columns: Any) -> list[Row]:
    """Return one row per wall time; of three, the first two again, so that there is an interval."""
    times = [*wall_ms, *wall_ms[:2]] if len(wall_ms) == 3 else wall_ms
    return [row(mode, at, wall_ms=wall, **columns) for at, wall in enumerate(times)]


def few(mode: str, *wall_ms: float, **columns: Any) -> list[Row]:
    """Return the rows of `repeats`, with 100 launches of 100 commands each."""
    calls = {"launch_calls": 100, "batches": 100, "batch_size_mean": 100.0}
    return repeats(mode, *wall_ms, **{**calls, **columns})


def traced(mode: str, busy_ms: float, kernels: int, **columns: Any) -> Row:
    """Return the row of one traced repeat."""
    return row(mode, traced=True, gpu_busy_ms=busy_ms, kernels=kernels, run_id="traced", **columns)


def decode(mode: str, *wall_ms: float, requests: int = 16, **columns: Any) -> list[Row]:
    """Return rows of 1,000 tokens through 2 layers of 4 commands each, in a closed loop of concurrent requests."""
    chain = {"workload": "decode", "model": "tiny", "layers": 2, "tokens": 1000, "requests": requests}
    calls = {"commands": 8000, "launch_calls": 8000, "batches": 8000, "dtype": "fp16"}
    return repeats(mode, *wall_ms, **{**chain, **calls, **columns})


def calibration(**floors: float) -> Calibration:
    """Return a calibration of the H200 with these floors."""
    made = {name: Floor(value, "us", None, None, 1, "made up") for name, value in floors.items()}
    return Calibration("2026-01-01T00:00:00Z", {"kind": "cuda", "name": H200}, {}, made)


def only(rows: list[Row], **refused: dict[str, str]) -> Diagnosis:
    (found,) = diagnose(rows, refused, None)
    return found


def line(found: Diagnosis, mode: str) -> DiagnosedLine:
    (one,) = [each for each in found.lines if each.mode == mode]
    return one

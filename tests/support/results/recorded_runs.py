"""Folders of runs for tests of reports: a run of two modes with all tables, and a sweep.

Numbers are invented, but agree with each other: a command takes 8 us in the baseline and 2 us in batches of 8.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from launchopt.recording import results
from launchopt.recording.results import Row

HOSTILE = "<script>alert(1)</script>"
H200 = "NVIDIA H200"
COMMANDS = 64
REPEATS = 5
BATCH = {"baseline": 1, "batched": 8}
LAUNCH_US = {"baseline": 8.0, "batched": 16.0}


def summary_row(run_id: str, mode: str, repeat: int, **columns: Any) -> Row:
    """Return a row with every column. Columns that are not given are plausible or null."""
    wall_ms = COMMANDS / BATCH[mode] * LAUNCH_US[mode] / 1e3 * (1 + repeat / 1000)
    plausible = {
        **{"run_id": run_id, "repeat": repeat, "workload": "gemv_micro", "mode": mode, "ordering": "per_request"},
        **{"device": "cuda", "gpu": H200, "dtype": "fp32", "shapes": "64x1x8192", "cache": "cold"},
        **{"arrival": "closed", "requests": COMMANDS, "scheduler": "none", "max_batch": 8, "timeout_us": 100.0},
        **{"commands": COMMANDS, "launch_calls": COMMANDS // BATCH[mode], "batches": COMMANDS // BATCH[mode]},
        **{
            "wall_ms": wall_ms,
            "gpu_span_ms": wall_ms,
            "host_submit_ns_per_launch": 5000.0,
            "setup_ms": float(BATCH[mode]),
        },
        **{"commands_per_s": COMMANDS / wall_ms * 1e3, "latency_p50_us": 20.0, "latency_p99_us": 90.0},
        **{"bytes_moved": COMMANDS * 2_130_176, "achieved_gb_per_s": 300.0 * BATCH[mode], "achieved_tflops": 0.15},
        **{"copy_gb_per_s": 4200.0, "read_gb_per_s": 4400.0, "peak_tflops": 51.0, "input_footprint_bytes": 1 << 30},
        **{"traced": False, "interleaved": True, "verified": True, "max_rel_error": 3e-7, "tolerance": 1e-5},
        **{"status": "ok", "throttled": False, "sm_clock_mhz": 1980.0, "sm_clock_min_mhz": 1965.0},
    }
    return {**dict.fromkeys(results.SUMMARY.names), **plausible, **columns}


def _repeats() -> list[tuple[str, int]]:
    return [(mode, repeat) for repeat in range(REPEATS) for mode in BATCH]


def launch_rows(run_id: str) -> list[Row]:
    """Return launch calls without gaps; each starts on the device 2 us after its begin."""
    rows = []
    for mode, repeat in _repeats():
        length_ns = int(LAUNCH_US[mode] * 1000)
        for launch in range(COMMANDS // BATCH[mode]):
            start_ns = 1000 + launch * length_ns
            rows.append(
                {
                    **{"run_id": run_id, "mode": mode, "repeat": repeat, "launch": launch, "batch": launch},
                    **{"m": 64, "n": 1, "k": 8192, "dtype": "fp32", "batch_size": BATCH[mode]},
                    **{"strategy": "strided" if BATCH[mode] > 1 else "single", "flush_reason": "full"},
                    **{"flush_ns": start_ns - 500, "submit_start_ns": start_ns, "submit_end_ns": start_ns + 5000},
                    **{
                        "device_start_ns": start_ns + 2000,
                        "device_end_ns": start_ns + length_ns,
                        "packed_bytes": 0,
                        "op": "gemm",
                        "gpu": None,
                    },
                }
            )
    return rows


def command_rows(run_id: str) -> list[Row]:
    """Return the commands of those launches; all were enqueued at the start."""
    rows = []
    for launch in launch_rows(run_id):
        for index in range(launch["batch_size"]):
            seq = launch["launch"] * launch["batch_size"] + index
            own = {"seq": seq, "request": seq, "step": 0, "enqueue_ns": 10 * seq, "eligible_ns": 10 * seq + 5}
            rows.append({name: own.get(name, launch.get(name)) for name in results.COMMANDS.names})
    return rows


def kernel_rows(run_id: str, name: str = "gemv_kernel") -> list[Row]:
    """Return two kernels per launch call, from one API call, and a copy that no launch call started."""
    rows = []
    for launch in launch_rows(run_id):
        for part in range(2):
            start_ns = launch["device_start_ns"] + part * 2000
            own = {
                **{"range": "gemv", "name": name, "kind": "kernel", "correlation": launch["launch"] + 1},
                **{"api": "cuLaunchKernelEx", "api_start_ns": launch["submit_start_ns"] + 100},
                **{"api_end_ns": launch["submit_start_ns"] + 4000, "start_ns": start_ns, "end_ns": start_ns + 1500},
                **{"stream": 7, "graph": None},
            }
            rows.append({column: own.get(column, launch.get(column)) for column in results.KERNELS.names})
    stray = {"run_id": run_id, "mode": "baseline", "repeat": 0, "name": "memcpy", "kind": "memcpy"}
    stray |= {"correlation": 0, "start_ns": 0, "end_ns": 400, "stream": 9}
    return [*rows, {column: stray.get(column) for column in results.KERNELS.names}]


def histogram_rows(rows: list[Row]) -> list[Row]:
    """Return histograms of latencies from 10 to 90 us, and of batches of one size."""
    found = []
    for row in rows:
        key = {name: row[name] for name in ("run_id", "mode", "repeat")}
        for at in range(10, 91, 4):
            found.append({**key, "what": "latency", "low": at * 1000, "high": at * 1000 + 3, "count": 3})
        size = BATCH[row["mode"]]
        found.append({**key, "what": "batch_size", "low": size, "high": size, "count": COMMANDS // size})
    return found


def manifest(run_id: str, **more: Any) -> dict[str, Any]:
    about = {"platform": "Linux", "git_revision": "0123456789abcdef", "git_dirty": False}
    return {
        **{"run_id": run_id, "started_utc": "2026-01-02T03:04:05+00:00", "status": "ok", "repeats_done": 6},
        **{"overrides": ["mode=batched"], "notices": ["device: cuda"], "refused": {"graph": "needs a GPU that graphs"}},
        **{"config": {"workload": {"name": "gemv_micro"}, "batching": {"max_batch": 8}}, "runs": []},
        **{"environment": {**about, "device": {"name": H200}}, "device_versions": {"driver": "580.1"}},
        **{"ceilings": {"copy_gb_per_s": 4200.0}, **more},
    }


def write_run(folder: Path, run_id: str = "run", *, kernels: bool = True, **columns: Any) -> Path:
    """Write a run of two modes with all tables."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [summary_row(run_id, mode, repeat, **columns) for mode, repeat in _repeats()]
    results.write_rows(folder / "summary.parquet", results.SUMMARY, rows, {})
    results.write_rows(folder / "histograms.parquet", results.HISTOGRAMS, histogram_rows(rows), {})
    results.write_rows(folder / "launches.parquet", results.LAUNCHES, launch_rows(run_id), {})
    results.write_rows(folder / "commands.parquet", results.COMMANDS, command_rows(run_id), {})
    if kernels:
        results.write_rows(folder / "kernels.parquet", results.KERNELS, kernel_rows(run_id), {})
    results.write_manifest(folder, manifest(run_id, waterfall=[["baseline", "batched"]]))
    return folder


def write_sweep(folder: Path) -> Path:
    """Write a sweep of two bucket sizes and two timeouts, at one rate of arrival."""
    open_loop = {"arrival": "poisson", "arrival_rate_per_s": 1000.0, "completed_rate_per_s": 999.0, "overloaded": False}
    for job, (max_batch, timeout_us) in enumerate((size, time) for size in (16, 64) for time in (20.0, 50.0)):
        run_id = f"sweep/{job}"
        batching = {"max_batch": max_batch, "timeout_us": timeout_us, "commands_per_s": 1000.0 + job}
        rows = [summary_row(run_id, "batched", repeat, **open_loop, **batching) for repeat in range(REPEATS)]
        (folder / str(job)).mkdir(parents=True)
        results.write_rows(folder / str(job) / "summary.parquet", results.SUMMARY, rows, {})
        results.write_rows(folder / str(job) / "histograms.parquet", results.HISTOGRAMS, histogram_rows(rows), {})
        config = {"workload": {"name": "gemv_micro"}, "batching": {"max_batch": max_batch, "timeout_us": timeout_us}}
        results.write_manifest(folder / str(job), manifest(run_id, config=config))
    return folder


def write_calibration(folder: Path) -> Path:
    """Write a calibration with the stages of one launch."""
    stage = {"p50_us": 2.5, "p99_us": 4.0, "how": "CUPTI"}
    content = {
        **{"schema_version": 1, "made_utc": "2026-01-01T00:00:00+00:00", "device": {"name": H200}, "environment": {}},
        "floors": {
            "null_launch_host_us": {"value": 2.0, "unit": "us", "low": 1.9, "high": 2.1, "repeats": 5, "how": ""}
        },
        "stages": {"null kernel": {"driver call": stage, "launch delay": {**stage, "p99_us": None}}},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "h200.json"
    path.write_text(json.dumps(content))
    return path

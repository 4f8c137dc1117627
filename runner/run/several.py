"""One repeat on several GPUs: the results of its consumers become one row, and a row of gpus.parquet for each.

Of GPUs that split a model see `merged_ranks`. The rest is about GPUs that share the requests.
Counts are sums. Times are those of the slowest consumer, since the run ends with it. Percentiles come from the merged
histograms. Bytes and operations are those of the whole workload. No ceiling is given: it holds for one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.recording import results
from launchopt.recording.impossible import remove_ceilings
from launchopt.recording.manifest import Manifest
from launchopt.recording.summary import distribution
from launchopt.statistics.histogram import LogHistogram
from launchopt.timing.nvml import Readings
from runner.plan.plan import Plan
from runner.worker.messages import RepeatResult

_SUMS = (
    *("commands", "launch_calls", "batches", "latency_samples", "packed_bytes", "padded_commands", "graph_replays"),
    "submits",
    *("flush_full", "flush_deadline", "flush_idle", "flush_stall", "flush_drain", "checked_commands", "audited_share"),
    "completed_rate_per_s",
)
_LARGEST = (
    *("wall_ms", "gpu_span_ms", "sampling_ms", "setup_ms", "tuning_ms", "compile_ms", "capture_ms", "instantiate_ms"),
    *("upload_ms", "update_ms", "host_submit_burst_ns", "overloaded", "least_memory_bytes"),
)
_TIMES = ("latency", "queue_wait", "batch_wait")


def merged(plan: Plan, found: Sequence[RepeatResult]) -> RepeatResult:
    """Return the results of all consumers of one repeat as one result; `found` itself if it is one."""
    if len(found) == 1:
        return found[0]
    if plan.stream.tensor > 1:
        return merged_ranks(plan, found)
    rows, first = [each.row for each in found], found[0]
    row = first.row | {name: _of(rows, name, sum) for name in _SUMS} | {name: _of(rows, name, max) for name in _LARGEST}
    histograms = _histograms(found)
    for name in _TIMES:
        row |= _distribution(name, histograms[name], rows)
    row["host_submit_ns_per_launch"] = _mean(rows, "host_submit_ns_per_launch", "submits")
    row["compared_share"] = _mean(rows, "compared_share", "commands")
    row["as_audited_share"] = _of(rows, "as_audited_share", min)
    row["commands_per_s"] = row["commands"] / row["wall_ms"] * 1e3
    slower = _work_ms(first.row) / _work_ms(row)
    row |= {name: first.row[name] * slower for name in ("achieved_gb_per_s", "achieved_tflops")}
    row |= _closest(rows) | _clocks(rows, row["commands"]) | _traced(rows)
    row["kernels"] = _of_all(rows, "kernels", sum)
    faults = _faults(plan, found)
    row |= {"verified": all(each["verified"] for each in rows) and not faults}
    row["status"] = f"failed: {'; '.join(faults)}" if faults else "ok"
    commands = [each["commands"] for each in rows]
    row |= {"gpus": len(rows), "gpu_imbalance": max(commands) / (sum(commands) / len(rows)) - 1}
    row["routing"] = plan.config.device.routing.value
    remove_ceilings(row)
    extra = _extra(plan, found)
    for key in ("counts", "commands_by_strategy"):
        extra[key] = _added([each.extra[key] for each in found])
    return RepeatResult(row, extra, {name: each.rows() for name, each in histograms.items()})


def merged_ranks(plan: Plan, found: Sequence[RepeatResult]) -> RepeatResult:
    """Return the results of consumers that split a model as one result.

    Each has executed its share of every command, so counts and latencies are those of the first. Times are those of the
    slowest. Commands and tokens a second count each once, bytes and FLOPs a second are sums.
    """
    rows, first = [each.row for each in found], found[0]
    row = first.row | {name: _of(rows, name, max) for name in (*_LARGEST, "all_reduce_us")}
    row |= {name: _of(rows, name, min) for name in ("audited_share", "as_audited_share", "compared_share")}
    row["least_memory_bytes"] = _of(rows, "least_memory_bytes", sum)
    row["all_reduce_wait_us"] = _mean(rows, "all_reduce_wait_us", "collectives")
    row["commands_per_s"] = row["commands"] / row["wall_ms"] * 1e3
    for name in ("achieved_gb_per_s", "achieved_tflops"):
        row[name] = sum(each[name] * _work_ms(each) for each in rows) / _work_ms(row)
    row |= _closest(rows) | _clocks(rows, row["commands"]) | _traced(rows)
    faults = _faults_of_ranks(plan, found)
    row |= {"verified": all(each["verified"] for each in rows) and not faults}
    row["status"] = f"failed: {'; '.join(faults)}" if faults else "ok"
    row |= {"gpus": len(rows), "tensor": len(rows)}
    remove_ceilings(row)
    return RepeatResult(row, _extra(plan, found), first.histograms)


def _closest(rows: Sequence[results.Row]) -> results.Row:
    """Return the error that is closest to its tolerance, and that tolerance."""
    closest = max(rows, key=lambda each: each["max_rel_error"] / each["tolerance"] if each["tolerance"] else 0.0)
    return {name: closest[name] for name in ("max_rel_error", "tolerance")}


def add_readings(found: Sequence[RepeatResult], readings: Sequence[Readings | None], start_ns: int) -> None:
    """Add clocks, power and energy of each GPU to the result of its consumer. start_ns: start of the repeat.

    Clocks are those up to the last result of the GPU, energy is that up to the last result of all.
    """
    run_ns = max(each.row["wall_ms"] for each in found) * 1e6
    for each, of_gpu in zip(found, readings, strict=True):
        if of_gpu is not None:
            timed = of_gpu.within(start_ns, start_ns + int(each.row["wall_ms"] * 1e6))
            each.row.update(timed.columns(each.row["commands"], run_ns))
            each.extra["gpu"] = timed.about(run_ns)


def _clocks(rows: Sequence[results.Row], commands: int) -> results.Row:
    """Return clocks, throttling and energy of all GPUs together; null if they are not known of each."""
    reasons = dict.fromkeys(name for row in rows for name in (row.get("throttle_reasons") or "").split(", ") if name)
    throttled = [row.get("throttled") for row in rows]
    has_energy = all(row.get("energy_mj_per_command") is not None for row in rows)
    return {
        "sm_clock_mhz": _of_all(rows, "sm_clock_mhz", min),
        "sm_clock_min_mhz": _of_all(rows, "sm_clock_min_mhz", min),
        "throttled": True if True in throttled else None if None in throttled else False,
        "throttle_reasons": ", ".join(reasons) or None,
        "energy_mj_per_command": sum(row["energy_mj_per_command"] * row["commands"] for row in rows) / commands
        if has_energy
        else None,
        "power_w": _of_all(rows, "power_w", sum),
    }


def _traced(rows: Sequence[results.Row]) -> results.Row:
    """Return CUPTI's columns. A GPU whose records CUPTI lost has none, and so has the whole."""
    names = ("gpu_busy_ms", "launch_delay_p50_us", "launch_delay_p99_us")
    row = {name: _of_all(rows, name, max) for name in names}
    row |= {name: _of(rows, name, sum) for name in ("kernels_dropped", "launch_delays_clipped")}
    return row | {"kernels": rows[0].get("kernels") if row["gpu_busy_ms"] is not None else None}


def _extra(plan: Plan, found: Sequence[RepeatResult]) -> Manifest:
    """Return the manifest's entry: that of the first consumer, with the state and the readings of every GPU."""
    gpus, extras = plan.consumers, [each.extra for each in found]
    named = list(zip(gpus, extras, strict=True))
    extra = {key: value for key, value in extras[0].items() if key != "gpu"}
    extra["compared_run"] = {str(gpu): each["compared_run"] for gpu, each in named}  # each GPU checks its own outputs
    extra["check_seconds"] = {
        check: max(each["check_seconds"][check] for each in extras) for check in extras[0]["check_seconds"]
    }
    states = {f"{when}, GPU {gpu}": of for gpu, each in named for when, of in each.get("state", {}).items()}
    readings = {str(gpu): each["gpu"] for gpu, each in named if "gpu" in each}
    extra |= {"state": states} if states else {}
    extra |= {"gpus": readings} if readings else {}
    for name in ("device_clock_error_ns", "cupti_clock_error_ns"):
        if errors_ns := [each[name] for each in extras if each.get(name) is not None]:
            extra[name] = max(errors_ns)
    return extra


def _faults_of_ranks(plan: Plan, found: Sequence[RepeatResult]) -> list[str]:
    """Return what went wrong with each consumer, and counts that are not the same on all."""
    faults = _faults_of_each(plan, found)
    for name in ("commands", "batches", "launch_calls", "collectives"):
        if len(counts := {each.row[name] for each in found}) > 1:
            faults.append(f"GPUs that split the model have different {name}: {sorted(counts)}")
    return faults


def gpu_rows(plan: Plan, run_id: str, found: Sequence[RepeatResult]) -> list[results.Row]:
    """Return the rows of gpus.parquet of one repeat; none for a run on one GPU."""
    if len(found) == 1:
        return []
    assert plan.config.device.gpus is not None
    rows = []
    for gpu, each in zip(plan.config.device.gpus, found, strict=True):
        kept = {name: each.row.get(name) for name in results.GPUS.names}
        requests = plan.stream.requests if plan.stream.tensor > 1 else int(_own(each).sum())
        rows.append(kept | {"run_id": run_id, "gpu": gpu, "requests": requests})
    return rows


def _own(found: RepeatResult, count: int | None = None) -> NDArray[np.int64]:
    """Return 1 for each request, or independent command, that a consumer executed."""
    return np.unpackbits(np.frombuffer(found.own, np.uint8), count=count).astype(np.int64)


def _faults(plan: Plan, found: Sequence[RepeatResult]) -> list[str]:
    """Return what went wrong with each consumer, and requests or commands that not exactly one of them executed."""
    stream = plan.stream
    total, what = (stream.requests, "requests") if stream.has_steps else (stream.commands, "commands")
    times = np.sum([_own(each, total) for each in found], axis=0)
    faults = _faults_of_each(plan, found)
    if missing := int(np.count_nonzero(times == 0)):
        faults.append(f"{missing} of {total} {what} ran on no GPU")
    if repeated := int(np.count_nonzero(times > 1)):
        faults.append(f"{repeated} of {total} {what} ran on several GPUs")
    return faults


def _faults_of_each(plan: Plan, found: Sequence[RepeatResult]) -> list[str]:
    return [
        f"GPU {gpu}: {each.row['status'].removeprefix('failed: ')}"
        for gpu, each in zip(plan.config.device.gpus or (), found, strict=True)
        if each.row["status"] != "ok"
    ]


def _of(rows: Sequence[results.Row], name: str, how: Callable[[list[Any]], Any]) -> Any:
    known = [row[name] for row in rows if row.get(name) is not None]
    return how(known) if known else None


def _of_all(rows: Sequence[results.Row], name: str, how: Callable[[list[Any]], Any]) -> Any:
    """Return the same; None if the column is null in one of the rows."""
    return None if any(row.get(name) is None for row in rows) else _of(rows, name, how)


def _mean(rows: Sequence[results.Row], name: str, weight: str) -> float | None:
    """Return the mean of a column, each row with the weight that another column gives."""
    known = [(row[name], row[weight]) for row in rows if row.get(name) is not None and row[weight]]
    total = sum(each for _, each in known)
    return sum(value * each for value, each in known) / total if total else None


def _work_ms(row: results.Row) -> float:
    return float(row["gpu_span_ms"] or row["wall_ms"])


def _histograms(found: Sequence[RepeatResult]) -> dict[str, LogHistogram]:
    names = dict.fromkeys(name for each in found for name in each.histograms)
    return {
        name: LogHistogram.from_rows([row for each in found for row in each.histograms.get(name, [])]) for name in names
    }


def _distribution(name: str, histogram: LogHistogram, rows: Sequence[results.Row]) -> results.Row:
    """Return the percentiles of all consumers; the largest value is exact."""
    most = _of(rows, f"{name}_max_us", max)
    found = distribution(name, "us", histogram)
    return {column: value if value is None or most is None else min(value, most) for column, value in found.items()}


def _added(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0) for part in parts) for name in names}

"""What a run's files say: the rows of a repeat, from what its children and the config say; the facts of its stream."""

from __future__ import annotations

from launchopt.producing.production import Production
from launchopt.recording import results
from launchopt.recording.identity import stream_hash
from launchopt.streams.chains.chain import Stream, chain_of
from launchopt.streams.experts.stream import ExpertStream
from launchopt.timing.nvtx_ranges import is_profiled
from runner.config.groups import Prefixes, Scheduler
from runner.plan.plan import Plan
from runner.worker.messages import HistogramRows

SHAPES_LISTED = 8  # maximum shapes that a summary lists; it only counts the others


def summary_row(plan: Plan, run_id: str, measured: results.Row, produced: Production) -> results.Row:
    """Return a row of summary.parquet: the consumer's columns, the producer's and those of the config."""
    config, stream = plan.config, plan.stream
    workload = config.workload
    late_ns, late_max_ns = produced.late_p99_ns, produced.late_max_ns
    listed = ", ".join(str(shape) for shape in stream.shapes)
    return {
        **dict.fromkeys(results.SUMMARY.names),
        **measured,
        "run_id": run_id,
        "workload": workload.name,
        "model": workload.model_name(config.model.name),
        "device": plan.info.kind,
        "gpu": plan.info.name if plan.info.kind == "cuda" else None,
        "dtype": stream.dtype.name,
        "weights": str(stream.packing) if stream.packing else None,
        "shapes": listed if len(stream.shapes) <= SHAPES_LISTED else f"{len(stream.shapes)} shapes",
        "layers": stream.layers if workload.has_layers else None,
        "cache": workload.cache.value,
        "input_footprint_bytes": stream.input_bytes,
        "arrival": "replay" if plan.stream.span_ns else config.arrival.kind,
        "independent": stream.independent,
        "requests": stream.requests,
        "scheduler": _scheduler(config.scheduler),
        "max_batch": config.batching.max_batch,
        "timeout_us": config.batching.timeout_us,
        "producer_commands_per_s": produced.pushed / produced.busy_ns * 1e9 if produced.busy_ns else None,
        "producer_cpu_ns_per_command": produced.cpu_ns / produced.pushed
        if produced.cpu_ns and produced.pushed
        else None,
        "producer_blocked_ms": produced.blocked_ns / 1e6,
        "producer_late_p99_us": None if late_ns is None else late_ns / 1e3,
        "producer_late_max_us": None if late_max_ns is None else late_max_ns / 1e3,
        "traced": config.timing.kind.value in ("cupti", "torch") or is_profiled(),
        "interleaved": len(plan.arms) > 1,
        **_prefixes(stream),
        **_experts(stream),
    }


def _scheduler(scheduler: Scheduler) -> str:
    """Return the scheduler, with the options that change which steps run, or when."""
    ahead = ", steps ahead" if scheduler.ahead else ""
    prefixes = "" if scheduler.prefixes is Prefixes.none else f", prefixes {scheduler.prefixes.value}"
    return scheduler.kind + ahead + prefixes


def _prefixes(stream: Stream) -> results.Row:
    """Return the columns of cached prefixes of prompts."""
    shared = chain_of(stream).prefixes if stream.has_steps else None
    if shared is None:
        return {}
    return {
        "prefix_hit_rate": shared.hit_rate,
        "cached_tokens": shared.cached_tokens,
        "prefix_evicted_blocks": shared.evicted,
        "prefix_host_ns_per_token": shared.host_ns_per_token,
    }


def _experts(stream: Stream) -> results.Row:
    """Return the columns of a layer with experts, and of the distribution of its tokens."""
    if not isinstance(stream, ExpertStream):
        return {}
    layer, counts = stream.layer, stream.expert_columns
    return {
        "expert_routing": stream.routing.name,
        "experts": layer.experts,
        "experts_per_token": layer.top_k,
        "steps": stream.steps,
        "step_tokens": layer.columns,
        "active_experts": float(stream.active.mean()),
        "largest_expert_tokens": float(counts.max(axis=1).mean()),
    }


def histogram_rows(row: results.Row, histograms: HistogramRows) -> list[results.Row]:
    """Return a row for each bucket of a repeat's histograms."""
    named = {name: row[name] for name in ("run_id", "mode", "repeat")}
    return [
        {**named, "what": what, "low": low, "high": high, "count": count}
        for what, rows in histograms.items()
        for low, high, count in rows
    ]


def stream_facts(plan: Plan) -> dict[str, object]:
    """Return the manifest's entry on the commands of a run."""
    stream = plan.stream
    return {
        "hash": stream_hash(stream),
        "commands": stream.commands,
        "layers": stream.layers,
        "weights": str(stream.packing),
        "replicas": stream.replicas,
        "requests": stream.requests,
        "shapes": {str(shape): count for shape, count in sorted(stream.counts.items())},
        "arena_bytes": stream.arena_bytes,
        "input_footprint_bytes": stream.input_bytes,
        "cache_bytes": plan.info.cache_bytes,
        "cache_residency": plan.residency,
    }

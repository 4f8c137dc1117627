"""The workload that replays a trace: what its group may hold, the stream it asks for, and what the user is told of it.

In: a checked `Trace` group, and how large the device's cache is. Out: a `TraceStream`. ConfigError and DataError say
what is wrong with the settings, or with the file.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from launchopt.arrivals.process import SPAN_NS_MAX
from launchopt.command import Dtype
from launchopt.errors import ConfigError
from launchopt.options import above_zero, within
from launchopt.traces.gemms import DTYPES, EXACT_TYPES, Gemm, TraceGemms, read_gemms
from launchopt.workloads.footprint import Cache, replicas_for
from launchopt.workloads.stream import ArenaKey
from launchopt.workloads.trace import TraceStream, Weights, first_commands


class Gaps(enum.Enum):
    """When commands are due."""

    trace = "trace"  # as long after the first as in the trace
    none = "none"  # as soon as the ring has room: a closed loop


@dataclass(slots=True)
class Trace:
    """The GEMMs of a profiler's trace."""

    name: str = MISSING
    path: str = MISSING  # Kineto (torch.profiler) JSON, plain or gzip, recorded with record_shapes=True
    commands: int | None = None  # the first so many of the trace; null: all
    repeat: int = 1  # the trace again and again
    gaps: Gaps = Gaps.trace
    speed: float = 1.0  # 2: twice the pace of the trace
    dtype: Dtype | None = None  # null: what most GEMMs of the trace have
    cache: Cache = Cache.cold
    replicas: int | None = None  # distinct weights a shape; null: what `cache` asks for, at least max_batch

    def __post_init__(self) -> None:
        for key in ("commands", "repeat", "replicas"):
            within(f"workload.{key}", getattr(self, key), 1)
        above_zero("workload.speed", self.speed)

    @property
    def model(self) -> str:
        """Whose shapes they are: the file's name, up to its first point."""
        return Path(self.path).name.partition(".")[0]


def trace_stream(workload: Trace, cache_bytes: int, max_batch: int, notices: list[str]) -> TraceStream:
    """The stream; what the user should know of it is added to `notices`."""
    trace = read_gemms(Path(workload.path))
    if workload.commands is not None and workload.commands > trace.commands:
        most = f"must be at most {trace.commands}: {workload.path} has no more"
        raise ConfigError("workload.commands", workload.commands, most)
    gemms = first_commands(trace.gemms, workload.commands)
    dtype = _usual_dtype(gemms) if workload.dtype is None else workload.dtype  # fp32 is 0
    speed = workload.speed if workload.gaps is Gaps.trace else None
    if speed and gemms[-1].start_ns + max(gemm.end_ns for gemm in gemms) * workload.repeat > SPAN_NS_MAX * speed:
        raise ConfigError("workload.speed", workload.speed, "the last command would be due in over 146 years")
    stream = TraceStream(gemms, dtype, _weights(workload, gemms, dtype, cache_bytes, max_batch), workload.repeat, speed)
    notices += _notices(workload, trace, gemms, stream)
    return stream


def _usual_dtype(gemms: Sequence[Gemm]) -> Dtype:
    known = Counter(DTYPES[gemm.type] for gemm in gemms if gemm.type in DTYPES)
    if not known:
        types = ", ".join(sorted({gemm.type for gemm in gemms}))
        raise ConfigError("workload.dtype", "null", f"the trace's GEMMs have {types}: give fp32, fp16 or bf16")
    return known.most_common(1)[0][0]


def _weights(workload: Trace, gemms: Sequence[Gemm], dtype: Dtype, cache_bytes: int, max_batch: int) -> Weights:
    """Cold: weights of each shape alone are more than the cache holds. Hot: those of all shapes fit."""
    replicas = workload.replicas
    if replicas is None and workload.cache is Cache.hot:
        a_copy = sum(m * k for m, k in {(gemm.m, gemm.k) for gemm in gemms}) * dtype.itemsize
        replicas = replicas_for(Cache.hot, a_copy, cache_bytes)

    def weights(arena: ArenaKey, uses: int) -> int:
        return replicas or replicas_for(Cache.cold, arena.slot_bytes, cache_bytes, min(max_batch, uses))

    return weights


def _notices(workload: Trace, trace: TraceGemms, gemms: Sequence[Gemm], stream: TraceStream) -> list[str]:
    threads = f"{stream.requests} thread{'' if stream.requests == 1 else 's'}"
    notices = [
        f"trace: {len(gemms):,} of {len(trace.gemms):,} GEMM operators of {workload.path}: {stream.commands:,} commands"
        f" of {len(stream.shapes):,} shapes from {threads}; the second factor is taken for the weight",
        "trace: it does not tell whose result a GEMM read: where a mode does not launch in its order, dependencies are"
        " ignored",
    ]
    kept = {name for name in EXACT_TYPES if DTYPES[name] is stream.dtype}
    converted = Counter(gemm.type for gemm in gemms if gemm.type not in kept)
    if converted:
        counted = ", ".join(f"{count:,} of {name}" for name, count in converted.most_common())
        notices.append(f"trace: operators replayed in {stream.dtype.name}: {counted}")
    if trace.left_out:
        counted = ", ".join(f"{count:,} {why}" for why, count in sorted(trace.left_out.items()))
        notices.append(f"trace: operators left out: {counted}")
    return notices

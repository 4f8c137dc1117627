"""trace: the GEMMs of the profiler's trace at workload.path, in its order and with its gaps.

In: the options, and the size of the device's cache. Out: a `TraceStream`. Wrong options raise a ConfigError, a wrong
file a DataError. Notices tell the user which operators were left out or converted.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launchopt.arrivals.base import SPAN_NS_MAX
from launchopt.command import Dtype
from launchopt.errors import ConfigError
from launchopt.files import user_path
from launchopt.options import REQUIRED, option
from launchopt.streams.footprint import Cache, replicas_for
from launchopt.streams.operands import ArenaKey
from launchopt.streams.row_stream import Weights
from launchopt.streams.trace_stream import TraceStream, first_commands
from launchopt.traces.gemms import DTYPES, EXACT_TYPES, Gemm, TraceGemms, read_gemms
from launchopt.workloads.base import Setting, Workload

LONG_NS = 60 * 10**9  # a repeat that takes longer is announced


class Gaps(enum.Enum):
    """Times at which commands are due."""

    trace = "trace"  # as long after the first command as in the trace
    none = "none"  # as soon as the ring has space: a closed loop


@dataclass(slots=True)
class Trace(Workload):
    """The GEMMs of a profiler's trace."""

    name: str = "trace"
    dtype: Dtype | None = option(None, "null: that of most GEMMs in the trace")
    path: str = option(REQUIRED, "Kineto (torch.profiler) JSON, plain or gzip, recorded with record_shapes=True")
    commands: int | None = option(None, "number of commands to take from the start of the trace; null: all", low=1)
    repeat: int = option(1, "number of passes through the trace", low=1)
    gaps: Gaps = option(Gaps.trace, "trace: commands are due as in the trace; none: a closed loop")
    speed: float = option(1.0, "factor of the trace's pace; 2: twice as fast", is_above_zero=True)

    own_arrival: ClassVar[str] = "workload.gaps=trace, or none for a closed loop"
    instead_of_model: ClassVar[str] = "decode or prefill"
    smallest: ClassVar[tuple[str, ...]] = ("workload.path={trace}",)

    def model_name(self, model: str) -> str:
        """Return the name of the file up to its first dot."""
        return Path(self.path).name.partition(".")[0]

    def lower(self, is_ordered: bool) -> str:
        """Return the settings whose lower values need less memory, for an error text."""
        return "workload.commands or workload.repeat"

    def stream(self, layers: int, setting: Setting) -> TraceStream:
        """Return the stream. Operators that were left out or converted are added to the notices."""
        trace = read_gemms(user_path("workload.path", self.path))
        if self.commands is not None and self.commands > trace.commands:
            most = f"must be at most {trace.commands}: {self.path} has no more"
            raise ConfigError("workload.commands", self.commands, most)
        gemms = first_commands(trace.gemms, self.commands)
        dtype = _usual_dtype(gemms) if self.dtype is None else self.dtype  # no `or`: Dtype.fp32 is 0
        speed = self.speed if self.gaps is Gaps.trace else None
        if speed and gemms[-1].start_ns + max(gemm.end_ns for gemm in gemms) * self.repeat > SPAN_NS_MAX * speed:
            raise ConfigError("workload.speed", self.speed, "the last command would be due in over 146 years")
        stream = TraceStream(gemms, dtype, self._weights(gemms, dtype, setting), self.repeat, speed)
        setting.notices.extend(self._notices(trace, gemms, stream))
        return stream

    def _weights(self, gemms: Sequence[Gemm], dtype: Dtype, setting: Setting) -> Weights:
        """Return the function that chooses the number of different weights of an arena.

        With a cold cache the weights of each shape alone exceed the cache. With a hot one those of all shapes fit.
        """
        replicas = self.replicas
        if replicas is None and self.cache is Cache.hot:
            a_copy = sum(m * k for m, k in {(gemm.m, gemm.k) for gemm in gemms}) * dtype.itemsize
            replicas = replicas_for(Cache.hot, a_copy, setting.cache_bytes)

        def weights(arena: ArenaKey, uses: int) -> int:
            multiple = min(setting.max_batch, uses)
            return replicas or replicas_for(Cache.cold, arena.slot_bytes, setting.cache_bytes, multiple)

        return weights

    def _notices(self, trace: TraceGemms, gemms: Sequence[Gemm], stream: TraceStream) -> list[str]:
        threads = f"{stream.requests} thread{'' if stream.requests == 1 else 's'}"
        notices = [
            f"trace: {len(gemms):,} of {len(trace.gemms):,} GEMM operators of {self.path}: {stream.commands:,} commands"
            f" of {len(stream.shapes):,} shapes from {threads}; the second factor of each is taken as the weight",
            "trace: it does not record whose result a GEMM reads: modes that change the order of its commands ignore"
            " dependencies",
        ]
        kept = {name for name in EXACT_TYPES if DTYPES[name] is stream.dtype}
        converted = Counter(gemm.type for gemm in gemms if gemm.type not in kept)
        if converted:
            counted = ", ".join(f"{count:,} of {name}" for name, count in converted.most_common())
            notices.append(f"trace: operators replayed in {stream.dtype.name}: {counted}")
        if stream.span_ns > LONG_NS:
            notices.append(
                f"trace: each repeat takes {stream.span_ns * 1e-9:,.0f} s at this pace: workload.speed=N replays"
                " it N times as fast, workload.gaps=none without waiting"
            )
        if trace.left_out:
            counted = ", ".join(f"{count:,} {why}" for why, count in sorted(trace.left_out.items()))
            notices.append(f"trace: operators left out: {counted}")
        return notices


def _usual_dtype(gemms: Sequence[Gemm]) -> Dtype:
    known = Counter(DTYPES[gemm.type] for gemm in gemms if gemm.type in DTYPES)
    if not known:
        types = ", ".join(sorted({gemm.type for gemm in gemms}))
        raise ConfigError("workload.dtype", "null", f"the trace's GEMMs have {types}: give fp32, fp16 or bf16")
    return known.most_common(1)[0][0]

"""Collectives in traces of several GPUs: how long each GPU waited for the others, apart from the transfer.

In: the kernels of traces that other tools recorded. Out: `Collectives`. The k-th collective of one GPU is the k-th of
every other. A GPU arrives when its kernel begins. The clocks of traces are taken as they are, unless a collective would
end on one GPU before it begins on another. `all_reduces` says what wait, skew and transfer are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from launchopt.analysis.profiles.all_reduces import AllReduces, Times, of_gpus
from launchopt.traces.events import Kind, Trace

# Kernels that end on no GPU before they have begun on all: NCCL's, those of engines, and our own.
NAMES = re.compile(
    r"nccl(Dev)?Kernel_?(AllReduce|AllGather|ReduceScatter)|all_?reduce|cross_device_reduce|\bREDUCE_ADD|\bALL_GATHER",
    re.IGNORECASE,
)


class TimedGpu(NamedTuple):
    """The collectives of one GPU, by their begin."""

    name: str
    starts_ns: Times
    ends_ns: Times


@dataclass(frozen=True, slots=True)
class GpuWaits:
    """How long one GPU waited. last_share: share of the collectives to which it came last."""

    gpu: str
    wait_p50_us: float
    wait_p99_us: float
    last_share: float


@dataclass(frozen=True, slots=True)
class Collectives:
    """Skew: from the first arrival at a collective to the last. Transfer: from the last arrival to the end on a GPU."""

    count: int
    skew_p50_us: float
    skew_p99_us: float
    transfer_p50_us: float
    transfer_p99_us: float
    clock_error_us: float  # most that a clock can be off from that of the first GPU
    is_clock_set: bool  # whether a clock had to be set
    gpus: list[GpuWaits]


def timed_gpus(file: str, trace: Trace) -> list[TimedGpu]:
    """Return the GPUs of a trace that have collectives."""
    wanted = np.array([bool(NAMES.search(name)) for name in trace.names], bool)
    kernels = trace.gpu[trace.gpu["kind"] == Kind.KERNEL]
    kernels = kernels[wanted[kernels["name"]]] if len(wanted) else kernels[:0]
    found = []
    for device in np.unique(kernels["device"]).tolist():
        own = np.sort(kernels[kernels["device"] == device], order="start_ns")
        found.append(
            TimedGpu(f"GPU {device} of {file}", own["start_ns"].astype(np.int64), own["end_ns"].astype(np.int64))
        )
    return found


def collectives(files: Sequence[Sequence[TimedGpu]]) -> list[Collectives | str]:
    """Return the collectives of GPUs that work together, or why they are not the same ones.

    files: the GPUs of each trace. Those of one trace work together, as do those of all traces with one GPU.
    """
    alone = [gpu for gpus in files if len(gpus) == 1 for gpu in gpus]
    return [_together(gpus) for gpus in (*files, alone) if len(gpus) > 1]


def _together(gpus: Sequence[TimedGpu]) -> Collectives | str:
    counts = {gpu.name: len(gpu.starts_ns) for gpu in gpus}
    if len(set(counts.values())) > 1:
        fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        return f"{counts[most]:,} on {most}, {counts[fewest]:,} on {fewest}"
    found = of_gpus(np.stack([gpu.starts_ns for gpu in gpus]), np.stack([gpu.ends_ns for gpu in gpus]))
    if found is None:
        return f"some end on {gpus[0].name} before they begin on another one, or the reverse, whatever the clocks"
    return _summed([gpu.name for gpu in gpus], found)


def _summed(names: Sequence[str], found: AllReduces) -> Collectives:
    waits_us = found.waits_ns / 1e3
    last = found.arrived_ns.argmax(axis=0)
    skew, transfer = _percentiles(waits_us.max(axis=0)), _percentiles(found.transfers_ns / 1e3)
    of_each = [
        GpuWaits(name, *_percentiles(own_us), float((last == at).mean()))
        for at, (name, own_us) in enumerate(zip(names, waits_us, strict=True))
    ]
    return Collectives(len(last), *skew, *transfer, found.error_ns / 1e3, any(found.offsets_ns), of_each)


def _percentiles(values: np.ndarray) -> tuple[float, float]:
    p50, p99 = np.percentile(values, [50, 99]).tolist()
    return p50, p99

"""How long each GPU waited for the others in the collectives of one group, apart from the transfer.

A GPU arrives when its kernel begins. `matching` says which collectives are one, `clocks` how clocks are brought
together, and `all_reduces` what wait, skew and transfer are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from launchopt.analysis.collectives.all_reduces import AllReduces, of_gpus
from launchopt.analysis.collectives.gpus import Calls
from launchopt.analysis.collectives.matching import difference, matchings


@dataclass(frozen=True, slots=True)
class GpuWaits:
    """How long one GPU waited. last_share: share of the collectives to which it came last; a tie is shared."""

    gpu: str
    wait_p50_us: float
    wait_p99_us: float
    last_share: float


@dataclass(frozen=True, slots=True)
class Collectives:
    """Skew: from the first arrival at a collective to the last. Transfer: from the last arrival to the end on a GPU."""

    group: str | None  # None: the traces do not name it
    count: int
    skew_p50_us: float
    skew_p99_us: float
    transfer_p50_us: float
    transfer_p99_us: float
    clock_error_us: float  # most that the offset between two clocks can be off
    is_clock_set: bool  # whether clocks had to be set
    gpus: list[GpuWaits]


def waits(group: str | None, names: Sequence[str], of_each: Sequence[Calls]) -> Collectives | str:
    """Return the waits of GPUs with these names, or why their collectives are not the same ones."""
    for orders in matchings(of_each):
        both = list(zip(of_each, orders, strict=True))
        timed = np.stack([calls.is_timed[order] for calls, order in both]).all(axis=0)
        if not timed.any():
            return "none has a usable time on every GPU"
        starts, ends = (
            np.stack([times[order][timed] for times, (_, order) in zip(column, both, strict=True)])
            for column in ([each.starts_ns for each in of_each], [each.ends_ns for each in of_each])
        )
        found = of_gpus(starts, ends)
        if found is not None:
            return _summed(group, names, found)
    return difference(names, of_each)


def _summed(group: str | None, names: Sequence[str], found: AllReduces) -> Collectives:
    waits_us = found.waits_ns / 1e3
    skew, transfer = _percentiles(waits_us.max(axis=0)), _percentiles(found.transfers_ns / 1e3)
    of_each = [
        GpuWaits(name, *_percentiles(own_us), share)
        for name, own_us, share in zip(names, waits_us, found.last_shares.tolist(), strict=True)
    ]
    return Collectives(group, found.asked, *skew, *transfer, found.error_ns / 1e3, any(found.offsets_ns), of_each)


def _percentiles(values: np.ndarray) -> tuple[float, float]:
    p50, p99 = np.percentile(values, [50, 99]).tolist()
    return p50, p99

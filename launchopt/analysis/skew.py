"""The skew of the GPUs that split a model: how long each waited for the last one at an all-reduce, and the transfer.

In: `AllReduces` of each repeat of a run. Out: a `GpuSkew` for each mode and GPU, over all repeats. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from launchopt.analysis.collectives.all_reduces import AllReduces, Repeat
from launchopt.analysis.collectives.clocks import Times
from launchopt.analysis.line_names import named_by_run
from launchopt.recording.results import Row

HEADINGS = (
    "all-reduces of",
    "timed",
    "came last",
    "wait us p50 / p99",
    "transfer us p50 / p99",
    "clocks within us",
)
LEGEND = (
    "wait: from the arrival of a GPU to that of the last one; skew: the wait of the first one; transfer: from the last "
    "arrival to the end"
)
NO_TIMES = (
    "no all-reduce has times of its own: in a graph, in a fused launch or in a step that is timed as a whole it has "
    "none; on GPUs timing=cupti times each kernel"
)


@dataclass(frozen=True, slots=True)
class GpuSkew:
    """All-reduces of one mode on one GPU; gpu None: the skew, and the transfer of all GPUs."""

    run: str  # its run_id, as the readers of rows name it
    mode: str
    gpu: int | None
    all_reduces: int
    timed: int  # of them, on every GPU
    last_share: float | None  # of the timed ones, those at which this GPU arrived last; a tie is shared
    wait_p50_us: float
    wait_p99_us: float
    transfer_p50_us: float
    transfer_p99_us: float
    clock_error_us: float  # largest error of the times of one GPU against those of another; 0: they have one clock


def skews(run: str, found: Mapping[Repeat, AllReduces]) -> list[GpuSkew]:
    """Return the skew of each mode, then of each of its GPUs."""
    modes: dict[str, list[AllReduces]] = {}
    for (mode, _), each in found.items():
        modes.setdefault(mode, []).append(each)
    return [one for mode, repeats in modes.items() for one in _of_mode(run, mode, repeats)]


def _of_mode(run: str, mode: str, repeats: Sequence[AllReduces]) -> Iterator[GpuSkew]:
    waits_ns = np.concatenate([each.waits_ns for each in repeats], axis=1)
    transfers_ns = np.concatenate([each.transfers_ns for each in repeats], axis=1)
    asked, error_us = sum(each.asked for each in repeats), max(each.error_ns for each in repeats) / 1e3

    def of(gpu: int | None, share: float | None, wait_ns: Times, transfer_ns: Times) -> GpuSkew:
        found = wait_ns.shape[0], share, *_percentiles_us(wait_ns), *_percentiles_us(transfer_ns)
        return GpuSkew(run, mode, gpu, asked, *found, error_us)

    yield of(None, None, waits_ns.max(axis=0), transfers_ns.max(axis=0))
    timed = [each.arrived_ns.shape[1] for each in repeats]
    shares = np.average([each.last_shares for each in repeats], axis=0, weights=timed).tolist()
    for at, gpu in enumerate(repeats[0].gpus):
        yield of(gpu, shares[at], waits_ns[at], transfers_ns[at])


def _percentiles_us(times_ns: Times) -> tuple[float, float]:
    p50_us, p99_us = (np.percentile(times_ns, [50, 99]) / 1e3).tolist()
    return p50_us, p99_us


def split_runs(rows: Iterable[Row]) -> set[str]:
    """Return the runs in which GPUs split a model. rows: of summary.parquet."""
    return {row["run_id"] for row in rows if row.get("tensor")}


def skew_rows(found: Sequence[GpuSkew], runs: Collection[str]) -> list[list[str]]:
    """Return the cells of the table, under HEADINGS. runs: what `split_runs` returns; several are named."""
    rows = []
    for each in found:
        wait = f"{each.wait_p50_us:,.2f} / {each.wait_p99_us:,.2f}"
        transfer = f"{each.transfer_p50_us:,.2f} / {each.transfer_p99_us:,.2f}"
        if each.gpu is None:
            name = named_by_run(each.mode, each.run, runs)
            timed = f"{each.timed:,} of {each.all_reduces:,}"
            rows.append([f"{name}, skew", timed, "", wait, transfer, f"{each.clock_error_us:,.1f}"])
        else:
            rows.append([f"  GPU {each.gpu}", "", f"{each.last_share:.0%}", wait, transfer, ""])
    return rows


def without_times(rows: Iterable[Row], found: Sequence[GpuSkew]) -> list[str]:
    """Return a line on each split mode of a run of which no all-reduce was timed. rows: of summary.parquet."""
    known = {(each.run, each.mode) for each in found}
    split = dict.fromkeys((row["run_id"], row["mode"]) for row in rows if row.get("tensor"))
    runs = {run_id for run_id, _ in split}
    absent = [each for each in split if each not in known]
    return [f"{named_by_run(mode, run_id, runs)}: {NO_TIMES}" for run_id, mode in absent]

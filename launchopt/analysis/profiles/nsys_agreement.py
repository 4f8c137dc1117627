"""Whether this project's join of a profile agrees with nsys' own statistics, and with a CUPTI run of the same job.

Enters: the CSV of `nsys stats` (2022 to 2025), the `Profile` of the same file, summary rows of a timing=cupti run.
Leaves: an `Agreement` a quantity. Counts must be the same, times may differ by a share that is stated with them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launchopt.analysis.profiles.nsys import Profile, RangeRow
from launchopt.errors import DataError

TIME_LIMIT = 0.01  # of the other's time


@dataclass(frozen=True, slots=True)
class Agreement:
    """One quantity, by somebody else and by this project."""

    what: str
    by: str  # who the other is: nsys stats, CUPTI
    theirs: float
    ours: float
    limit: float  # the largest share of theirs by which ours may differ
    agrees: bool

    @property
    def difference(self) -> float:
        """As a share of theirs."""
        if self.theirs == self.ours:
            return 0.0
        return (self.ours - self.theirs) / self.theirs if self.theirs else float("inf")


@dataclass(frozen=True, slots=True)
class Sum:
    """All lines of one of nsys' summaries."""

    count: int
    total_ns: int


def kernel_sum(lines: Iterable[str], name: str) -> Sum:
    """Of the report cuda_gpu_kern_sum, or gpukernsum; `name` is for the error. No lines of a table: no kernels."""
    return _sum(lines, "Instances", name)


def _sum(lines: Iterable[str], count_column: str, name: str) -> Sum:
    columns: Sequence[str] = ()
    count = total_ns = 0
    for number, row in enumerate(csv.reader(lines), 1):
        if not columns:
            columns = row if "Total Time (ns)" in row else ()
            if columns and count_column not in columns:
                raise DataError(name, number, f"no column {count_column!r}: not the report that was asked for")
        elif len(row) == len(columns):
            cells = dict(zip(columns, row, strict=True))
            try:
                count += int(cells[count_column])
                total_ns += int(cells["Total Time (ns)"])
            except ValueError as error:
                raise DataError(name, number, f"not a whole number ({error})") from None
    return Sum(count, total_ns)


def agreements(profile: Profile, kernels: Sum) -> list[Agreement]:
    """All kernels of one file: by `nsys stats` and by the join."""
    by = "nsys stats, same profile"
    return [
        _count("kernels", by, kernels.count, profile.total.kernels),
        _time("sum of kernel times ms", by, kernels.total_ns / 1e6, profile.total.kernel_ms),
    ]


def agreements_with_run(mode: str, inside: RangeRow, rows: Sequence[Mapping[str, Any]]) -> list[Agreement]:
    """What lies in the ranges of `mode`, and its rows of timing=cupti runs of the same job, all repeats together."""
    traced = [row for row in rows if row["mode"] == mode]
    if any(row["kernels"] is None for row in traced):
        raise DataError("summary.parquet", None, f"mode={mode} counted no kernels: run it with timing=cupti")
    by = f"CUPTI, mode={mode}"
    return [
        _count("kernels", by, sum(row["kernels"] for row in traced), inside.kernels),
        _time("GPU busy ms", by, sum(row["gpu_busy_ms"] for row in traced), inside.gpu_busy_ms),
    ]


def _count(what: str, by: str, theirs: int, ours: int) -> Agreement:
    return Agreement(what, by, theirs, ours, 0.0, theirs == ours)


def _time(what: str, by: str, theirs: float, ours: float) -> Agreement:
    return Agreement(what, by, theirs, ours, TIME_LIMIT, abs(ours - theirs) <= TIME_LIMIT * theirs)

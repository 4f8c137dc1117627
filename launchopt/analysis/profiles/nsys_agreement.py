"""Agreement of this project's join of a profile with nsys' own statistics and with a CUPTI run of the same job.

In: the CSV of `nsys stats` (2022 to 2025), the `Profile` of the same file, summary rows of a timing=cupti run. Out: an
`Agreement` per quantity. Counts must be equal. Times may differ by the share that each agreement states.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from launchopt.analysis.profiles.nsys import Profile, RangeRow
from launchopt.errors import DataError
from launchopt.reading.shapes import NUMBER_MAX
from launchopt.recording.results import Row

TIME_LIMIT = 0.01  # largest allowed difference, as a share of the other tool's time


@dataclass(frozen=True, slots=True)
class Agreement:
    """One quantity, measured by another tool and by this project."""

    what: str
    by: str  # the other tool: nsys stats or CUPTI
    theirs: float
    ours: float
    limit: float  # largest allowed difference, as a share of the other tool's value
    agrees: bool

    @property
    def difference(self) -> float:
        """Difference as a share of the other tool's value."""
        if self.theirs == self.ours:
            return 0.0
        return (self.ours - self.theirs) / self.theirs if self.theirs else float("inf")


@dataclass(frozen=True, slots=True)
class Sum:
    """Sum over all lines of one nsys summary."""

    count: int
    total_ns: int


def kernel_sum(lines: Iterable[str], name: str) -> Sum:
    """Return the sum of a report cuda_gpu_kern_sum or gpukernsum; zero for no lines. `name` appears in the error."""
    return _sum(lines, "Instances", name)


def _rows(lines: Iterable[str], name: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(lines)
    except csv.Error as error:  # a very long cell
        raise DataError(name, None, f"cannot be read as CSV ({error})") from None


def _sum(lines: Iterable[str], count_column: str, name: str) -> Sum:
    columns: Sequence[str] = ()
    count = total_ns = 0
    for number, row in enumerate(_rows(lines, name), 1):
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
            if max(abs(count), abs(total_ns)) > NUMBER_MAX:
                raise DataError(name, number, "more than any profile has")
    return Sum(count, total_ns)


def agreements(profile: Profile, kernels: Sum) -> list[Agreement]:
    """Compare all kernels of one file: `nsys stats` and the join."""
    by = "nsys stats, same profile"
    return [
        _count("kernels", by, kernels.count, profile.total.kernels),
        _time("sum of kernel times ms", by, kernels.total_ns / 1e6, profile.total.kernel_ms),
    ]


def agreements_with_run(mode: str, inside: RangeRow, rows: Sequence[Row]) -> list[Agreement]:
    """Compare the ranges of `mode` with all repeats of its timing=cupti runs of the same job."""
    traced = [row for row in rows if row["mode"] == mode]
    if any(row["kernels"] is None or row["gpu_busy_ms"] is None for row in traced):
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

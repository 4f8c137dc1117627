"""Kernels that Nsight Compute replayed: their duration, and the limit of the GPU that each comes closest to.

In: the lines of `ncu --import FILE --csv --page raw`: names, units, then a line per kernel. Output of the profiled
program may come before. Out: a `Kernel` each. Metrics that were not collected, or that this GPU lacks, are None.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from launchopt.errors import DataError

MOST_KERNELS = 100_000  # maximum lines; a profile of a few launches has far fewer

# ncu's names of each metric, the newest first, and the unit of our column.
_DURATION = (("gpu__time_duration.sum", "gpu__time_duration.avg"), "us")
_DRAM_READ = (("dram__bytes_read.sum",), "MB")
_DRAM_RATE = (("dram__bytes.sum.per_second",), "GB/s")
_DRAM_SHARE = (
    (
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "%",
)
_MEMORY_SHARE = (("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",), "%")
_SM_SHARE = (("sm__throughput.avg.pct_of_peak_sustained_elapsed",), "%")
_OCCUPANCY = (("sm__warps_active.avg.pct_of_peak_sustained_active",), "%")
_L2_HITS = (("lts__t_sector_hit_rate.pct",), "%")
_REGISTERS = (("launch__registers_per_thread",), "")
_WAVES = (("launch__waves_per_multiprocessor",), "")

_TIMES = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3, "second": 1e6}
_PREFIXES = {"": 1e-9, "K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}
_SCALES = {
    "us": _TIMES,
    "GB/s": {f"{prefix}byte/{second}": scale for prefix, scale in _PREFIXES.items() for second in ("s", "second")},
    "MB": {f"{prefix}byte": 1e3 * scale for prefix, scale in _PREFIXES.items()},
    "%": {"%": 1.0, "": 1.0, "percent": 1.0},
}
_ABSENT = frozenset({"", "n/a", "nan", "no data", "(!) n/a"})

Metric = tuple[Sequence[str], str]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One replayed launch. Shares are percentages of the GPU's peak."""

    id: str
    name: str  # demangled name, with template arguments
    grid: str
    block: str
    duration_us: float | None  # duration of the kernel alone on the GPU, with caches flushed before it
    dram_read_mb: float | None
    dram_gb_per_s: float | None
    dram_percent: float | None
    memory_percent: float | None  # utilization of the busiest part of the memory system
    sm_percent: float | None  # utilization of the busiest part of the multiprocessors
    occupancy_percent: float | None  # achieved occupancy: resident warps over the maximum
    l2_hit_percent: float | None
    registers: int | None  # registers per thread
    waves: float | None  # blocks over the number that the GPU holds at once; below 1 the GPU is not full

    @property
    def limit(self) -> str:
        """The limit that the kernel comes closest to. By ncu's rule it is latency below 60% of all limits."""
        if self.memory_percent is None or self.sm_percent is None:
            return "unknown"
        if max(self.memory_percent, self.sm_percent) < 60.0:
            return "latency"
        return "memory" if self.memory_percent >= self.sm_percent else "compute"


def read_kernels(lines: Iterable[str], name: str) -> list[Kernel]:
    """Return every kernel of the CSV; DataError, naming `name` and a line, for anything else."""
    reader = csv.reader(lines)
    header: list[str] = []
    units: dict[str, str] = {}
    kernels: list[Kernel] = []
    try:
        for row in reader:
            if not header:
                header = row if row[:1] == ["ID"] else []
                continue
            if len(row) != len(header):
                continue  # messages of the tool after the table
            cells = dict(zip(header, row, strict=True))
            if not units:
                units = _units(cells, name, reader.line_num)
            elif len(kernels) == MOST_KERNELS:
                raise DataError(name, reader.line_num, f"more than {MOST_KERNELS:,} kernels: profile fewer launches")
            else:
                kernels.append(_kernel(cells, units, name, reader.line_num))
    except csv.Error as error:
        raise DataError(name, reader.line_num, f"not CSV ({error})") from None
    if not header:
        raise DataError(name, None, "no table of kernels: made with `ncu --import FILE --csv --page raw`?")
    return kernels


def _units(cells: Mapping[str, str], name: str, line: int) -> dict[str, str]:
    """Return the units in the second line. The details page has none, and no column per metric."""
    if "Metric Name" in cells:
        raise DataError(name, line, "ncu's details page, one metric per line; made with --page raw it can be read")
    if cells["ID"]:
        raise DataError(name, line, "no line of units below the names: not ncu's raw page")
    return dict(cells)


def _kernel(cells: Mapping[str, str], units: Mapping[str, str], name: str, line: int) -> Kernel:
    def value(metric: Metric) -> float | None:
        return _value(metric, cells, units, name, line)

    registers = value(_REGISTERS)
    return Kernel(
        id=cells["ID"],
        name=cells.get("Kernel Name", ""),
        grid=_extent(cells.get("Grid Size", "")),
        block=_extent(cells.get("Block Size", "")),
        duration_us=value(_DURATION),
        dram_read_mb=value(_DRAM_READ),
        dram_gb_per_s=value(_DRAM_RATE),
        dram_percent=value(_DRAM_SHARE),
        memory_percent=value(_MEMORY_SHARE),
        sm_percent=value(_SM_SHARE),
        occupancy_percent=value(_OCCUPANCY),
        l2_hit_percent=value(_L2_HITS),
        registers=None if registers is None else int(registers),
        waves=value(_WAVES),
    )


def _value(metric: Metric, cells: Mapping[str, str], units: Mapping[str, str], name: str, line: int) -> float | None:
    names, wanted = metric
    for each in names:
        text = cells.get(each, "").strip()
        if text.lower() in _ABSENT:
            continue
        try:
            number = float(text.replace(",", ""))
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise DataError(name, line, f"{each}: {text[:40]!r} is no number")
        scale = _SCALES[wanted].get(units[each]) if wanted else 1.0
        if scale is None:
            raise DataError(name, line, f"{each}: unit {units[each][:40]!r} is not known")
        return number * scale
    return None


def _extent(text: str) -> str:
    """Return (1024, 1, 1) as 1024x1x1; any other text unchanged."""
    numbers = re.findall(r"\d+", text)
    return "x".join(numbers) if len(numbers) == 3 else text


def short_name(name: str) -> str:
    """Return a demangled name without its return type, template arguments and parameters."""
    kept, depth = [], 0
    for sign in name.replace("(anonymous namespace)::", ""):
        if sign == "<":
            depth += 1
        elif sign == ">":
            depth = max(depth - 1, 0)
        elif sign == "(" and not depth:
            break
        elif not depth:
            kept.append(sign)
    return "".join(kept).strip().split(" ")[-1] or name

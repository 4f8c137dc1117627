"""A machine's floors: the least time that it needs for a launch, for an event, and to move a byte.

A device opened for this purpose gives one `Measured` per floor, with one sample per repeat. `floor_of` turns each into
the `Floor` that a calibration stores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from launchopt.command import Dtype
from launchopt.devices.cuda.floors.loops import clock_burst
from launchopt.devices.launch_breakdown import Floor, Stage
from launchopt.files import JsonObject
from launchopt.statistics.interval import median_interval
from launchopt.timing import nvtx_ranges
from launchopt.timing.activity import Ceilings

CALLS = 200  # calls timed together: fewer than the 1,024 launches that a GPU's queue holds
CLOCK_READS = 10_000


@dataclass(frozen=True, slots=True)
class Measured:
    """The samples of one floor in `unit`, one per repeat, and how they were measured."""

    name: str
    unit: str
    samples: Sequence[float]
    how: str


class Floors(Protocol):
    """The floors of one device, which stays open until `close`."""

    absent: dict[str, str]  # names of floors that could not be measured, and why

    def about(self) -> JsonObject:
        """Return the device's description and the versions of its libraries."""

    def measure(self, repeats: int) -> Iterator[Measured]:
        """Measure the floors one by one."""

    def stages(self) -> dict[str, dict[str, Stage]]:
        """Return the stages of one launch, by kernel and name. Call `measure` first. Empty: no stages (the CPU)."""

    def close(self) -> None:
        """Release the device."""


def floor_of(measured: Measured) -> Floor:
    """Return the median of the samples with its 95% interval."""
    found = median_interval(measured.samples)
    return Floor(found.value, measured.unit, found.low, found.high, found.repeats, measured.how, found.range)


def ceilings_of(ceilings: dict[Dtype, list[Ceilings]], how: dict[str, str]) -> Iterator[Measured]:
    """Turn ceilings by element type, one per repeat, into floors. `how` has the keys copy, read and peak."""
    every = [one for each in ceilings.values() for one in each]
    yield Measured("copy_gb_per_s", "GB/s", [one.copy_gb_per_s for one in every], how["copy"])
    yield Measured("read_gb_per_s", "GB/s", [one.read_gb_per_s for one in every], how["read"])
    for dtype, each in ceilings.items():
        yield Measured(f"peak_tflops_{dtype.name}", "TFLOP/s", [one.peak_tflops for one in each], how["peak"])


def host_floors(repeats: int) -> Iterator[Measured]:
    """Measure the costs of the host alone: a clock read and an NVTX range."""
    clock_burst(1)  # compile outside the measurement
    reads = [clock_burst(CLOCK_READS) / CLOCK_READS / 1e3 for _ in range(repeats)]
    yield Measured("clock_read_host_us", "us", reads, f"CLOCK_MONOTONIC from compiled code, {CLOCK_READS:,} times")
    domain = nvtx_ranges.domain()
    attributes = nvtx_ranges.attributes(domain, "floor", 0)
    ranges = [_range_us(domain, attributes) for _ in range(repeats + 1)][1:]
    tool = "a profiler" if nvtx_ranges.attached() else "no profiler"
    yield Measured("nvtx_range_host_us", "us", ranges, f"push and pop from Python, {CALLS} times, {tool} attached")


def _range_us(domain: nvtx_ranges.Domain, attributes: object) -> float:
    start_ns = time.perf_counter_ns()
    for _ in range(CALLS):
        domain.push_range(attributes)
        domain.pop_range()
    return (time.perf_counter_ns() - start_ns) / CALLS / 1e3

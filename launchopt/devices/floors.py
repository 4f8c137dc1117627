"""A machine's floors: what a launch, an event, a byte cost here at the least.

In: a device, opened for nothing else. Out: a `Measured` a floor, a sample a repeat, from which `floor_of` makes what a
calibration keeps; and one launch taken apart into stages, where the device has launches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from launchopt.command import Dtype
from launchopt.devices.base import Ceilings
from launchopt.devices.cuda.floor_loops import clock_burst
from launchopt.devices.launch_breakdown import Floor, Stage
from launchopt.statistics.interval import median_interval
from launchopt.timing import nvtx_ranges

CALLS = 200  # a burst: shorter than the 1,024 launches that a GPU's queue holds
CLOCK_READS = 10_000


@dataclass(frozen=True, slots=True)
class Measured:
    """One floor: a sample a repeat, in `unit`, and how it was measured."""

    name: str
    unit: str
    samples: Sequence[float]
    how: str


class Floors(Protocol):
    """What can be measured on one device. Opening it takes the device; `close` gives it back."""

    absent: dict[str, str]  # what could not be measured, and why

    def about(self) -> dict[str, Any]:
        """Which device, and its versions."""

    def measure(self, repeats: int) -> Iterator[Measured]:
        """Each floor when it has been measured."""

    def stages(self) -> dict[str, dict[str, Stage]]:
        """One launch of each kernel, taken apart, after `measure`; nothing where there are no launches."""

    def close(self) -> None:
        """Give everything back."""


def floor_of(measured: Measured) -> Floor:
    """The median of its samples with a 95% bootstrap interval."""
    interval = median_interval(measured.samples)
    return Floor(interval.value, measured.unit, interval.low, interval.high, interval.repeats, measured.how)


def open_floors(kind: str, index: int) -> Floors:
    """Floors of the device of `kind`, cpu or cuda; imports the libraries it needs."""
    if kind == "cpu":
        from launchopt.devices.cpu.floors import CpuFloors

        return CpuFloors()
    from launchopt.devices.cuda.floors import open_cuda_floors

    return open_cuda_floors(index)


def ceilings_of(ceilings: dict[Dtype, list[Ceilings]], how: dict[str, str]) -> Iterator[Measured]:
    """Floors of repeated ceilings, by element type; `how`: of copy, read and peak."""
    every = [one for each in ceilings.values() for one in each]
    yield Measured("copy_gb_per_s", "GB/s", [one.copy_gb_per_s for one in every], how["copy"])
    yield Measured("read_gb_per_s", "GB/s", [one.read_gb_per_s for one in every], how["read"])
    for dtype, each in ceilings.items():
        yield Measured(f"peak_tflops_{dtype.name}", "TFLOP/s", [one.peak_tflops for one in each], how["peak"])


def host_floors(repeats: int) -> Iterator[Measured]:
    """What costs the host alone: a range, and reading the clock."""
    clock_burst(1)  # compiles
    reads = [clock_burst(CLOCK_READS) / CLOCK_READS / 1e3 for _ in range(repeats)]
    yield Measured("clock_read_host_us", "us", reads, f"CLOCK_MONOTONIC from compiled code, {CLOCK_READS:,} times")
    domain = nvtx_ranges.domain()
    attributes = nvtx_ranges.attributes(domain, "floor", 0)
    ranges = [_range_us(domain, attributes) for _ in range(repeats + 1)][1:]
    tool = "a profiler" if nvtx_ranges.attached() else "no profiler"
    yield Measured("nvtx_range_host_us", "us", ranges, f"push and pop from Python, {CALLS} times, {tool} attached")


def _range_us(domain: Any, attributes: Any) -> float:
    start_ns = time.perf_counter_ns()
    for _ in range(CALLS):
        domain.push_range(attributes)
        domain.pop_range()
    return (time.perf_counter_ns() - start_ns) / CALLS / 1e3

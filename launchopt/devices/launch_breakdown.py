"""The time of each stage of one launch, and how it compares with published estimates.

Launches run one at a time. The launching loop and CUPTI give times in ns on one clock. Each stage gets its median, its
99th percentile and the method of its measurement. The stages:

    arguments      the loop around a launch, measured with a call that does nothing
    call           the library's call, on the host
    driver         the driver's launch call, inside the library's call
    launch_delay   from the return of the driver's call to the kernel's start; negative if the kernel starts earlier
    kernel         from the start of the launch's first kernel to the end of its last kernel
    completion     from the end of the last kernel until the waiting host sees the result
    whole          from before the arguments until the host sees the result
    gap            between two consecutive kernels of a queue that is never empty
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike

from launchopt.files import JsonObject
from launchopt.types import Table

STAGES = ("arguments", "call", "driver", "launch_delay", "kernel", "completion", "whole", "gap")

Times = Table  # ns


class LaunchTime(enum.IntEnum):
    """Columns of the times of a launch, in ns of CLOCK_MONOTONIC."""

    ENTERED_NS = 0  # before the launch
    RETURNED_NS = 1  # after the launch call
    KNOWN_NS = 2  # just after the host saw the result


class SpanTime(enum.IntEnum):
    """Columns of the times of a kernel or of a driver call, in ns of CLOCK_MONOTONIC."""

    START_NS = 0
    END_NS = 1


@dataclass(frozen=True, slots=True)
class Floor:
    """The minimum cost of one thing on a device: a median in `unit` with its 95% interval.

    The bounds are None if there were too few repeats. how: the method of the measurement.
    """

    value: float
    unit: str
    low: float | None
    high: float | None
    repeats: int
    how: str
    range: tuple[float, float] | None = None  # the smallest and the largest sample


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage over many launches: the median and the 99th percentile in us, and the method of the measurement."""

    p50_us: float
    p99_us: float
    how: str


Breakdown = Mapping[str, Stage]


def stage(samples_ns: ArrayLike, how: str) -> Stage:
    """Return the stage of samples in ns, one per launch. ValueError: there are no samples."""
    samples = np.asarray(samples_ns, np.float64)
    if not samples.size:
        raise ValueError(f"no samples: {how}")
    p50_us, p99_us = np.percentile(samples, [50, 99]) / 1e3
    return Stage(float(p50_us), float(p99_us), how)


def traced_stages(launches: Times, calls: Times, kernels: Times) -> dict[str, Times]:
    """Return the ns of driver, launch_delay, kernel and completion, for launches whose call and kernel were traced.

    launches: [launches, LaunchTime], in order. calls: [any, SpanTime], the driver calls that started a kernel.
    kernels: [any, SpanTime]. A call or kernel belongs to the launch that contains its middle, since the two clocks
    differ by less than half of its length.
    """
    call_of, kernel_of = (_launch_of(each, launches) for each in (calls, kernels))
    seen = np.intersect1d(call_of, kernel_of)
    seen = seen[seen >= 0]
    first, last = np.full((2, len(launches)), np.iinfo(np.int64).max), np.full((2, len(launches)), 0)
    for row, (rows, owner) in enumerate(((calls, call_of), (kernels, kernel_of))):
        mine = owner >= 0
        np.minimum.at(first[row], owner[mine], rows[mine, SpanTime.START_NS])
        np.maximum.at(last[row], owner[mine], rows[mine, SpanTime.END_NS])
    # A launch of several kernels makes several calls. Its delay starts at the return of the first call.
    first_return = np.full(len(launches), np.iinfo(np.int64).max)
    np.minimum.at(first_return, call_of[call_of >= 0], calls[call_of >= 0, SpanTime.END_NS])
    return {
        "driver": (last[0] - first[0])[seen],
        "launch_delay": (first[1] - first_return)[seen],
        "kernel": (last[1] - first[1])[seen],
        "completion": (launches[:, LaunchTime.KNOWN_NS] - last[1])[seen],
    }


def _launch_of(rows: Times, launches: Times) -> Times:
    """Return for each row the number of the launch that contains the row's middle, or -1."""
    if not len(launches):
        return np.full(len(rows), -1)
    middle = (rows[:, SpanTime.START_NS] + rows[:, SpanTime.END_NS]) // 2
    at = np.searchsorted(launches[:, LaunchTime.ENTERED_NS], middle, side="right") - 1
    owner: Times = np.where((at >= 0) & (middle <= launches[at, LaunchTime.KNOWN_NS]), at, -1)
    return owner


def gaps_ns(kernels: Times) -> Times:
    """Return the ns from the end of each kernel to the start of the next; negative if they overlap.

    kernels: [kernels, SpanTime], in any order.
    """
    ordered = kernels[np.argsort(kernels[:, SpanTime.START_NS], kind="stable")]
    gaps: Times = ordered[1:, SpanTime.START_NS] - ordered[:-1, SpanTime.END_NS]
    return gaps


@dataclass(frozen=True, slots=True)
class Estimate:
    """A published estimate for a part of a launch, in us, and the stages measured here that make up that part."""

    part: str
    low_us: float
    high_us: float
    stages: Sequence[str]
    why: str

    @property
    def about(self) -> str:
        """The stages, and what they cannot tell."""
        return f"{' + '.join(self.stages)}: {self.why}" if self.stages else self.why


PUBLISHED = (
    Estimate(
        "arguments",
        1,
        3,
        ("arguments", "call"),
        "the driver copies the arguments and notifies the GPU within one call, so the two cannot be timed apart",
    ),
    Estimate(
        "CPU to GPU, and scheduling",
        5,
        13,
        ("launch_delay",),
        "published as two parts, 2-5 and 3-8 us; the first time that the GPU reports is the kernel's start, so "
        "transfer and scheduling cannot be timed apart",
    ),
    Estimate(
        "context",
        1,
        2,
        (),
        "not measured: contexts are switched where several processes share a GPU, and here there is one",
    ),
    Estimate("in all", 7, 18, ("arguments", "call", "launch_delay"), "from the first argument to the kernel's start"),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """An estimate, the sum of the medians measured for it (None: not measured), and the result of the comparison."""

    estimate: Estimate
    measured_us: float | None
    verdict: str


def beside_published(breakdown: Breakdown) -> list[Compared]:
    """Compare each published estimate with the stages measured here."""
    return [_compared(each, breakdown) for each in PUBLISHED]


def _compared(estimate: Estimate, breakdown: Breakdown) -> Compared:
    if not estimate.stages or any(name not in breakdown for name in estimate.stages):
        return Compared(estimate, None, "not measured")
    measured_us = sum(breakdown[name].p50_us for name in estimate.stages)
    if measured_us < estimate.low_us:
        return Compared(estimate, measured_us, "below it")
    return Compared(estimate, measured_us, "above it" if measured_us > estimate.high_us else "within it")


def as_json(breakdowns: Mapping[str, Breakdown]) -> JsonObject:
    """Return breakdowns as a calibration stores them: {kernel: {stage: {"p50_us", "p99_us", "how"}}}."""
    return {kernel: {name: asdict(each) for name, each in stages.items()} for kernel, stages in breakdowns.items()}


def from_json(content: JsonObject) -> dict[str, dict[str, Stage]]:
    """Read breakdowns that `as_json` wrote. ValueError, TypeError or KeyError: the content is of another form."""
    return {
        str(kernel): {
            str(name): Stage(float(each["p50_us"]), float(each["p99_us"]), str(each["how"]))
            for name, each in stages.items()
        }
        for kernel, stages in content.items()
    }

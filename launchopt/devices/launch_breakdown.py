"""One launch taken apart: what it spends where, beside the estimate that is usually quoted for it.

In: times of launches made one by one, as the loop that made them and CUPTI saw them, in ns on one clock. Out: for each
stage a `Stage`, its median and 99th percentile with how it was measured; and what of the estimate that confirms.

    arguments      the loop around a launch, with a call that does nothing in the place of the library's
    call           the library's call itself, on the host
    driver         of it the driver's launch call
    launch_delay   the driver's call has returned, the kernel has not started: below 0 where it has by then
    kernel         its first kernel's start to its last one's end
    completion     the last kernel has ended, the waiting host does not know yet
    whole          from before the arguments to the host knowing of the result
    gap            between two kernels of a queue that never runs dry
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

STAGES = ("arguments", "call", "driver", "launch_delay", "kernel", "completion", "whole", "gap")
ENTERED, RETURNED, KNOWN = range(3)  # columns of the times of a launch: before it, after its call, after its result
START, END = range(2)  # columns of a call of the driver, and of a kernel

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Floor:
    """The least cost of one thing on a device: a median in `unit` with its 95% interval.

    The interval is None where there were too few repeats. `how`: how the floor was measured.
    """

    value: float
    unit: str
    low: float | None
    high: float | None
    repeats: int
    how: str


@dataclass(frozen=True, slots=True)
class Stage:
    """Of many launches the median and the 99th percentile, and how they were measured."""

    p50_us: float
    p99_us: float
    how: str


Breakdown = Mapping[str, Stage]


def stage(samples_ns: ArrayLike, how: str) -> Stage:
    """Of a sample a launch, in ns; ValueError where there is none."""
    samples = np.asarray(samples_ns, np.float64)
    if not samples.size:
        raise ValueError(f"no samples: {how}")
    p50_us, p99_us = np.percentile(samples, [50, 99]) / 1e3
    return Stage(float(p50_us), float(p99_us), how)


def traced_stages(launches: Times, calls: Times, kernels: Times) -> dict[str, Times]:
    """ns of driver, launch_delay, kernel and completion for each launch of which a tracer saw both call and kernel.

    launches [launches, 3]: ENTERED, RETURNED, KNOWN of each, one after the other. calls, kernels [any, 2]: START and
    END of the driver's calls that started a kernel, and of the kernels; each belongs to the launch that its middle lies
    in, since the two clocks differ by less than half of either.
    """
    call_of, kernel_of = (_launch_of(each, launches) for each in (calls, kernels))
    seen = np.intersect1d(call_of, kernel_of)
    seen = seen[seen >= 0]
    first, last = np.full((2, len(launches)), np.iinfo(np.int64).max), np.full((2, len(launches)), 0)
    for row, (rows, owner) in enumerate(((calls, call_of), (kernels, kernel_of))):
        mine = owner >= 0
        np.minimum.at(first[row], owner[mine], rows[mine, START])
        np.maximum.at(last[row], owner[mine], rows[mine, END])
    # A launch of several kernels makes several calls: the delay is that of the first.
    first_return = np.full(len(launches), np.iinfo(np.int64).max)
    np.minimum.at(first_return, call_of[call_of >= 0], calls[call_of >= 0, END])
    return {
        "driver": (last[0] - first[0])[seen],
        "launch_delay": (first[1] - first_return)[seen],
        "kernel": (last[1] - first[1])[seen],
        "completion": (launches[:, KNOWN] - last[1])[seen],
    }


def _launch_of(rows: Times, launches: Times) -> Times:
    """For each row the number of the launch its middle lies in, -1 where that is none."""
    if not len(launches):
        return np.full(len(rows), -1)
    middle = (rows[:, START] + rows[:, END]) // 2
    at = np.searchsorted(launches[:, ENTERED], middle, side="right") - 1
    owner: Times = np.where((at >= 0) & (middle <= launches[at, KNOWN]), at, -1)
    return owner


def gaps_ns(kernels: Times) -> Times:
    """From the end of each kernel to the start of the next; below 0 where they overlap. kernels [any, 2], any order."""
    ordered = kernels[np.argsort(kernels[:, START], kind="stable")]
    gaps: Times = ordered[1:, START] - ordered[:-1, END]
    return gaps


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is usually quoted for a part of a launch, and which of our stages are that part."""

    part: str
    low_us: float
    high_us: float
    stages: Sequence[str]
    why: str


PUBLISHED = (
    Estimate(
        "arguments",
        1,
        3,
        ("arguments", "call"),
        "the driver copies the arguments and rings the GPU within one call, and shows no line between them",
    ),
    Estimate(
        "CPU to GPU, and scheduling",
        5,
        13,
        ("launch_delay",),
        "quoted apart, as 2-5 and 3-8 us; the first moment that the GPU reports is the kernel's start, so that the way "
        "there and the wait for a place cannot be told apart",
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
    """An estimate, the sum of our medians for it (None: not measured), and where that lies."""

    estimate: Estimate
    measured_us: float | None
    verdict: str


def beside_published(breakdown: Breakdown) -> list[Compared]:
    """Each published estimate beside what was measured here."""
    return [_compared(each, breakdown) for each in PUBLISHED]


def _compared(estimate: Estimate, breakdown: Breakdown) -> Compared:
    if not estimate.stages or any(name not in breakdown for name in estimate.stages):
        return Compared(estimate, None, "not measured")
    measured_us = sum(breakdown[name].p50_us for name in estimate.stages)
    if measured_us < estimate.low_us:
        return Compared(estimate, measured_us, "below it")
    return Compared(estimate, measured_us, "above it" if measured_us > estimate.high_us else "within it")


def as_json(breakdowns: Mapping[str, Breakdown]) -> dict[str, Any]:
    """For a calibration: {kernel: {stage: {"p50_us", "p99_us", "how"}}}."""
    return {kernel: {name: asdict(each) for name, each in stages.items()} for kernel, stages in breakdowns.items()}


def from_json(content: Mapping[str, Any]) -> dict[str, dict[str, Stage]]:
    """The opposite; ValueError, TypeError or KeyError for what is not of that form."""
    return {
        str(kernel): {
            str(name): Stage(float(each["p50_us"]), float(each["p99_us"]), str(each["how"]))
            for name, each in stages.items()
        }
        for kernel, stages in content.items()
    }

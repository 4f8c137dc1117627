"""The base class of arrival rules.

A rule gives due times: int64 [count], ns since the start, never decreasing. The first need not be 0. Rules that have a
rate count in units of the mean gap, and `in_ns` scales to ns once, at the end. So rounding does not add up, a sweep
over rates draws the same random numbers, and a longer run of the same seed begins with the shorter one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from launchopt.options import REQUIRED, check_options, fixed

SPAN_NS_MAX = 2**62  # 146 years: sums with a due time stay within int64


@dataclass(slots=True)
class Arrival:
    """A rule that says when requests are due. A subclass declares its options, `kind` first."""

    kind: str = REQUIRED

    is_closed: ClassVar[bool] = False  # True: all are due at once, and only the full ring delays them
    has_requests: ClassVar[bool] = False  # True: the rule reads the requests themselves from a trace

    def __post_init__(self) -> None:
        fixed("arrival.kind", self.kind, self.option())
        check_options("arrival", self)

    @classmethod
    def option(cls) -> str:
        """Return the rule's name on the command line."""
        return str(next(each.default for each in fields(cls) if each.name == "kind"))

    @property
    def asked_rate_per_s(self) -> float | None:
        """Mean rate that the options ask for; None if they have no rate."""
        return None

    def due_ns(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return the due times of `count` arrivals; ValueError for times beyond `SPAN_NS_MAX`."""
        raise NotImplementedError


def check_rate(rate_per_s: float, count: int) -> None:
    """Raise ValueError for a rate that is not positive and finite, or a count below 1."""
    if not 0 < rate_per_s < inf:
        raise ValueError(f"rate_per_s is {rate_per_s}, must be positive and finite")
    if count < 1:
        raise ValueError(f"count is {count}, must be at least 1")


def in_ns(mean_gaps: NDArray[np.float64], rate_per_s: float) -> NDArray[np.int64]:
    """Convert times from units of the mean gap to ns; ValueError for times beyond `SPAN_NS_MAX`."""
    if float(mean_gaps[-1]) * 1e9 > rate_per_s * SPAN_NS_MAX:
        raise ValueError(
            f"{len(mean_gaps)} arrivals at {rate_per_s} a second take over 146 years: too far for int64 ns"
        )
    return np.rint(mean_gaps * 1e9 / rate_per_s).astype(np.int64)

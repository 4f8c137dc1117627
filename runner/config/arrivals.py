"""What the group `arrival` may hold: a dataclass an option."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from omegaconf import MISSING

from launchopt.errors import ConfigError
from launchopt.options import above_zero, fixed, within

MOST_BURST = 1 << 20  # arrivals


@dataclass(slots=True)
class Closed:
    """Commands come as fast as the ring takes them."""

    kind: str = "closed"

    def __post_init__(self) -> None:
        fixed("arrival.kind", self.kind, "closed")


@dataclass(slots=True)
class Constant:
    """Arrivals evenly spaced: requests, of gemv commands."""

    kind: str = "constant"
    rate_per_s: float = MISSING

    def __post_init__(self) -> None:
        fixed("arrival.kind", self.kind, "constant")
        above_zero("arrival.rate_per_s", self.rate_per_s)


@dataclass(slots=True)
class Poisson:
    """Arrivals independent of each other."""

    kind: str = "poisson"
    rate_per_s: float = MISSING  # on average

    def __post_init__(self) -> None:
        fixed("arrival.kind", self.kind, "poisson")
        above_zero("arrival.rate_per_s", self.rate_per_s)


@dataclass(slots=True)
class Bursty:
    """Bursts of `burst_size` arrivals, independent of each other."""

    kind: str = "bursty"
    rate_per_s: float = MISSING  # of arrivals, on average
    burst_size: int = 8
    peak_per_s: float | None = None  # within a burst; null: all at once

    def __post_init__(self) -> None:
        fixed("arrival.kind", self.kind, "bursty")
        above_zero("arrival.rate_per_s", self.rate_per_s)
        within("arrival.burst_size", self.burst_size, 1, MOST_BURST)
        above_zero("arrival.peak_per_s", self.peak_per_s)
        if self.peak_per_s is not None and self.peak_per_s < self.rate_per_s:
            raise ConfigError("arrival.peak_per_s", self.peak_per_s, f"must be at least rate_per_s={self.rate_per_s}")


class TraceFormat(enum.Enum):
    """What a file of requests is written in."""

    auto = "auto"  # by how it begins
    azure = "azure"
    mooncake = "mooncake"
    csv = "csv"


@dataclass(slots=True)
class Replay:
    """Requests of a file come when they came."""

    kind: str = "replay"
    path: str = MISSING
    format: TraceFormat = TraceFormat.auto
    requests: int | None = 20  # the first so many; None: all
    speed: float = 1.0  # 2: twice the pace of the trace

    def __post_init__(self) -> None:
        fixed("arrival.kind", self.kind, "replay")
        within("arrival.requests", self.requests, 1)
        above_zero("arrival.speed", self.speed)

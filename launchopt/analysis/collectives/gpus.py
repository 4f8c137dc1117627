"""The collectives of each GPU of a trace, as they are matched with those of other GPUs."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.analysis.collectives.kinds import Kind
from launchopt.errors import one_line
from launchopt.traces.events import Job

LABEL_CHARACTERS = 60


class Group(NamedTuple):
    """A group of processes that do collectives together, as a profiler names it. Empty texts: it does not."""

    name: str
    ranks: str

    @property
    def label(self) -> str | None:
        """Name and ranks in one line; None without both."""
        return one_line(f"group {self.name} {self.ranks}".rstrip(), LABEL_CHARACTERS) if any(self) else None

    @property
    def members(self) -> frozenset[int] | None:
        """Return the ranks; None if they are not known, or not all of them are listed."""
        listed = re.fullmatch(r"\[(\d{1,9}(?:,\d{1,9})*)\]", self.ranks)
        return frozenset(map(int, listed[1].split(","))) if listed else None


UNNAMED = Group("", "")


@dataclass(frozen=True, slots=True)
class Calls:
    """Collectives of one GPU in one group, by their begin. is_timed: False for one whose end is wrong."""

    starts_ns: NDArray[np.int64]
    ends_ns: NDArray[np.int64]
    kinds: tuple[Kind, ...]
    streams: NDArray[np.int64]
    is_timed: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TimedGpu:
    """The collectives of one GPU, by group. name: as in its trace."""

    name: str
    groups: Mapping[Group, Calls]


@dataclass(frozen=True, slots=True)
class TimedFile:
    """The GPUs of one trace that have collectives. source: equal for two names of one file. base_ns: as in `Trace`."""

    name: str
    source: Hashable
    job: Job | None
    base_ns: int
    gpus: tuple[TimedGpu, ...]

"""The columns that a check computes: which request, position and copy of the weights each has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.types import Array


@dataclass(frozen=True, slots=True)
class Columns:
    """The request, the position and the copy of the weights of each column. The columns of a request are adjacent."""

    requests: NDArray[np.int64]
    positions: NDArray[np.int64]
    replicas: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.requests)

    def part(self, index: Array) -> Columns:
        """Return the columns at an index."""
        return Columns(self.requests[index], self.positions[index], self.replicas[index])

    def by_request(self) -> Iterator[tuple[int, slice]]:
        """Yield each request and the slice of its columns."""
        starts = np.flatnonzero(np.diff(self.requests, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(self)], strict=True):
            yield int(self.requests[start]), slice(int(start), int(stop))

    def in_step(self, most: Callable[[int], int]) -> Iterator[tuple[NDArray[np.int64], slice]]:
        """Yield adjacent requests whose columns have the same positions, and the slice of their columns.

        most: returns the largest number of requests to yield together, from the number of columns of one.
        """
        together, start, stop = list[int](), 0, 0
        for request, own in self.by_request():
            one = self.positions[own]
            first = self.positions[start : start + len(one)]
            if together and (
                len(together) >= most(len(one))
                or len(one) * len(together) != stop - start
                or not np.array_equal(one, first)
            ):
                yield np.array(together), slice(start, stop)
                together, start = [], own.start
            together.append(request)
            stop = own.stop
        if together:
            yield np.array(together), slice(start, stop)

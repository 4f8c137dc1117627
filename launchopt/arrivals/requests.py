"""Requests: arrival, tokens of prompt and answer, and the request that must finish first.

The readers beside this module build `Requests` from files. `check_graph` refuses an `after` that no order can satisfy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NO_REQUEST = -1  # in `after`: the request starts when it arrives


def _unset() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in order of arrival; each column an int64 array of shape [requests].

    arrival_ns: nanoseconds since the start, >= 0, never decreasing. Each reader defines its start.
    context_tokens: tokens of the prompt, >= 0.
    generated_tokens: tokens answered, >= 0; not 0 together with context_tokens.
    after: index of the request that must finish before this one starts (an earlier turn of a conversation, or call
        of an agent), or -1 for none. Default: -1 for all.
    """

    arrival_ns: NDArray[np.int64]
    context_tokens: NDArray[np.int64]
    generated_tokens: NDArray[np.int64]
    after: NDArray[np.int64] = field(default_factory=_unset)

    def __post_init__(self) -> None:
        if not len(self.after):
            object.__setattr__(self, "after", np.full(len(self), NO_REQUEST, dtype=np.int64))
        assert len(self.context_tokens) == len(self.generated_tokens) == len(self.after) == len(self)

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def longest(self) -> int:
        """Maximum tokens of a request: prompt plus answer, which counts as at least one token."""
        return int((self.context_tokens + np.maximum(self.generated_tokens, 1)).max())


class GraphError(ValueError):
    """An `after` that no order can satisfy. `row` is the index of the wrong request."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(f"request {row} waits for {problem}")
        self.row = row


def check_graph(after: NDArray[np.int64]) -> None:
    """Raise GraphError if a request of `after` (int64 [requests]) can never start.

    The error names the first row that waits for a missing request or is on a cycle. Rows that only lead into a cycle
    are not named. Time and memory are linear.
    """
    waits_for: list[int] = after.tolist()
    count = len(waits_for)
    faults = [int(row) for row in np.flatnonzero((after < NO_REQUEST) | (after >= count))[:1]]
    walk_of = [NO_REQUEST] * count  # the start of the first walk over a row: no row is walked twice
    for start in range(count):
        row = start
        while 0 <= row < count and walk_of[row] == NO_REQUEST:
            walk_of[row] = start
            row = waits_for[row]
        if 0 <= row < count and walk_of[row] == start:  # back on its own path: the row is on a cycle
            faults.append(min(_cycle(waits_for, row)))
    if not faults:
        return
    row = min(faults)
    target = waits_for[row]
    if not 0 <= target < count:
        raise GraphError(row, f"request {target}, which is missing (requests: {count})")
    if target == row:
        raise GraphError(row, "itself")
    raise GraphError(row, f"request {target}, and so for itself (a cycle of {len(_cycle(waits_for, row))})")


def _cycle(waits_for: list[int], row: int) -> list[int]:
    """Return the rows of the cycle that contains `row`."""
    rows = [row]
    while (row := waits_for[row]) != rows[0]:
        rows.append(row)
    return rows

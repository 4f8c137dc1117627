"""Requests: when each came, how long its prompt and its answer were, and which other had to finish before it.

In: nothing; the readers beside this module build `Requests` from files.
Out: `Requests`, and `check_graph`, which refuses an `after` that no order of work could satisfy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NO_REQUEST = -1  # in `after`: starts as soon as it has arrived


def _unset() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in order of arrival; each column an int64 array of shape [requests].

    arrival_ns: nanoseconds since the start, >= 0; never decreases. What the start is, the reader says.
    context_tokens: tokens of the prompt, >= 0.
    generated_tokens: tokens answered, >= 0; not 0 together with context_tokens.
    after: index of the request that must have finished before this one starts (the turn before it in a
        conversation, the call before it of an agent), or -1 for none. Left out: -1 for all.
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
        """Most tokens of any request, prompt and answer; an answer is one token at least."""
        return int((self.context_tokens + np.maximum(self.generated_tokens, 1)).max())


class GraphError(ValueError):
    """An `after` that cannot be satisfied; `row` is the 0-based request at fault."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(f"request {row} waits for {problem}")
        self.row = row


def check_graph(after: NDArray[np.int64]) -> None:
    """Raise GraphError, a ValueError, unless every request of `after` (int64 [requests]) can start some time.

    The error names the first row that waits for a request that is missing, for itself, or for one that waits
    for it in turn. Rows that merely lead into a cycle are not at fault. Linear in time and memory.
    """
    waits_for: list[int] = after.tolist()
    count = len(waits_for)
    faults = [int(row) for row in np.flatnonzero((after < NO_REQUEST) | (after >= count))[:1]]
    walk_of = [NO_REQUEST] * count  # the start of the walk that came through first, so that none is walked twice
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
    """The rows of the cycle that `row` is on."""
    rows = [row]
    while (row := waits_for[row]) != rows[0]:
        rows.append(row)
    return rows

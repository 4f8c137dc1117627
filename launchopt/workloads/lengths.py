"""The steps that requests have, by kind, and how far into its request each of them is.

In: prompt tokens, tokens a chunk, and decode steps of each request. Out: for every kind of step how many there are, and
how many positions their columns see: what attention costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepKind:
    """A step of n columns: of a prompt (its end, or a chunk before), or of one output token."""

    n: int
    is_prompt: bool
    ends_token: bool


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of all steps of one kind: `columns` in all, positions each sees (`seen`), positions a step reads (`read`).

    Column j of a step that starts at position s sees s + j + 1 positions, itself included; the step reads as many as
    its last column sees, once.
    """

    steps: int
    columns: int
    seen: int
    read: int

    @staticmethod
    def of(first: NDArray[np.int64], n: int) -> Lengths:
        """Of steps with n columns that start at positions `first`."""
        steps = len(first)
        seen = int(first.sum()) * n + steps * (n * (n + 1) // 2)
        return Lengths(steps, steps * n, seen, int(first.sum()) + steps * n)

    def __add__(self, other: Lengths) -> Lengths:
        mine, others = ((x.steps, x.columns, x.seen, x.read) for x in (self, other))
        return Lengths(*(a + b for a, b in zip(mine, others, strict=True)))


def lengths_of(prompts: NDArray[np.int64], chunk: int, decodes: NDArray[np.int64]) -> dict[StepKind, Lengths]:
    """How many steps of each kind there are, and what they see of their request."""
    full = np.where(prompts > 0, (prompts - 1) // chunk, 0)
    rest = prompts - full * chunk
    found = {
        StepKind(chunk, True, False): Lengths.of(_counted(full) * chunk, chunk),
        StepKind(1, False, True): Lengths.of(np.repeat(prompts, decodes) + _counted(decodes), 1),
    }
    for n in np.unique(rest[prompts > 0]).tolist():
        found[StepKind(n, True, True)] = Lengths.of((full * chunk)[(prompts > 0) & (rest == n)], n)
    return {kind: lengths for kind, lengths in found.items() if lengths.steps}


def _counted(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each count the numbers below it, one after another."""
    ends = np.cumsum(counts)
    return np.arange(counts.sum()) - np.repeat(ends - counts, counts)

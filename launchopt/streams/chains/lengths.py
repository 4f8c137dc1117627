"""Kinds of steps: the number of steps of each kind, and the positions that attention sees in them.

In: prompt tokens and decode steps of each request, and tokens per chunk. Out: `Lengths` for every kind of step, from
which the cost of attention follows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepKind:
    """A step of n columns: the last chunk of a prompt, an earlier chunk of one, or a decode step (one output token)."""

    n: int
    is_prompt: bool
    ends_token: bool


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sums over all steps of one kind.

    Column j of a step that starts at position s sees s + j + 1 positions, its own included. The step reads the
    positions that its last column sees, once.
    """

    steps: int
    columns: int
    seen: int  # positions that each column sees, summed over all columns
    read: int  # positions that each step reads, summed over all steps

    @staticmethod
    def of(first: NDArray[np.int64], n: int) -> Lengths:
        """Return the sums over steps with n columns that start at the positions `first`."""
        steps = len(first)
        seen = int(first.sum()) * n + steps * (n * (n + 1) // 2)
        return Lengths(steps, steps * n, seen, int(first.sum()) + steps * n)

    def __add__(self, other: Lengths) -> Lengths:
        mine, others = ((x.steps, x.columns, x.seen, x.read) for x in (self, other))
        return Lengths(*(a + b for a, b in zip(mine, others, strict=True)))


def lengths_of(
    prompts: NDArray[np.int64], chunk: int, decodes: NDArray[np.int64], cached: NDArray[np.int64] | None = None
) -> dict[StepKind, Lengths]:
    """Return the sums over the steps of each kind that occurs.

    prompts, decodes: prompt tokens and decode steps of each request, int64 [requests]. chunk: tokens per chunk.
    cached: first tokens of each prompt that need no step; None: no prompt has any.
    """
    start = np.zeros_like(prompts) if cached is None else cached
    full = np.where(prompts > 0, (prompts - start - 1) // chunk, 0)
    last = start + full * chunk
    rest = prompts - last
    found = {
        StepKind(chunk, True, False): Lengths.of(np.repeat(start, full) + _counted(full) * chunk, chunk),
        StepKind(1, False, True): Lengths.of(np.repeat(prompts, decodes) + _counted(decodes), 1),
    }
    for n in np.unique(rest[prompts > 0]).tolist():
        found[StepKind(n, True, True)] = Lengths.of(last[(prompts > 0) & (rest == n)], n)
    return {kind: lengths for kind, lengths in found.items() if lengths.steps}


def _counted(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0 .. count - 1 for each count, one after another: [3, 2] gives [0, 1, 2, 0, 1]."""
    ends = np.cumsum(counts)
    return np.arange(counts.sum()) - np.repeat(ends - counts, counts)

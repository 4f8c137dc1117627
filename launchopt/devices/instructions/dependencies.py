"""Which instructions of a list must wait for which, derived from the memory that each reads and writes.

A span is int64 [4]: `count` intervals of `length` bytes, the first at an address, each next one `stride` bytes (0 or
more) behind. Two instructions conflict if one writes a byte that the other reads or writes. Conflicting instructions
must run in the order of the list. `reduced` keeps the waits from which all others follow, so every order that keeps to
them gives the results of the list's own order. `joined` limits the waits of each instruction to a given number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.types import Table

FIRST, LENGTH, STRIDE, COUNT = range(4)
SPAN_COLUMNS = 4
PAIRS_AT_ONCE = 1 << 20
JOIN = -1  # stands for no instruction of the list

Flags = NDArray[np.bool_]
Span = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction by its place in the list, or JOIN, and the places among the steps that it waits for."""

    source: int
    waits: tuple[int, ...]


def overlaps(one: Table, other: Table) -> Flags:
    """Whether spans share a byte; both [..., 4], and broadcast.

    Exact where both move by one stride, or one of them is a single interval; else as if the gaps belonged to them.
    """
    (first, length, stride, count), (first_2, length_2, stride_2, count_2) = (
        [np.asarray(spans[..., column]) for column in range(SPAN_COLUMNS)] for spans in (one, other)
    )
    count, count_2 = np.where(stride, count, 1), np.where(stride_2, count_2, 1)
    moves = np.where(count > 1, stride, stride_2)
    flat = (count > 1) & (count_2 > 1) & (stride != stride_2)
    length = np.where(flat, length + (count - 1) * stride, length)
    length_2 = np.where(flat, length_2 + (count_2 - 1) * stride_2, length_2)
    below, above = np.where(flat, 0, count_2 - 1), np.where(flat, 0, count - 1)
    moves = np.maximum(moves, 1)
    # Intervals p and q share a byte where first + p moves < first_2 + q moves + length_2, and the other way round.
    least = np.maximum((first_2 - first - length) // moves + 1, -below)  # of p - q
    most = np.minimum(-((first - first_2 - length_2) // moves) - 1, above)
    found: Flags = (least <= most) & (length > 0) & (length_2 > 0)
    return found


def conflicts(spans: Table, owners: Table, is_write: Flags, instructions: int) -> Flags:
    """[i, j]: whether instruction i must run after j, which comes before it in the list."""
    found = np.zeros((instructions, instructions), np.bool_)
    written, owners_of_written = spans[is_write], owners[is_write]
    at_once = max(1, PAIRS_AT_ONCE // max(1, len(spans)))
    for start in range(0, len(written), at_once):
        part = slice(start, start + at_once)
        writer, other = np.nonzero(overlaps(written[part, None], spans[None]))
        pairs = owners_of_written[part][writer], owners[other]
        found[np.maximum(*pairs), np.minimum(*pairs)] = True
    np.fill_diagonal(found, False)
    return found


def reduced(conflicting: Flags) -> list[list[int]]:
    """Of each instruction the conflicting ones that it must wait for itself, ascending: others are waited for by these.

    From the latest to the earliest: one is left out if one that is kept waits for it. What is left is the transitive
    reduction, since whoever waits for an instruction comes later than it.
    """
    waits: list[list[int]] = []
    before: list[int] = []  # of each, as bits, all that end before it can begin
    for row in conflicting:
        kept, covered = [], 0
        for j in reversed(np.flatnonzero(row).tolist()):
            if not covered >> j & 1:
                kept.append(j)
                covered |= before[j] | 1 << j
        waits.append(kept[::-1])
        before.append(covered)
    return waits


def joined(waits: Sequence[Sequence[int]], most: int) -> list[Step]:
    """Steps that wait for at most `most` each. `most`: 2 or more.

    Where an instruction waits for more, joins come right before it, which do nothing but wait for `most` of them, the
    earliest, and stand for these: so nobody waits for more than it must.
    """
    steps: list[Step] = []
    place: list[int] = []
    for source, own in enumerate(waits):
        left = [place[j] for j in own]
        while len(left) > most:
            taken = min(most, len(left) - most + 1)
            steps.append(Step(JOIN, tuple(left[:taken])))
            left = [*left[taken:], len(steps) - 1]
        place.append(len(steps))
        steps.append(Step(source, tuple(left)))
    return steps


def levels(waits: Sequence[Sequence[int]]) -> list[int]:
    """How many instructions at most come one after another before each."""
    found: list[int] = []
    for own in waits:
        found.append(max((found[j] + 1 for j in own), default=0))
    return found

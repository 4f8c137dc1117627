"""Which instructions of a list must wait for which, derived from the memory that each reads and writes.

A span is int64 [4]: `count` intervals of `length` bytes, the first at an address, each next one `stride` bytes (0 or
more) behind. Two instructions conflict if one writes a byte that the other reads or writes. Conflicting instructions
must run in the order of the list. `reduced` keeps the waits from which all others follow, so every order that keeps to
them gives the results of the list's own order. `joined` limits the waits of each instruction to a given number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.types import Table

PAIRS_AT_ONCE = 1 << 20  # spans compared at once, which limits memory
JOIN = -1  # in place of an instruction of the list

Flags = NDArray[np.bool_]


class Span(NamedTuple):
    """Intervals of memory, or a row of a table of them."""

    first: int  # address of the first interval
    length: int  # bytes of an interval
    stride: int  # bytes from one interval to the next
    intervals: int  # number of them


SPAN_COLUMNS = len(Span._fields)


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the joined list: the instruction that it executes, or JOIN, and the steps that it waits for."""

    source: int
    waits: tuple[int, ...]


def overlaps(one: Table, other: Table) -> Flags:
    """Return whether spans share a byte. Both are int64 [..., SPAN_COLUMNS], and broadcast.

    Exact if both have one stride, or one of them is a single interval. Otherwise gaps count as parts of the spans.
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
    """Return bool [i, j]: whether instruction i must run after j, which comes before it in the list.

    owners: the instruction of each span. is_write: whether the span is written.
    """
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
    """Return for each instruction the conflicting ones that it must wait for itself, ascending.

    The others are left out: an instruction that is kept waits for them. The result is the transitive reduction.
    """
    waits: list[list[int]] = []
    before: list[int] = []  # for each instruction, as bits: all that end before it can begin
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
    """Return steps that wait for at most `most` others each; `most` is 2 or more.

    An instruction that waits for more gets joins right before it. A join waits for the `most` earliest ones and stands
    for them, so no step waits for more than it must.
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
    """Return for each instruction the length of the longest chain of waits before it."""
    found: list[int] = []
    for own in waits:
        found.append(max((found[j] + 1 for j in own), default=0))
    return found

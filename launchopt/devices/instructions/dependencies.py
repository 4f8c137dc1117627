"""Dependencies between the instructions of a list, derived from the memory that each instruction reads and writes.

A span (`Span`) is a number of equal intervals of memory at equal distances. Two instructions conflict if one writes a
byte that the other reads or writes. Conflicting instructions must be executed in the order of the list. `reduced` keeps
the fewest waits that imply all others, so every order that satisfies them gives the same results as the order of the
list. `joined` limits the number of waits of each instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.types import Table

PAIRS_AT_ONCE = 1 << 20  # most pairs of spans that are compared at once; it limits memory
JOIN = -1  # value in place of the index of an instruction

Flags = NDArray[np.bool_]


class Span(NamedTuple):
    """Equal intervals of memory at equal distances. A table of spans has these fields as columns."""

    first: int  # address of the first interval
    length: int  # bytes of an interval
    stride: int  # bytes from the begin of one interval to the begin of the next; 0 or more
    intervals: int  # number of intervals


SPAN_COLUMNS = len(Span._fields)


@dataclass(frozen=True, slots=True)
class Step:
    """An element of the list that `joined` returns."""

    source: int  # index of an instruction, or JOIN
    waits: tuple[int, ...]  # indices of the earlier steps of that list for which this step waits


def overlaps(one: Table, other: Table) -> Flags:
    """Return for each pair of spans whether they share a byte.

    one, other: tables of spans, int64 [..., SPAN_COLUMNS], which are broadcast against each other. The result is exact
    if both spans have the same stride, or one of them has one interval. Otherwise the gaps between intervals count as
    parts of the spans.
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
    # Interval p of one span and interval q of the other share a byte if each begins before the other ends. That is:
    # (first_2 - first - length) / moves < p - q < (first_2 - first + length_2) / moves.
    least = np.maximum((first_2 - first - length) // moves + 1, -below)  # least p - q
    most = np.minimum(-((first - first_2 - length_2) // moves) - 1, above)  # most p - q
    found: Flags = (least <= most) & (length > 0) & (length_2 > 0)
    return found


def conflicts(spans: Table, owners: Table, is_write: Flags, instructions: int) -> Flags:
    """Return bool [i, j]: whether instruction i conflicts with instruction j, which is earlier in the list.

    spans: all spans of all instructions. owners: the instruction of each span. is_write: whether it writes the span.
    instructions: number of instructions.
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
    """Return for each instruction the earlier instructions for which it must wait, in ascending order.

    A conflicting instruction is left out if another instruction of the result already waits for it. The result is the
    transitive reduction.
    """
    waits: list[list[int]] = []
    before: list[int] = []  # for each instruction: bits of all instructions that are complete before it begins
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
    """Return the instructions as steps, each of which waits for at most `most` others. `most` must be 2 or more.

    Steps that only wait, joins, stand directly before an instruction with more waits. A join waits for the earliest
    instructions, and the instruction waits for the join instead of them.
    """
    steps: list[Step] = []
    place: list[int] = []  # index of the step of each instruction
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
    """Return for each instruction the number of others before it, in the longest chain of waits that leads to it."""
    found: list[int] = []
    for own in waits:
        found.append(max((found[j] + 1 for j in own), default=0))
    return found

"""Merge the GEMMs of a list that multiply one input, as an engine merges q, k and v, or gate and up.

In: rows of a list, in order. Out: rows in which one GEMM stands for several. Its weight has the rows of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from launchopt.options import LARGEST
from launchopt.traces.gemm_list import ListedGemm


def merged(gemms: Sequence[ListedGemm]) -> list[ListedGemm]:
    """Return the rows, with those of a group that multiply one input with different weights as one.

    It stands where the first of them stood. Rows that are merged have one command, and name weight, input and group.
    """
    found: list[list[ListedGemm]] = []
    open_sets: dict[tuple[object, ...], _Set] = {}
    for gemm in gemms:
        if gemm.count > 1 or not (gemm.group and gemm.input and gemm.weight):
            found.append([gemm])
            continue
        key = (gemm.group, gemm.input, gemm.n, gemm.k, gemm.dtype)
        into = open_sets.get(key)
        if into is None or gemm.weight in into.weights or into.m + gemm.m > LARGEST:
            into = open_sets[key] = _Set([], set(), 0)
            found.append(into.rows)
        into.rows.append(gemm)
        into.weights.add(gemm.weight)
        into.m += gemm.m
    return [each[0] if len(each) == 1 else _joined(each) for each in found]


@dataclass(slots=True)
class _Set:
    """Rows to merge, the names of their weights, and the sum of their m."""

    rows: list[ListedGemm]
    weights: set[str]
    m: int


def _joined(rows: Sequence[ListedGemm]) -> ListedGemm:
    return replace(rows[0], m=sum(each.m for each in rows), weight="+".join(each.weight for each in rows))

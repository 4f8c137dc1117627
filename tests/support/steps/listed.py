"""Lists of GEMMs for tests, and their streams."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from launchopt.command import Dtype
from launchopt.streams.list_stream import ListOrder, ListStream
from launchopt.streams.row_stream import NO_WEIGHT, Rows

sizes = st.sampled_from([1, 2, 3, 8])


@dataclass(frozen=True)
class Listed:
    """Rows of m, n, k, commands, number of the weight and group."""

    rows: list[tuple[int, int, int, int, int, int]]

    def stream(self, repeat: int = 1, copies: int = 1, grouped: bool = True, **order: Any) -> ListStream:
        columns = np.array(self.rows)
        rows = Rows(columns[:, :3], columns[:, 3], columns[:, 4])
        settings = ListOrder(columns[:, 5] if grouped else None, **order)
        return ListStream(rows, Dtype.fp32, lambda arena, uses: 3, repeat, copies, settings)

    def commands(self, repeat: int) -> list[tuple[int, int, int, int, int, int]]:
        """Return the sizes, the weight, the group and the pass of each command."""
        return [(*row[:3], *row[4:], turn) for turn in range(repeat) for row in self.rows for _ in range(row[3])]


@st.composite
def lists(draw: st.DrawFn) -> Listed:
    """Draw rows. The weights of a size are numbered in the order of their first rows."""
    rows, group, weights = [], 0, Counter[tuple[int, int]]()
    for number in range(draw(st.integers(1, 10))):
        group += draw(st.integers(0, 1)) if number else 0
        m, n, k = draw(st.tuples(sizes, sizes, sizes))
        weight = draw(st.integers(NO_WEIGHT, min(weights[m, k], 2)))
        weights[m, k] = max(weights[m, k], weight + 1)
        rows.append((m, n, k, draw(st.integers(1, 6)), weight, group))
    return Listed(rows)

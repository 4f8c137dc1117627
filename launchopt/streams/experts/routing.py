"""Routing of a layer with experts: the experts of each column (token) of each step.

`draw` takes them from a seed, `read_experts` from a file. Every column has `top_k` different experts, in ascending
order. The counts of an expert's columns follow, before any command is made: an engine that launches a GEMM per expert
also knows them when it launches.

    balanced    each expert gets the same number of a step's columns, give or take one
    power_law   a column draws its experts without replacement; the expert of rank r has the weight r**-exponent. A
                random expert has each rank, the same in all steps. The exponent 0 makes all experts alike.
    replay      the columns of a file in turn, from its beginning again after its end
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.lines import count, cut, text_lines
from launchopt.errors import DataError

LINE_BYTES_MAX = 64 << 10  # of a replayed file; the 4,096 experts of a column need 20 KB
MOST_COLUMNS = 1 << 22  # of a replayed file
DRAWN_NUMBERS = 1 << 22  # random numbers at a time
SEED_WORD = 0xE4BE27  # keeps these draws apart from others of the same seed

Experts = NDArray[np.int32]


class RoutingKind(enum.Enum):
    """How columns get their experts."""

    balanced = "balanced"
    power_law = "power_law"
    replay = "replay"


@dataclass(frozen=True, slots=True)
class Routing:
    """The experts of each column. name: of the distribution, for results. chosen: int32 [steps, columns, top_k]."""

    name: str
    experts: int
    chosen: Experts

    @property
    def counts(self) -> NDArray[np.int64]:
        """Columns of each expert in each step, [steps, experts]."""
        steps = len(self.chosen)
        flat = (np.arange(steps)[:, None, None] * self.experts + self.chosen).reshape(-1)
        return np.bincount(flat, minlength=steps * self.experts).reshape(steps, self.experts)


def draw(kind: RoutingKind, exponent: float, shape: tuple[int, int, int], experts: int, seed: int) -> Experts:
    """Return the experts of each column, int32 `shape` = [steps, columns, top_k]."""
    generator = np.random.default_rng([seed, SEED_WORD])
    steps, columns, top_k = shape
    if kind is RoutingKind.balanced:
        order = generator.permuted(np.tile(np.arange(experts, dtype=np.int32), (steps, 1)), axis=1)
        turns = np.arange(columns * top_k) % experts
        return np.sort(order[:, turns].reshape(shape), axis=2)
    weights = np.empty(experts)
    weights[generator.permutation(experts)] = -exponent * np.log(np.arange(1, experts + 1))
    chosen = np.empty((steps * columns, top_k), np.int32)
    at_once = max(1, DRAWN_NUMBERS // experts)
    for first in range(0, len(chosen), at_once):
        some = chosen[first : first + at_once]
        # The largest of weights with Gumbel noise are a draw without replacement (Kool et al. 2019).
        noisy = weights + generator.gumbel(size=(len(some), experts))
        some[:] = np.sort(np.argpartition(-noisy, top_k - 1, axis=1)[:, :top_k], axis=1)
    return chosen.reshape(shape)


def read_experts(path: Path, shape: tuple[int, int, int], experts: int) -> Experts:
    """Return the experts of each column from a file, int32 `shape` = [steps, columns, top_k].

    A line of the file has the `top_k` experts of a column, counted from 0 and separated by commas. The file has whole
    steps: a multiple of `columns` lines. DataError for anything else.
    """
    steps, columns, top_k = shape
    with closing(text_lines(path, LINE_BYTES_MAX)) as lines:
        rows = list(_rows(path, lines, top_k, experts, steps * columns))
    if not rows or len(rows) % columns:
        wanted = f"expected a multiple of workload.tokens={columns}, or {steps * columns} or more for all steps"
        raise DataError(path, None, f"{len(rows)} lines, one per token; {wanted}")
    found = np.sort(np.array(rows, np.int32), axis=1).reshape(-1, columns, top_k)
    return found[np.arange(steps) % len(found)]


def _rows(path: Path, lines: Iterator[tuple[int, str]], top_k: int, experts: int, most: int) -> Iterator[list[int]]:
    for number, text in islice(lines, most):
        if number > MOST_COLUMNS:
            raise DataError(
                path, number, f"more than {MOST_COLUMNS:,} lines, one per token: a step can repeat an earlier one"
            )
        try:
            yield _row(text, top_k, experts)
        except ValueError as error:
            raise DataError(path, number, str(error)) from None


def _row(text: str, top_k: int, experts: int) -> list[int]:
    """Return the experts of a line; ValueError if it is wrong."""
    parts = text.split(",")
    if len(parts) != top_k:
        raise ValueError(f"{len(parts)} experts; expected {top_k}, as many as model.experts_per_token: {cut(text)!r}")
    row = [count("expert", part, 0) for part in parts]
    if max(row) >= experts:
        raise ValueError(f"expert is {max(row)}; allowed: 0 to {experts - 1}, as model.experts={experts}")
    if len(set(row)) < top_k:
        raise ValueError(f"the same expert twice: {cut(text)!r}")
    return row

"""Check the outputs of independent commands against products in float64, outside the timed region.

The check generates the workload stream again and uses no data of the consumer. It checks commands that share a weight
together: C must equal B @ A.T. If a GEMM has more than `max_columns` columns, that number of columns is compared: the
first, the last, and others chosen at random for each weight. All other columns must have been written.

The error of a command is max |out - reference| in units of a typical output (`typical_output`). NaN, which an unwritten
output holds, counts as infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import ShapeKey
from launchopt.devices.arenas import Arenas
from launchopt.streams.operands import ArenaKey, arenas_of
from launchopt.streams.stream import CommandStream
from launchopt.types import Array

CHUNK_BYTES = 256 << 20  # memory that the check uses at a time, roughly

Report = Callable[[int], None]  # takes the number of commands whose outputs are checked so far


def unreported(commands: int) -> None:
    """Report to nobody."""


class CheckSettings(NamedTuple):
    """What a check compares: at most `max_columns` columns of an output, chosen by `seed`. report: of its progress."""

    max_columns: int
    seed: int = 0
    report: Report = unreported


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a check, over all commands."""

    commands: int
    wrong: int  # commands whose error is above the tolerance
    max_rel_error: float  # largest error of a command; infinite if an output was not written
    tolerance: float  # the largest bound that applied: it depends on k of the shape
    compared_share: float  # share of output elements compared; the others were only checked for being written
    first_wrong: str | None

    @property
    def ok(self) -> bool:
        """True if the output of every command is right, and there is at least one command."""
        return self.wrong == 0 and self.commands > 0


def typical_output(shape: ShapeKey) -> float:
    """Return the expected root mean square of an output element, sqrt(k) / 3.

    An element is a sum of k products of inputs uniform in [-1, 1), each product of variance 1/9. The rms of the
    reference itself is not used, since cancellation can make it arbitrarily small in a small output.
    """
    return math.sqrt(shape.k) / 3


def tolerance(shape: ShapeKey) -> float:
    """Return the bound on |out - reference| / typical_output for inputs that are exact in their dtype.

    Rounding the result has a relative error of the unit roundoff u of the output's type. In practice, no element is
    larger than 8 typical outputs. The error of k additions in fp32, in any order, grows like sqrt(k) * 2**-24 (Higham &
    Mary 2019, probabilistic bound), with the same factor 8. Partial sums are never in half precision.
    """
    return 8 * shape.dtype.unit_roundoff + 8 * math.sqrt(shape.k) * 2.0**-24


def verify(
    stream: CommandStream, arenas: Arenas, max_columns: int, seed: int = 0, report: Report = unreported
) -> Verification:
    """Check every output of `stream` on the device that holds it. report: see `CheckSettings`."""
    generator = np.random.default_rng([seed, 0xC4EC])
    wrong, commands, worst, bound, compared, elements, checked = 0, 0, 0.0, 0.0, 0, 0, 0
    first_wrong: str | None = None
    for shape, slots in _slots_by_shape(stream).items():
        limit = tolerance(shape)
        bound = max(bound, limit)
        columns = _columns(generator, shape.n, max_columns)
        weight = arenas.xp.empty((shape.m, shape.k), np.float64)  # one for all: new memory would cost page faults
        for group in _by_weight(slots):
            weight[...] = arenas.matrix(arenas_of(shape)[0], int(group[0, 0]))
            errors = np.empty(len(group))
            for part, found in _errors(arenas, shape, group, columns, weight):
                errors[part] = found
                checked += len(part)
                report(checked)
            bad = ~(errors <= limit)
            if first_wrong is None and bad.any():
                at = int(np.argmax(bad))
                first_wrong = f"{shape}, output slot {group[at, 2]}: error {errors[at]:.3g}, allowed {limit:.3g}"
            wrong += int(bad.sum())
            worst = max(worst, float(errors.max()))
        commands += len(slots)
        compared += len(slots) * shape.m * len(columns)
        elements += len(slots) * shape.m * shape.n
    return Verification(commands, wrong, worst, bound, compared / elements, first_wrong)


def _slots_by_shape(stream: CommandStream) -> dict[ShapeKey, NDArray[np.int64]]:
    """Return the slots of A, B and C of the commands of each shape, [commands, 3]."""
    found: dict[ShapeKey, list[NDArray[np.int64]]] = {shape: [] for shape in stream.shapes}
    for block in stream.blocks():
        records = block.records
        slots = np.stack([records[f"slot_{role}"] for role in "abc"], axis=1).astype(np.int64)
        widths = set(np.unique(records["n"]).tolist())
        for shape in stream.shapes:
            if shape.n in widths:  # most blocks contain commands of one n only
                own = (records["m"] == shape.m) & (records["n"] == shape.n) & (records["k"] == shape.k)
                found[shape].append(slots[own])
    return {shape: np.concatenate(parts) for shape, parts in found.items()}


def _by_weight(slots: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    ordered = slots[np.argsort(slots[:, 0], kind="stable")]
    starts = np.flatnonzero(np.diff(ordered[:, 0])) + 1
    return np.split(ordered, starts)


def _columns(generator: np.random.Generator, n: int, most: int) -> NDArray[np.int64]:
    if n <= most:
        return np.arange(n)
    inner = generator.choice(np.arange(1, n - 1), max(0, most - 2), replace=False)
    return np.sort(np.concatenate([[0, n - 1], inner]).astype(np.int64))


def _errors(
    arenas: Arenas, shape: ShapeKey, group: NDArray[np.int64], columns: NDArray[np.int64], weight: Array
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Yield the indices of some commands of a group that shares one weight, and their errors, until all had a turn.

    group: slots, [commands, 3]. weight: float64 [m, k].
    """
    xp = arenas.xp
    _, arena_b, arena_c = arenas_of(shape)
    inputs, which = np.unique(group[:, 1], return_inverse=True)
    chunk = max(1, CHUNK_BYTES // (8 * (shape.m * shape.n + shape.k * len(columns))))
    order = np.argsort(which, kind="stable")
    for start in range(0, len(group), chunk):
        part = order[start : start + chunk]
        needed, local = np.unique(which[part], return_inverse=True)
        reference = _products(arenas, arena_b, inputs[needed], weight, columns)
        outputs = arenas.matrices(arena_c, group[part, 2])
        written = ~xp.isnan(outputs).any(axis=(1, 2))
        local = xp.asarray(local)
        difference = xp.abs(outputs[:, columns] - reference[local]).max(axis=(1, 2)) / typical_output(shape)
        errors = to_host(xp.where(written, difference, xp.inf))
        yield part, np.where(np.isnan(errors), np.inf, errors)


def _products(
    arenas: Arenas, arena_b: ArenaKey, slots: NDArray[np.int64], weight: Array, columns: NDArray[np.int64]
) -> Array:
    """Return B @ A.T in float64 for the chosen columns of each input, [len(slots), len(columns), m]."""
    picked = arenas.matrices(arena_b, slots)[:, columns].astype(np.float64)
    flat = picked.reshape(-1, picked.shape[2]) @ weight.T
    return flat.reshape(len(slots), len(columns), -1)


def to_host(values: Array) -> Array:
    """Return an array of NumPy or CuPy as NumPy's."""
    return values if isinstance(values, np.ndarray) else values.get()

"""Check the outputs of independent commands against products in float64, outside the timed region.

The check generates the workload stream again and uses no data of the consumer. C must equal B @ A.T. If a GEMM has more
than `max_columns` columns, that number of columns is compared: the first, the last, and others chosen at random for
each shape. All other columns must have been written.

If the time allowed is too short for all commands, a random sample of each shape's commands is checked. The first round
is small. From its duration follows how many commands the next round checks, until the time is over. k wrong commands of
N are then found with the probability `verify.chance.chance_to_find`.

Every element has a bound of its own (`Tolerance`). The error of a command is that of its element with the largest share
of its bound, in units of a typical output (`typical_output`). NaN, which an unwritten output holds, counts as infinite.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from launchopt.command import ShapeKey
from launchopt.devices.arenas import Arenas
from launchopt.streams.stream import CommandStream
from launchopt.verify.products import OutputError, Products

CHUNK_BYTES = 32 << 20  # memory that the check uses at a time, roughly; larger arrays would cost page faults
FIRST_FLOPS = 2e9  # size of the first round: well below a second
MOST_GROWTH = 16.0  # a round makes the checked share at most this many times as large
LEAST_GROWTH = 0.05  # a round that would add less than this part of the checked share is not worth its overhead


Report = Callable[[int], None]  # takes the number of commands whose outputs are checked so far


def unreported(commands: int) -> None:
    """Report to nobody."""


class CheckSettings(NamedTuple):
    """What a check compares: at most `max_columns` columns of an output, chosen by `seed`. report: of its progress.

    Of independent commands it checks as many as it can in about `budget_s` seconds, with `workers` threads (CuPy: 1).
    """

    max_columns: int
    seed: int = 0
    report: Report = unreported
    budget_s: float = math.inf
    full: bool = False  # check all sampled token ids, not only about 4,096, and in an audit run all parts of all steps
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a check, over all commands."""

    commands: int
    checked: int  # commands whose outputs were compared
    wrong: int  # of the checked commands: those whose error is above the tolerance
    max_rel_error: float  # error of the output that is closest to its bound; infinite if it was not written
    tolerance: float  # that bound
    compared_share: float  # share of output elements compared; the others were only checked for being written
    first_wrong: str | None

    @property
    def ok(self) -> bool:
        """True if the output of every checked command is right, and at least one was checked."""
        return self.wrong == 0 and self.checked > 0


def verify(
    stream: CommandStream,
    arenas: Arenas,
    settings: CheckSettings,
    own: NDArray[np.bool_] | None = None,
    quantised_inputs: bool = False,
) -> Verification:
    """Check the outputs of `stream` on the device that holds them.

    own: only these commands, [commands]. quantised_inputs: the run quantised its inputs as the weights are; outputs are
    then compared with products of the quantised inputs.
    """
    generator = np.random.default_rng([settings.seed, 0xC4EC])
    parts = []
    for shape, slots in _slots_by_shape(stream, own).items():
        if not len(slots):
            continue
        columns = columns_of(generator, shape.n, settings.max_columns)
        compared = Products(arenas, shape, slots, columns, CHUNK_BYTES // settings.workers, quantised_inputs)
        parts.append(_Part(compared, generator))
    blas = threadpool_limits(1, user_api="blas") if settings.workers > 1 else contextlib.nullcontext()
    # CUDA's current device belongs to a thread, and is the first GPU in a new one.
    begin = None if arenas.xp is np else arenas.xp.cuda.Device().use
    with blas, ThreadPoolExecutor(settings.workers, initializer=begin) as pool:
        _in_rounds(parts, pool, settings)
    worst = max((part.worst for part in parts), key=lambda error: error.share)
    elements = sum(part.products.shape.m * part.products.shape.n * part.commands for part in parts)
    return Verification(
        commands=sum(part.commands for part in parts),
        checked=sum(part.checked for part in parts),
        wrong=sum(part.wrong for part in parts),
        max_rel_error=worst.error,
        tolerance=worst.bound,
        compared_share=sum(part.checked * part.products.compared_elements for part in parts) / elements,
        first_wrong=next((part.first_wrong() for part in parts if part.wrong), None),
    )


def _in_rounds(parts: list[_Part], pool: ThreadPoolExecutor, settings: CheckSettings) -> None:
    """Check all commands, or as many as the time allows: in each round the same share of each shape's commands."""
    start_s, work = time.monotonic(), sum(part.commands * part.products.flops for part in parts)
    share = 1.0 if math.isinf(settings.budget_s) else min(1.0, FIRST_FLOPS / work)
    checked = 0
    while True:
        for part in parts:
            for count in part.check(pool, share):
                checked += count
                settings.report(checked)
        spent_s = time.monotonic() - start_s
        more = (settings.budget_s - spent_s) / spent_s * share if share < 1.0 else 0.0
        if more < LEAST_GROWTH * share:
            return
        share = min(1.0, share + more, share * MOST_GROWTH)


class _Part:
    """The commands of one shape, in random order, and what was found in those that were checked."""

    def __init__(self, products: Products, generator: np.random.Generator) -> None:
        self.products = products
        self.commands = products.commands
        self.checked, self.wrong, self.worst = 0, 0, OutputError(-1.0, 0.0, 0.0)
        self._generator = generator
        self._order: NDArray[np.int64] | None = None
        self._first: tuple[int, OutputError] | None = None  # command of the stream that is wrong, and its error

    def check(self, pool: ThreadPoolExecutor, share: float) -> Iterator[int]:
        """Check further commands until this share of all is checked, and at least one; yield how many, in parts."""
        until = min(self.commands, max(1, round(share * self.commands)))
        if self._order is None:
            everything = np.arange(self.commands)
            self._order = everything if until == self.commands else self._generator.permutation(everything)
        commands = self._order[self.checked : until]
        if not len(commands):
            return
        errors = np.empty((len(OutputError._fields), len(commands)))
        yield from self.products.compare(commands, errors, pool)
        shares = errors[0]
        bad = shares > 1
        self.checked, self.wrong = until, self.wrong + int(bad.sum())
        self.worst = max(self.worst, OutputError(*errors[:, shares.argmax()].tolist()), key=lambda error: error.share)
        if bad.any():
            at = int(np.argmin(np.where(bad, commands, self.commands)))
            if self._first is None or commands[at] < self._first[0]:
                self._first = int(commands[at]), OutputError(*errors[:, at].tolist())

    def first_wrong(self) -> str:
        """Return the description of the first wrong command of the shape."""
        assert self._first is not None
        command, error = self._first
        slot = self.products.output_slot(command)
        return f"{self.products.shape}, output slot {slot}: error {error.error:.3g}, allowed {error.bound:.3g}"


def _slots_by_shape(
    stream: CommandStream, chosen: NDArray[np.bool_] | None = None
) -> dict[ShapeKey, NDArray[np.uint32]]:
    """Return the slots of A, B and C of the commands of each shape, [commands, 3]. chosen: only these commands."""
    found: dict[ShapeKey, list[NDArray[np.uint32]]] = {shape: [] for shape in stream.shapes}
    for block in stream.blocks():
        records = block.records if chosen is None else block.records[chosen[block.records["seq"]]]
        slots = np.stack([records[f"slot_{role}"] for role in "abc"], axis=1)
        widths = set(np.unique(records["n"]).tolist())
        for shape in stream.shapes:
            if shape.n in widths:  # most blocks contain commands of one n only
                own = (records["m"] == shape.m) & (records["n"] == shape.n) & (records["k"] == shape.k)
                found[shape].append(slots[own])
    none = np.empty((0, 3), np.uint32)  # of several consumers one may have no command of a shape
    return {shape: np.concatenate([none, *parts]) for shape, parts in found.items()}


def columns_of(generator: np.random.Generator, n: int, most: int) -> NDArray[np.int64]:
    """Return the columns of an output that are compared: all, or `most` of them, the first and the last among these."""
    if n <= most:
        return np.arange(n)
    inner = generator.choice(np.arange(1, n - 1), max(0, most - 2), replace=False)
    return np.sort(np.concatenate([[0, n - 1], inner]).astype(np.int64))

"""`TraceStream`: the GEMMs of a profiler's trace, in its order, at its times.

In: operators in order of time, each a batch of one or more GEMMs (`launchopt.traces.gemms`). Out: a stream with a
command per GEMM; `repeat` runs through the whole trace several times. Each thread of the trace is a request. Memory
grows with the operators, not with the commands: records are made from columns with a row per operator.

A trace records neither dependencies nor addresses. So no command reads the output of another. If a mode gains by
batching commands of one thread, a real model has that gain only where these commands are independent. Operands are
random. Commands with weights of one shape take these weights in turn. Inputs are taken in turn from a longer cycle.
Every output has a slot of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from launchopt.command import COMMAND_DTYPE, Dtype, ShapeKey
from launchopt.streams.operands import ArenaKey, arenas_of
from launchopt.streams.stream import BLOCK_RECORDS, INPUT_ARENA_LIMIT_BYTES, INPUT_TURNS, Block, CommandStream
from launchopt.traces.gemms import Gemm

STRIDE_COMMANDS = 1 << 16  # commands in which `strides` counts the distances between slots

Supply = TypeVar("Supply", bound=Hashable)  # identifies a supply (see _Turns): an arena, or a thread of the trace
Columns = NDArray[np.int64]
Weights = Callable[[ArenaKey, int], int]  # (arena of weights, commands that use it) -> number of different weights


def first_commands(gemms: Sequence[Gemm], commands: int | None) -> list[Gemm]:
    """Return the operators of the first `commands` GEMMs (None: all). The batch of the last one may be cut."""
    kept: list[Gemm] = []
    for gemm in gemms:
        if commands is not None and commands <= gemm.batch:
            return [*kept, replace(gemm, batch=commands)]
        kept.append(gemm)
        commands = None if commands is None else commands - gemm.batch
    return kept


@dataclass(frozen=True, slots=True)
class _Turns:
    """The numbers that commands get in order: slots of an arena, or steps of a thread of the trace.

    After the last number comes number 0 again. A supply is the arena or the thread from which an operator gets its
    numbers. A turn is one pass through the trace. Each array has one entry per operator.
    """

    first: Columns  # number of the operator's first command in turn 0
    a_turn: Columns  # numbers that all operators of the supply take in one turn
    size: Columns  # numbers in the supply

    def at(self, turn: Columns, operator: Columns, within: Columns) -> Columns:
        """Return the number for GEMM `within` of an operator in turn `turn`; arrays of one entry per command."""
        return (turn * self.a_turn[operator] + self.first[operator] + within) % self.size[operator]


def _turns(supply_of: Sequence[Supply], batch: Columns, size: Mapping[Supply, int]) -> _Turns:
    """Return the turns of operators. supply_of, batch: of each operator. size: how many numbers each supply has."""
    taken: Counter[Supply] = Counter()
    first = []
    for supply, count in zip(supply_of, batch.tolist(), strict=True):
        first.append(taken[supply])
        taken[supply] += count
    rows = [(at, taken[supply], size[supply]) for at, supply in zip(first, supply_of, strict=True)]
    return _Turns(*np.array(rows, np.int64).T)


class TraceStream(CommandStream):
    """Commands of `gemms`, `repeat` times over.

    weights: chooses the number of different weights of an arena. speed: 2 halves the gaps of the trace; None: no gaps.
    """

    independent = False
    layers = 1

    def __init__(
        self, gemms: Sequence[Gemm], dtype: Dtype, weights: Weights, repeat: int = 1, speed: float | None = None
    ) -> None:
        self.dtype = dtype
        self._thread = np.array([gemm.thread for gemm in gemms])
        self._batch = np.array([gemm.batch for gemm in gemms])
        self._stops = np.cumsum(self._batch)
        self._turns, self.commands = repeat, int(self._stops[-1]) * repeat
        self.requests = len(np.unique(self._thread))
        shape_of = [ShapeKey(gemm.m, gemm.n, gemm.k, dtype) for gemm in gemms]
        self.counts = self._counted(shape_of, repeat)
        self.shapes = sorted(self.counts)
        self._sizes = np.array([(gemm.m, gemm.n, gemm.k) for gemm in gemms])
        arenas_by_role = list(zip(*map(arenas_of, shape_of), strict=True))
        self._uses = {arena: uses for each in arenas_by_role for arena, uses in self._counted(each, repeat).items()}
        self.arenas = self._slots(weights)
        self._places = [_turns(each, self._batch, self.arenas) for each in arenas_by_role]
        self._steps = _turns(self._thread.tolist(), self._batch, dict.fromkeys(range(self.requests), self.commands))
        self.replicas = self.fewest_weights or 1
        self._due_ns: Columns | None = None
        if speed is not None:
            self._due_ns = np.rint(np.array([gemm.start_ns for gemm in gemms]) / speed).astype(np.int64)
            self._turn_ns = round(max(gemm.end_ns for gemm in gemms) / speed)

    def _counted(self, what: Sequence[Supply], repeat: int) -> dict[Supply, int]:
        """Return the number of commands for each value in `what`, which has an entry per operator."""
        counts: Counter[Supply] = Counter()
        for each, batch in zip(what, self._batch.tolist(), strict=True):
            counts[each] += batch * repeat
        return dict(counts)

    def _slots(self, weights: Weights) -> dict[ArenaKey, int]:
        slots = dict(self._uses)
        longest: Counter[ArenaKey] = Counter()
        for shape in self.shapes:
            a, b, _ = arenas_of(shape)
            slots[a] = min(slots[a], weights(a, self._uses[a]))
            longest[b] = max(longest[b], slots[a] * INPUT_TURNS)
        for b, turns in longest.items():
            slots[b] = min(slots[b], turns, max(1, INPUT_ARENA_LIMIT_BYTES // b.slot_bytes))
        return slots

    @property
    def fewest_weights(self) -> int | None:
        """Minimum number of different weights, over the shapes that use a weight twice; None if no shape does."""
        reused = [slots for arena, slots in self.arenas.items() if arena.is_weight and slots < self._uses[arena]]
        return min(reused, default=None)

    @property
    def span_ns(self) -> int:
        """Time at which the last command is due, ns since the start; 0 without gaps."""
        return 0 if self._due_ns is None else int(self._due_ns[-1]) + (self._turns - 1) * self._turn_ns

    def blocks(self, block_records: int = BLOCK_RECORDS) -> Iterator[Block]:
        """Yield the stream in order, in blocks of `block_records` records; the last may be shorter."""
        for first in range(0, self.commands, block_records):
            yield self._block(first, min(block_records, self.commands - first))

    def _block(self, first: int, count: int) -> Block:
        numbers = np.arange(first, first + count)
        turn, at = np.divmod(numbers, self._stops[-1])
        operator = np.searchsorted(self._stops, at, side="right")
        within = at - self._stops[operator] + self._batch[operator]
        records = np.zeros(count, COMMAND_DTYPE)
        records["seq"], records["dtype"] = numbers, self.dtype
        for name, sizes in zip("mnk", self._sizes.T, strict=True):
            records[name] = sizes[operator]
        for role, places in zip("abc", self._places, strict=True):
            records[f"slot_{role}"] = places.at(turn, operator, within)
        records["request"], records["step"] = self._thread[operator], self._steps.at(turn, operator, within)
        due_ns = None if self._due_ns is None else turn * self._turn_ns + self._due_ns[operator]
        return Block(records, due_ns)

    def strides(self) -> dict[ShapeKey, tuple[int, int, int]]:
        """Return the most frequent distance between successive commands of each shape, counted on the first commands.

        It is (1, 1, 1) for a shape that occurs only once among them, or whose slots only move backwards.
        """
        records = self._block(0, min(self.commands, STRIDE_COMMANDS)).records
        sizes = np.stack([records[name] for name in "mnk"], axis=1)
        slots = np.stack([records[f"slot_{role}"].astype(np.int64) for role in "abc"], axis=1)
        strides = {}
        for shape in self.shapes:
            own = slots[(sizes == (shape.m, shape.n, shape.k)).all(axis=1)]
            moves = Counter(map(tuple, np.diff(own, axis=0).tolist()))
            usable = [move for move, _ in moves.most_common() if min(move) >= 0]
            strides[shape] = usable[0] if usable else (1, 1, 1)
        return strides

"""`RowStream`: the commands of rows, in their order, several times over. A row is some commands of one shape.

Memory grows with the rows, not with the commands: records are made from columns with an entry per row.

Operands are random, and no command reads the output of another. Commands of a row that names a weight all read that
weight; each pass through the rows takes the next of its copies. Other commands take the weights of their size in turn.
Inputs are taken in turn from a longer cycle. Every output has a slot of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import COMMAND_DTYPE, Dtype, ShapeKey
from launchopt.streams.gemm_stream import INPUT_ARENA_LIMIT_BYTES, INPUT_TURNS
from launchopt.streams.operands import ArenaKey, arenas_of
from launchopt.streams.stream import BLOCK_RECORDS, Block, CommandStream

STRIDE_COMMANDS = 1 << 16  # commands in which `strides` counts the distances between slots
NO_WEIGHT = -1  # in place of the number of a weight: the row names none

Columns = NDArray[np.int64]
Weights = Callable[[ArenaKey, int], int]  # (arena of weights, commands that use it) -> number of different weights


@dataclass(frozen=True, slots=True)
class Rows:
    """The columns of rows."""

    sizes: Columns  # [rows, 3]: m, n and k
    count: Columns  # [rows]: commands
    weight: Columns  # [rows]: number of the named weight among those of its size, or NO_WEIGHT


class At(NamedTuple):
    """Positions in the stream, each array with an entry per command."""

    number: Columns  # of the command, from 0
    turn: Columns  # pass through the rows
    row: Columns
    within: Columns  # command of the row, from 0


@dataclass(frozen=True, slots=True)
class Turns:
    """The numbers that commands get in order: slots of an arena, or steps of a thread of a trace.

    After the last number of a supply comes its number 0 again. A supply is the arena or the thread from which a row
    gets its numbers. A turn is one pass through the rows. Each array has one entry per row.
    """

    first: Columns  # number of the row's first command in turn 0
    a_turn: Columns  # numbers that all rows of the supply take in one turn
    size: Columns  # numbers in the supply
    base: Columns  # added to each number
    move: Columns  # numbers from one command of the row to the next: 1, or 0 if all get the same one

    def at(self, place: At) -> Columns:
        """Return the number of each command at `place`."""
        row, within = place.row, place.within * self.move[place.row]
        numbers: Columns = (place.turn * self.a_turn[row] + self.first[row] + within) % self.size[row]
        return self.base[row] + numbers


def turns_of(supply_of: Columns, count: Columns, size: Columns) -> Turns:
    """Return the turns of rows. supply_of: number of the supply of each row. size: how many numbers each supply has."""
    order = np.argsort(supply_of, kind="stable")
    supply, commands = supply_of[order], count[order]
    before = np.cumsum(commands) - commands
    first = np.empty_like(before)
    first[order] = before - before[np.searchsorted(supply, supply)]
    a_turn = _sums(supply_of, count, len(size))
    return Turns(first, a_turn[supply_of], size[supply_of], np.zeros_like(first), np.ones_like(first))


def _sums(number_of: Columns, count: Columns, numbers: int) -> Columns:
    """Return the sum of the counts of the rows of each number."""
    sums = np.zeros(numbers, np.int64)
    np.add.at(sums, number_of, count)
    return sums


def _numbered(values: Columns) -> tuple[Columns, Columns]:
    """Return the different rows of a table in the order in which they come, and the number of each row among them."""
    different, first, number = np.unique(values, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return different[order], np.argsort(order)[number.reshape(-1)]


class _Arenas(NamedTuple):
    """The arenas of an operand, in the order of the rows."""

    keys: list[ArenaKey]
    of_row: Columns  # [rows]: number of the arena

    def values(self, of_arena: Mapping[ArenaKey, int]) -> Columns:
        """Return the value of each arena."""
        return np.array([of_arena[key] for key in self.keys], np.int64)


def _arenas(shapes: Sequence[ShapeKey], shape_of: Columns, role: int) -> _Arenas:
    """Return the arenas of operand `role` of A, B and C. shape_of: number of the shape of each row."""
    keys = [arenas_of(shape)[role] for shape in shapes]
    number = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    return _Arenas(list(number), np.array([number[key] for key in keys], np.int64)[shape_of])


class RowStream(CommandStream):
    """Commands of `rows`, `repeat` times over.

    weights: chooses the number of different weights of an arena, for rows that name none. copies: of named weights.
    """

    independent = False
    layers = 1

    def __init__(self, rows: Rows, dtype: Dtype, weights: Weights, repeat: int = 1, copies: int = 1) -> None:
        self.dtype = dtype
        self._rows, self._turns = rows, repeat
        self._stops = np.cumsum(rows.count)
        self.pass_commands = int(self._stops[-1])  # commands of one pass
        self.commands = self.pass_commands * repeat
        sizes, shape_of = _numbered(rows.sizes)
        shapes = [ShapeKey(m, n, k, dtype) for m, n, k in sizes.tolist()]
        counts = _sums(shape_of, rows.count, len(shapes)) * repeat
        self.counts = dict(zip(shapes, counts.tolist(), strict=True))
        self.shapes = sorted(shapes)
        index_of = {shape: index for index, shape in enumerate(self.shapes)}
        self._shape_index = np.array([index_of[shape] for shape in shapes])[shape_of]
        by_role = [_arenas(shapes, shape_of, role) for role in range(3)]
        self._uses = {arena: uses for arenas in by_role for arena, uses in self._counted(arenas).items()}
        named, self.copies = self._named(by_role[0]), min(copies, repeat)
        uses = int(rows.count[rows.weight != NO_WEIGHT].sum())  # of named weights in one pass
        self._shares_named = uses > sum(named.values())
        self._reuses_named = uses * repeat > sum(named.values()) * self.copies
        self._set_weights(by_role[0], named, weights)
        self._set_inputs(by_role[1])
        a, b, c = (turns_of(each.of_row, rows.count, each.values(self.arenas)) for each in by_role)
        self._places = [self._weights_in_turn(a, by_role[0], named), b, c]
        self.replicas = self.fewest_weights or 1

    def _counted(self, arenas: _Arenas, rows: NDArray[np.bool_] | None = None) -> dict[ArenaKey, int]:
        """Return the number of commands for each arena. rows: those that count; an arena of no such row has 0."""
        taken = self._rows.count if rows is None else np.where(rows, self._rows.count, 0)
        counts = _sums(arenas.of_row, taken, len(arenas.keys)) * self._turns
        return dict(zip(arenas.keys, counts.tolist(), strict=True))

    def _named(self, arenas: _Arenas) -> dict[ArenaKey, int]:
        """Return the number of named weights of each arena of weights."""
        named = np.zeros(len(arenas.keys), np.int64)
        np.maximum.at(named, arenas.of_row, self._rows.weight + 1)
        return dict(zip(arenas.keys, named.tolist(), strict=True))

    def _set_weights(self, of_a: _Arenas, named: Mapping[ArenaKey, int], weights: Weights) -> None:
        """Set the slots of the arenas of weights: named weights first, with all their copies, then the others."""
        self.arenas = dict(self._uses)
        for arena, uses in self._counted(of_a, self._rows.weight == NO_WEIGHT).items():
            others = min(uses, weights(arena, uses)) if uses else 0
            self.arenas[arena] = named[arena] * self.copies + others

    def _set_inputs(self, of_b: _Arenas) -> None:
        """Set the slots of the arenas of inputs, so that the same pair of weight and input comes again late.

        Commands that name one weight have an input each.
        """
        slots = self.arenas
        named_uses = self._counted(of_b, self._rows.weight != NO_WEIGHT)
        longest = Counter({arena: uses // self._turns * self.copies for arena, uses in named_uses.items()})
        for shape in self.shapes:
            a, b, _ = arenas_of(shape)
            longest[b] = max(longest[b], slots[a])
        for b, most in longest.items():
            slots[b] = min(slots[b], most * INPUT_TURNS, max(1, INPUT_ARENA_LIMIT_BYTES // b.slot_bytes))

    def _weights_in_turn(self, turns: Turns, of_a: _Arenas, named: Mapping[ArenaKey, int]) -> Turns:
        """Return the slots of weights. `turns` are right if no row names a weight."""
        weight, is_named = self._rows.weight, self._rows.weight != NO_WEIGHT
        if not is_named.any():
            return turns
        in_arena = of_a.values(named)[of_a.of_row]
        others = turns_of(of_a.of_row, np.where(is_named, 0, self._rows.count), of_a.values(self.arenas))
        behind = in_arena * self.copies  # slots of named weights, which precede the others
        return Turns(
            first=np.where(is_named, 0, others.first),
            a_turn=np.where(is_named, in_arena, others.a_turn),
            size=np.where(is_named, behind, others.size - behind),
            base=np.where(is_named, weight, behind),
            move=np.where(is_named, 0, 1),
        )

    @property
    def fewest_weights(self) -> int | None:
        """Minimum number of different weights, over the shapes that use a weight twice; None if no shape does."""
        reused = [slots for arena, slots in self.arenas.items() if arena.is_weight and slots < self._uses[arena]]
        return min(reused, default=None)

    @property
    def batches_share_weights(self) -> bool:
        """Whether several commands of one pass name the same weight."""
        return self._shares_named

    @property
    def weights_in_turn(self) -> bool:
        """Whether commands of a shape take its weights in turn: no weight is named and used again."""
        return not self._reuses_named

    def blocks(self, block_records: int = BLOCK_RECORDS) -> Iterator[Block]:
        """Yield the stream in order, in blocks of `block_records` records; the last may be shorter."""
        order = self._order()
        for first in range(0, self.commands, block_records):
            yield self._block(self._at(first, min(block_records, self.commands - first), order))

    def _order(self) -> NDArray[np.uint32] | None:
        """Return the commands of a pass in the order in which they come; None: in the order of the rows."""
        return None

    def _at(self, first: int, count: int, order: NDArray[np.uint32] | None) -> At:
        """Return where `count` commands are, from the number `first` on."""
        numbers = np.arange(first, first + count)
        turn, at = np.divmod(numbers, self.pass_commands)
        if order is not None:
            at = order[at].astype(np.int64)
        row = np.searchsorted(self._stops, at, side="right")
        return At(numbers, turn, row, at - self._stops[row] + self._rows.count[row])

    def _block(self, at: At) -> Block:
        """Return the commands at `at`. A subclass sets their request and step."""
        records = np.zeros(len(at.number), COMMAND_DTYPE)
        records["seq"], records["dtype"] = at.number, self.dtype
        for name, sizes in zip("mnk", self._rows.sizes.T, strict=True):
            records[name] = sizes[at.row]
        for role, turns in zip("abc", self._places, strict=True):
            records[f"slot_{role}"] = turns.at(at)
        return Block(records, None)

    def strides(self) -> dict[ShapeKey, tuple[int, int, int]]:
        """Return the most frequent distance between successive commands of each shape, counted on the first commands.

        It is (1, 1, 1) for a shape that occurs only once among them, or whose slots only move backwards.
        """
        at = self._at(0, min(self.commands, STRIDE_COMMANDS), self._order())
        index = self._shape_index[at.row]
        order = np.argsort(index, kind="stable")
        slots = np.stack([turns.at(at) for turns in self._places], axis=1)[order]
        ends = np.searchsorted(index[order], np.arange(len(self.shapes) + 1))
        strides = {}
        for number, shape in enumerate(self.shapes):
            own = slots[ends[number] : ends[number + 1]]
            moves = Counter(map(tuple, np.diff(own, axis=0).tolist()))
            usable = [move for move, _ in moves.most_common() if min(move) >= 0]
            strides[shape] = usable[0] if usable else (1, 1, 1)
        return strides

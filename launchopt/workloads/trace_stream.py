"""trace: the GEMMs of a profiler's trace, in its order, each due when it was asked for then.

In: GEMMs in order of time (`launchopt.traces.gemms`). Out: a stream with a command a GEMM, those of a batched operator
in a row; the whole again for each repeat. A thread of the trace is a request. Nothing is kept a command: records are
made from columns, a row an operator.

A trace does not tell whose result a GEMM read, nor where its operands lay. So no command here reads what another
wrote: what a mode gains by batching commands of one thread, a real model gains only where these do not depend on each
other. And operands are random: commands that share the weights' shape take the next weight in turn, of `weights` many;
inputs take turns in a longer cycle, every output has a slot of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import COMMAND_DTYPE, Dtype, ShapeKey
from launchopt.traces.gemms import Gemm
from launchopt.workloads.stream import (
    BLOCK_RECORDS,
    INPUT_ARENA_LIMIT_BYTES,
    INPUT_TURNS,
    ArenaKey,
    Block,
    CommandStream,
    arenas_of,
)

STRIDE_COMMANDS = 1 << 16  # looked at for how slots move

Columns = NDArray[np.int64]
Weights = Callable[[ArenaKey, int], int]  # an arena of weights, and how many commands use it -> distinct ones


def first_commands(gemms: Sequence[Gemm], commands: int | None) -> list[Gemm]:
    """The first so many (None: all), the last operator's batch cut where it must be."""
    kept: list[Gemm] = []
    for gemm in gemms:
        if commands is not None and commands <= gemm.batch:
            return [*kept, replace(gemm, batch=commands)]
        kept.append(gemm)
        commands = None if commands is None else commands - gemm.batch
    return kept


@dataclass(frozen=True, slots=True)
class _Turns:
    """What operators take one after the other from a numbered supply: slots of an arena, steps of a thread.

    Columns, a row an operator: which is its first, how many all operators take from there in a turn, and how many there
    are before the first comes again.
    """

    first: Columns
    a_turn: Columns
    size: Columns

    def at(self, turn: Columns, operator: Columns, within: Columns) -> Columns:
        """What command `within` of an operator takes in a turn through the trace."""
        return (turn * self.a_turn[operator] + self.first[operator] + within) % self.size[operator]


def _turns(supply_of: Sequence[Hashable], batch: Columns, size: Mapping[Any, int]) -> _Turns:
    """`supply_of` each operator; `size` of each supply."""
    taken: Counter[Hashable] = Counter()
    first = []
    for supply, count in zip(supply_of, batch.tolist(), strict=True):
        first.append(taken[supply])
        taken[supply] += count
    rows = [(at, taken[supply], size[supply]) for at, supply in zip(first, supply_of, strict=True)]
    return _Turns(*np.array(rows, np.int64).T)


class TraceStream(CommandStream):
    """Commands of `gemms`, `repeat` times over. `speed`: of the trace's clock, 2 for half the gaps; None: no gaps."""

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

    def _counted(self, what: Sequence[Any], repeat: int) -> dict[Any, int]:
        """Commands of each."""
        counts: Counter[Any] = Counter()
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
        """Distinct weights of the shape that has fewest, of those that come back to one; None where none does."""
        reused = [slots for arena, slots in self.arenas.items() if arena.is_weight and slots < self._uses[arena]]
        return min(reused, default=None)

    @property
    def span_ns(self) -> int:
        """When the last command is due, since the start."""
        return 0 if self._due_ns is None else int(self._due_ns[-1]) + (self._turns - 1) * self._turn_ns

    def blocks(self, block_records: int = BLOCK_RECORDS) -> Iterator[Block]:
        """The stream in order."""
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
        """As any, found on the first commands; (1, 1, 1) for a shape that does not come twice among them."""
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

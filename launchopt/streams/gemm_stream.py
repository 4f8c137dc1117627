"""`GemmStream`: independent GEMMs of a few sizes, whose records follow from segments.

A segment is "request r makes `steps` steps with n columns, due at t". A step is every GEMM of every layer once, in
order.

Slots: each linear of each layer has one slot in each of `replicas` copies of the model. Steps use the copies
in turn, so that a small model does not stay in the cache. Inputs are used in turn, too, and their cycle is longer than
that of the weights. So a pair of A and B comes again only after several turns. Each command has its own output slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import COMMAND_DTYPE, Dtype, Records, ShapeKey
from launchopt.streams.operands import ArenaKey, arenas_of
from launchopt.streams.stream import BLOCK_RECORDS, Block, CommandStream
from launchopt.weights.packing import PLAIN, Packing

INPUT_ARENA_LIMIT_BYTES = 256 << 20  # maximum memory of the inputs of one shape; they have at least one slot
INPUT_TURNS = 4  # input slots per weight slot: a pair (A, B) comes again only after four turns


@dataclass(frozen=True, slots=True)
class Segment:
    """`steps` consecutive steps of one request, each with n columns.

    due_ns: time at which all are due, since the start; None: a closed loop.
    """

    n: int
    steps: int
    request: int = 0
    due_ns: int | None = None


class _Step(NamedTuple):
    """The GEMMs of one step with n columns."""

    shapes: list[ShapeKey]
    template: Records
    moves: NDArray[np.int64]  # [3, gemms]: slots by which A, B and C move from one step to the next
    slots_b: NDArray[np.int64]  # [gemms]: slots of the arena of B


@dataclass(frozen=True, slots=True)
class CommandOrder:
    """The order of weights and requests in a `GemmStream`, when its commands are due, and how weights are stored."""

    # True: use weights in a fixed random order, as a mixture of experts does, so that neighbours in a bucket are not
    # neighbours in memory. False: use them in turn.
    shuffle: bool = False
    seed: int = 0  # fixes the random order
    due_ns: NDArray[np.int64] | None = None  # [commands]: since the start; None: the times of the segments
    independent: bool = False  # True: every command is a request
    packing: Packing = PLAIN  # of all weights, but for those of `plain`
    plain: frozenset[int] = frozenset()  # indices of linears whose weights are not quantised


IN_TURN = CommandOrder()


class GemmStream(CommandStream):
    """Commands of `linears` (pairs of m, k) in each of `layers` layers, for each step of each segment."""

    def __init__(
        self,
        linears: Sequence[tuple[int, int]],
        layers: int,
        segments: Sequence[Segment],
        dtype: Dtype,
        replicas: int,
        order: CommandOrder = IN_TURN,
    ) -> None:
        self.independent, self._due_ns = order.independent, order.due_ns
        self.linears, self.layers, self.segments = tuple(linears), layers, tuple(segments)
        self.dtype, self.replicas, self.packing = dtype, replicas, order.packing
        self._packings = [PLAIN if at in order.plain else self.packing for at in range(len(self.linears))]
        for (_, k), packing in zip(self.linears, self._packings, strict=True):
            packing.check(k)
        self._uses = Counter[int]()  # number of steps by their columns n
        for segment in self.segments:
            self._uses[segment.n] += segment.steps
        self.gemms_per_step = len(self.linears) * layers
        self.commands = self.gemms_per_step * sum(self._uses.values())
        self.requests = self.commands if order.independent else len({segment.request for segment in self.segments})
        self.arenas = {}
        self._steps = {n: self._step(n) for n in sorted(self._uses)}
        self.shapes = sorted({shape for step in self._steps.values() for shape in step.shapes})
        self.counts = self._counts()
        self._order = self._weight_order(order.seed) if order.shuffle else {}

    def _step(self, n: int) -> _Step:
        layer = zip(self.linears, self._packings, strict=True)
        shapes = [ShapeKey(m, n, k, self.dtype, packing=packing) for (m, k), packing in layer] * self.layers
        template = np.zeros(len(shapes), COMMAND_DTYPE)
        ranks: Counter[ArenaKey] = Counter()
        for row, shape in zip(template, shapes, strict=True):
            row["m"], row["n"], row["k"], row["dtype"] = shape.m, shape.n, shape.k, shape.dtype
            for arena in arenas_of(shape):
                row[f"slot_{arena.role}"] = ranks[arena]
                ranks[arena] += 1
        for arena, per_step in ranks.items():
            self.arenas[arena] = self._slots(arena, per_step, self._uses[n])
        arenas = [arenas_of(shape) for shape in shapes]
        moves = np.array([[ranks[arena] for arena in own] for own in arenas]).T
        return _Step(shapes, template, moves, np.array([self.arenas[b] for _, b, _ in arenas]))

    def _slots(self, arena: ArenaKey, per_step: int, uses: int) -> int:
        if arena.role == "a":
            return per_step * self.replicas
        if arena.role == "c":
            return per_step * uses
        fit = max(1, INPUT_ARENA_LIMIT_BYTES // arena.slot_bytes)
        turns = min(uses, self.replicas * INPUT_TURNS, max(1, fit // per_step))
        return min(per_step * turns, fit) if turns == 1 else per_step * turns

    def _counts(self) -> dict[ShapeKey, int]:
        counts: Counter[ShapeKey] = Counter()
        for n, step in self._steps.items():
            for shape in step.shapes:
                counts[shape] += self._uses[n]
        return dict(counts)

    def _weight_order(self, seed: int) -> dict[ArenaKey, NDArray[np.uint32]]:
        generator = np.random.default_rng([seed, 0x51077])
        return {
            arena: generator.permutation(slots).astype(np.uint32)
            for arena, slots in self.arenas.items()
            if arena.role == "a"
        }

    def blocks(self, block_records: int = BLOCK_RECORDS) -> Iterator[Block]:
        """Yield the stream in order, in blocks of whole steps (about `block_records` records each)."""
        steps_a_block = max(1, block_records // self.gemms_per_step)
        used: Counter[int] = Counter()  # steps made so far, by their columns n
        at_step: Counter[int] = Counter()  # steps made so far, by request
        total = 0
        for segment in self.segments:
            for start in range(0, segment.steps, steps_a_block):
                steps = min(steps_a_block, segment.steps - start)
                records = self._records(segment, steps, total, used[segment.n], at_step[segment.request])
                yield Block(records, self._dues(segment, total * self.gemms_per_step, len(records)))
                total += steps
                used[segment.n] += steps
                at_step[segment.request] += steps

    def _dues(self, segment: Segment, first: int, count: int) -> NDArray[np.int64] | None:
        if self._due_ns is not None:
            return self._due_ns[first : first + count]
        return None if segment.due_ns is None else np.full(count, segment.due_ns)

    def _records(self, segment: Segment, steps: int, total: int, used: int, at_step: int) -> Records:
        """Return the records of `steps` steps.

        Before them come `total` steps of the stream, `used` of these with the same n, and `at_step` of the request.
        """
        step, width = self._steps[segment.n], self.gemms_per_step
        records = np.tile(step.template, steps).reshape(steps, width)
        index = np.arange(steps, dtype=np.int64)[:, None]
        records["seq"] = (total * width) + np.arange(steps * width).reshape(steps, width)
        if self.independent:
            records["request"] = records["seq"]
        else:
            records["request"] = segment.request
            records["step"] = at_step * width + np.arange(steps * width).reshape(steps, width)
        moves_a, moves_b, moves_c = step.moves
        records["slot_a"] += ((total + index) % self.replicas * moves_a).astype(np.uint32)
        records["slot_b"] = (step.template["slot_b"] + (used + index) * moves_b) % step.slots_b
        records["slot_c"] += ((used + index) * moves_c).astype(np.uint32)
        for column, shape in enumerate(step.shapes if self._order else ()):
            order = self._order[arenas_of(shape)[0]]
            records["slot_a"][:, column] = order[records["slot_a"][:, column]]
        return records.reshape(-1)

    def strides(self) -> dict[ShapeKey, tuple[int, int, int]]:
        """Return the most frequent distance between successive commands of each shape, counted on the first steps."""
        strides = {}
        for n, step in self._steps.items():
            steps = min(self._uses[n], max(3, 64 // self.gemms_per_step))
            records = self._records(Segment(n, steps), steps, 0, 0, 0)
            for shape in set(step.shapes):
                own = records[(records["m"] == shape.m) & (records["k"] == shape.k)]
                slots = np.stack([own[f"slot_{role}"].astype(np.int64) for role in "abc"], axis=1)
                moves = Counter(map(tuple, np.diff(slots, axis=0).tolist()))
                usable = [move for move, _ in moves.most_common() if min(move) >= 0 and move[2] > 0]
                strides[shape] = usable[0] if usable else (1, 1, 1)
        return strides

"""`ExpertStream`: steps through a layer with experts, of `columns` tokens each.

In: the sizes of a layer (`layout`), and the experts of each column (`routing`). Out: a stream that is one
request, in groups that follow one another, as a list with groups (`ListStream`). A step has these groups:

    router     a GEMM: the logit of each expert for each column
    top_k      the experts with the largest sum of logit and selection bias, and the softmax of their logits
    map        the row of each expert of each column, if rows are sorted by expert
    permute    columns copied to these rows
    gate_up    a GEMM for each expert that has rows
    silu_mul   SiLU(gate) * up, of all rows
    down       a GEMM for each expert that has rows
    combine    the sum of each column's rows, with the weights of top_k

A GEMM of an expert has as many columns as the routing gives it, so commands are made from the routing. The device
chooses the same experts, by the selection bias: it is `margin` for the experts of the routing, and 0 for others. No
logit exceeds half of that: inputs are within -1 .. 1, and weights of k inputs within -sqrt(3 / k) .. sqrt(3 / k). As
in DeepSeek V3 a bias selects experts, and does not change their weights. (There a bias belongs to an expert.)

Steps take copies of the weights in turn, as if each were another layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from launchopt.command import COMMAND_DTYPE, Dtype, Flag, Records, ShapeKey
from launchopt.streams.experts.layout import DOWN, GATE_UP, ROUTER, ExpertLayer, ExpertLayout
from launchopt.streams.experts.routing import Routing
from launchopt.streams.gemm_stream import INPUT_ARENA_LIMIT_BYTES
from launchopt.streams.operands import ArenaKey, Fixed, Operands
from launchopt.streams.stream import BLOCK_RECORDS, Block, CommandStream
from launchopt.weights.packing import PLAIN, Packing

SINGLE = 6  # commands of a step besides those of experts: all but gate_up and down

Numbers = NDArray[np.int64]


class ExpertStream(CommandStream):
    """Steps of `layer`, one for each entry of `routing`.

    replicas: copies of the weights that steps take in turn. packing: of the weights of experts, but not of the router.
    """

    independent = False
    packable = False
    layers = 1
    requests = 1

    def __init__(
        self, layer: ExpertLayer, routing: Routing, dtype: Dtype, replicas: int, packing: Packing = PLAIN
    ) -> None:
        self.layer, self.routing, self.dtype, self.replicas, self.packing = layer, routing, dtype, replicas, packing
        self.layout = layout = ExpertLayout(layer, dtype, packing)
        self.steps, self.expert_columns = len(routing.chosen), routing.counts
        self.active = (self.expert_columns > 0).sum(axis=1)  # experts that have rows, by step
        self.pass_commands = int(SINGLE + 2 * self.active.max())  # of the longest step
        self.commands = int(SINGLE * self.steps + 2 * self.active.sum())
        self.arenas = {key: count * replicas for key, count in layout.weights_of_copy.items()}
        self.arenas[layout.inputs] = min(self.steps, max(1, INPUT_ARENA_LIMIT_BYTES // layout.inputs.slot_bytes))
        self.arenas[layout.selection] = self.steps
        self.arenas[layout.activations] = self.steps * layout.region.units
        self._count()

    def _count(self) -> None:
        """Set the commands of each shape, and the most of them in one group."""
        self.counts = dict.fromkeys(self.layout.singles.values(), self.steps)
        self._together = dict.fromkeys(self.layout.singles.values(), 1)
        widths, uses = np.unique(self.expert_columns, return_counts=True)
        for n, count in zip(widths.tolist(), uses.tolist(), strict=True):
            most = int((self.expert_columns == n).sum(axis=1).max())
            for shape in (self.layout.gate_up(n), self.layout.down(n)) if n else ():
                self.counts[shape], self._together[shape] = count, most
        self.shapes = sorted(self.counts)

    def operands(self, shape: ShapeKey) -> Operands:
        """Return the layout of A, B and C of a shape."""
        return self.layout.operands(shape)

    def together(self, shape: ShapeKey) -> int:
        """Return the maximum commands of a shape in one group, and so in one batch."""
        return self._together[shape]

    def strides(self) -> dict[ShapeKey, tuple[int, int, int]]:
        """Return the distance, in slots of (A, B, C), between neighbouring experts with as many rows."""
        return {shape: self.layout.moves(shape) for shape in self.shapes}

    def blocks(self, block_records: int = BLOCK_RECORDS) -> Iterator[Block]:
        """Yield the stream in order, in blocks of whole steps (about `block_records` records each)."""
        stops = np.cumsum(SINGLE + 2 * self.active)
        first = 0
        while first < self.steps:
            done = int(stops[first - 1]) if first else 0
            stop = max(first + 1, int(np.searchsorted(stops, done + block_records, side="right")))
            yield Block(self._records(first, stop, done), None)
            first = stop

    def _records(self, first: int, stop: int, done: int) -> Records:
        """Return the records of the steps from `first` to `stop`; `done` commands come before them."""
        counts, active = self.expert_columns[first:stop], self.active[first:stop]
        steps = np.arange(first, stop)
        sizes = SINGLE + 2 * active
        start = np.cumsum(sizes) - sizes
        records = np.zeros(int(sizes.sum()), COMMAND_DTYPE)
        records["seq"] = records["step"] = done + np.arange(len(records))
        layout, region = self.layout, self.layout.region
        shapes, base, after_up = layout.singles, steps * region.units, start + 4 + active
        inputs, copies = steps % self.arenas[layout.inputs], steps % self.replicas
        router = layout.first_weight[ROUTER] + copies * layout.copy_move[ROUTER]
        table, mapped, gathered = base + region.table, base + region.map, base + region.gathered
        up, activated, down = base + region.gate_up, base + region.activated, base + region.down
        _put(records, start, shapes["router"], (router, inputs, base))
        _put(records, start + 1, shapes["top_k"], (steps, base, table))
        _put(records, start + 2, shapes["map"], (table, table, mapped))
        _put(records, start + 3, shapes["permute"], (mapped, inputs, gathered))
        _put(records, after_up, shapes["silu_mul"], (up, up, activated))
        _put(records, after_up + 1 + active, shapes["combine"], (table, down, base + region.out))
        step, expert = np.nonzero(counts)
        rank = np.arange(len(step)) - (np.cumsum(active) - active)[step]
        row = (np.cumsum(counts, axis=1) - counts)[step, expert]
        n = counts[step, expert]
        for which, at, shape, b, c in (
            (GATE_UP, start + 4, layout.gate_up(0), gathered, up),
            (DOWN, after_up + 1, layout.down(0), activated, down),
        ):
            a = layout.first_weight[which] + copies[step] * layout.copy_move[which] + expert
            slots = a, b[step] + row * layout.units(shape.k), c[step] + row * layout.units(shape.m)
            _put(records, at[step] + rank, shape, slots)
            records["n"][at[step] + rank] = n
        ends = (
            start,
            start + 1,
            start + 2,
            start + 3,
            after_up - 1,
            after_up,
            after_up + active,
            after_up + 1 + active,
        )
        records["flags"][np.concatenate(ends)] = Flag.GROUP_END
        records["flags"][ends[-1]] = Flag.GROUP_END | Flag.STEP_END
        return records

    @property
    def has_groups(self) -> bool:
        """Whether commands form groups that follow one another."""
        return True

    @property
    def weights_in_turn(self) -> bool:
        """Whether commands of a shape take its weights in turn: the routing says which expert comes next."""
        return False

    @property
    def fewest_weights(self) -> int | None:
        """None: commands of a group read different weights."""
        return None

    @property
    def ordered_requests(self) -> int:
        """Number of requests whose commands must run in order."""
        return 1

    def ordering(self, violated: bool, mode_keeps_order: bool) -> str:
        """Return the order that holds: that of the groups."""
        return "per_request"

    @property
    def fills(self) -> dict[ArenaKey, tuple[int, float]]:
        """Slots of each arena that hold inputs, and the bound of their uniform values; a product keeps its input's."""
        layout = self.layout
        bounds = {key: math.sqrt(3 / key.cols) for key in layout.weights}
        bounds |= {layout.inputs: 1.0, layout.selection: 0.0}
        return {key: (self.arenas[key], bound) for key, bound in bounds.items()}

    @property
    def fixed(self) -> Mapping[ArenaKey, Fixed]:  # type: ignore[override]
        """For an arena whose inputs are not random: a function that returns the values of a chunk of its memory."""
        return {self.layout.selection: self._selection_biases}

    def _selection_biases(self, chunk: slice) -> NDArray[np.float32]:
        values = np.zeros(chunk.stop - chunk.start, np.float32)
        first, stop = np.searchsorted(self._selected, (chunk.start, chunk.stop))
        values[self._selected[first:stop] - chunk.start] = self.layer.margin
        return values

    @cached_property
    def _selected(self) -> Numbers:
        """Elements of the arena of selection biases that are `margin`, in ascending order."""
        slot = self.layout.selection.slot_bytes // self.dtype.itemsize
        steps, columns = (np.arange(size) for size in self.routing.chosen.shape[:2])
        first = steps[:, None] * slot + columns * self.layer.experts
        selected: Numbers = (first[:, :, None] + self.routing.chosen).reshape(-1)
        return selected

    @cached_property
    def weight_bytes_by_step(self) -> Numbers:
        """Bytes of different weights that each step reads: the router, and the experts that have rows."""
        router, up, down = (key.slot_bytes for key in self.layout.weights)
        read: Numbers = router + self.active * (up + down)
        return read

    @property
    def input_bytes(self) -> int:
        """Fewest bytes of weights that steps read from one use of a copy of the weights to its next use."""
        together, before = min(self.replicas, self.steps), np.append(0, np.cumsum(self.weight_bytes_by_step))
        return int((before[together:] - before[:-together]).min())

    def least_read_bytes(self, cache_bytes: int) -> int:
        """Return a lower bound of the bytes of weights that come from memory.

        Steps that take each copy once read different weights. A cache can keep `cache_bytes` of what came before.
        """
        first = np.arange(0, self.steps, self.replicas)
        return int(np.maximum(np.add.reduceat(self.weight_bytes_by_step, first) - cache_bytes, 0).sum())


def _put(records: Records, at: Numbers, shape: ShapeKey, slots: tuple[Numbers, Numbers, Numbers]) -> None:
    """Write the shape and the slots of A, B and C of the records at `at`."""
    for name in ("m", "n", "k", "op"):
        records[name][at] = getattr(shape, name)
    records["dtype"][at] = shape.packed_dtype
    for role, slot in zip("abc", slots, strict=True):
        records[f"slot_{role}"][at] = slot

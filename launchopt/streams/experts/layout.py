"""Layout of a layer with experts: shapes of the commands of a step, and where their operands lie.

In: the sizes of a layer (`ExpertLayer`), the element type, and how weights of experts are stored. Out: an
`ExpertLayout`.

All outputs of a step lie in a region of its own, so that all of them can be checked after the run. Each row takes a
whole number of units of 256 bytes. Weights that have the same size share an arena.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from launchopt.command import CHOICE_BYTES, INDEX_BYTES, Dtype, Op, ShapeKey
from launchopt.streams.operands import SLOT_ALIGNMENT_BYTES, ArenaKey, Operand, Operands
from launchopt.weights.packing import PLAIN, Packing

UNIT_BYTES = SLOT_ALIGNMENT_BYTES
ROUTER, GATE_UP, DOWN = range(3)  # layouts of GEMMs, which may have the same sizes


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """Sizes of a layer with experts, and the columns (tokens) of a step."""

    hidden: int
    inner: int  # features of an expert's MLP
    experts: int
    top_k: int  # experts of a column
    columns: int

    @property
    def rows(self) -> int:
        """Rows of a step: one for each expert of each column."""
        return self.columns * self.top_k

    @property
    def margin(self) -> float:
        """Selection bias of chosen experts: a power of two, more than twice the largest logit, sqrt(3 * hidden)."""
        return float(2.0 ** math.ceil(math.log2(2.02 * math.sqrt(3 * self.hidden))))


class Region(NamedTuple):
    """Where the outputs of a step begin, in units from the first one of its region; `units` is the length of it."""

    logits: int
    table: int  # of each column: its experts, int32, and their weights, fp32
    map: int  # the row of each expert of each column, then the first row of each expert and the end, int32
    gathered: int
    gate_up: int
    activated: int
    down: int
    out: int
    units: int


class ExpertLayout:
    """Shapes and operands of the steps of a layer.

    singles: shapes of commands that are alone in their group, by name. weights: arenas of the router, gate_up and down.
    first_weight, copy_move: the slot of the first weight of each, and slots from one copy to the next. packing: of the
    weights of experts; engines do not quantise the router.
    """

    def __init__(self, layer: ExpertLayer, dtype: Dtype, packing: Packing = PLAIN) -> None:
        self.layer, self.dtype, self.packing = layer, dtype, packing
        for features, name in ((layer.hidden, "model.hidden"), (layer.inner, "model.expert_intermediate")):
            packing.check(features, name)
        self.inputs = ArenaKey("b", layer.columns, layer.hidden, dtype)
        self.selection = ArenaKey("select", layer.columns, layer.experts, dtype)
        self.activations = ArenaKey("x", 1, UNIT_BYTES // dtype.itemsize, dtype)
        self.weights = (
            ArenaKey("a", layer.experts, layer.hidden, dtype),
            ArenaKey("a", 2 * layer.inner, layer.hidden, dtype, packing),
            ArenaKey("a", layer.hidden, layer.inner, dtype, packing),
        )
        self.weights_of_copy = Counter[ArenaKey]()
        self.first_weight = list[int]()
        for key, count in zip(self.weights, (1, layer.experts, layer.experts), strict=True):
            self.first_weight.append(self.weights_of_copy[key])
            self.weights_of_copy[key] += count
        self.copy_move = [self.weights_of_copy[key] for key in self.weights]
        self.region = self._region()
        self.singles = self._singles()

    @property
    def region_bytes(self) -> int:
        """Bytes of all outputs of a step."""
        return UNIT_BYTES * self.region.units

    def units(self, features: int) -> int:
        """Return the units of a row of `features` elements."""
        return -(-features * self.dtype.itemsize // UNIT_BYTES)

    @property
    def table_units(self) -> int:
        """Units of a column's experts and weights."""
        return -(-CHOICE_BYTES * self.layer.top_k // UNIT_BYTES)

    def _region(self) -> Region:
        layer = self.layer
        rows, columns = layer.rows, layer.columns
        sizes = (
            columns * self.units(layer.experts),
            columns * self.table_units,
            -(-INDEX_BYTES * (rows + layer.experts + 1) // UNIT_BYTES),
            rows * self.units(layer.hidden),
            rows * self.units(2 * layer.inner),
            rows * self.units(layer.inner),
            rows * self.units(layer.hidden),
            columns * self.units(layer.hidden),
        )
        return Region(0, *np.cumsum(sizes).tolist())

    def _singles(self) -> dict[str, ShapeKey]:
        layer, dtype = self.layer, self.dtype
        hidden, inner, columns = layer.hidden, layer.inner, layer.columns
        return {
            "router": ShapeKey(layer.experts, columns, hidden, dtype, layout=ROUTER),
            "top_k": ShapeKey(layer.top_k, columns, layer.experts, dtype, Op.TOP_K),
            "map": ShapeKey(layer.top_k, columns, layer.experts, dtype, Op.EXPERT_MAP),
            "permute": ShapeKey(layer.top_k * hidden, columns, hidden, dtype, Op.PERMUTE),
            "silu_mul": ShapeKey(inner, layer.rows, 2 * inner, dtype, Op.SILU_MUL),
            "combine": ShapeKey(hidden, columns, layer.top_k * hidden, dtype, Op.COMBINE),
        }

    def gate_up(self, n: int) -> ShapeKey:
        """Return the shape of the first GEMM of an expert with n rows."""
        return ShapeKey(2 * self.layer.inner, n, self.layer.hidden, self.dtype, layout=GATE_UP, packing=self.packing)

    def down(self, n: int) -> ShapeKey:
        """Return the shape of the second GEMM of an expert with n rows."""
        return ShapeKey(self.layer.hidden, n, self.layer.inner, self.dtype, layout=DOWN, packing=self.packing)

    def operands(self, shape: ShapeKey) -> Operands:
        """Return the layout of A, B and C of a shape. Outputs, and inputs that are outputs, have slots of a unit."""
        layer = self.layer
        if shape.op is Op.GEMM:
            key = self.weights[shape.layout]
            a = Operand(key, key.slot_bytes, key.cols)
            return a, self._inputs() if shape.layout == ROUTER else self._of(shape.k), self._of(shape.m)
        table = Operand(self.activations, UNIT_BYTES, self.table_units * UNIT_BYTES // self.dtype.itemsize)
        selection = Operand(self.selection, self.selection.slot_bytes, layer.experts)
        return {
            Op.TOP_K: (selection, self._of(layer.experts), table),
            Op.EXPERT_MAP: (table, table, self._of(1)),
            Op.PERMUTE: (self._of(1), self._inputs(), self._of(layer.hidden)),
            Op.SILU_MUL: (self._of(2 * layer.inner), self._of(2 * layer.inner), self._of(layer.inner)),
            Op.COMBINE: (table, self._of(layer.hidden), self._of(layer.hidden)),
        }[shape.op]

    def _of(self, features: int) -> Operand:
        return Operand(self.activations, UNIT_BYTES, self.units(features) * UNIT_BYTES // self.dtype.itemsize)

    def _inputs(self) -> Operand:
        return Operand(self.inputs, self.inputs.slot_bytes, self.layer.hidden)

    def moves(self, shape: ShapeKey) -> tuple[int, int, int]:
        """Return the slots of (A, B, C) from an expert to the next one, if both have as many rows."""
        if shape.op is not Op.GEMM or shape.layout == ROUTER:
            return 1, 1, self.region.units  # alone in its group
        return 1, shape.n * self.units(shape.k), shape.n * self.units(shape.m)

"""Slots of the operands of a program's nodes, from which the rows of each step's template follow.

In: a `Program`, its number of layers, and the element type. Out: the offset of each node's output within its request's
lane or prompt region (`Placement`); and the `Row`s of a step of n columns. Their slots count from an origin that is
known only when the step is issued.

Each row of an activation takes a whole number of units of 256 bytes. A decode step writes every node's output to a
place of its own in its request's lane. In a step of a prompt all layers write to the same region. Only a layer's last
output alternates between two places, since the next layer may still need its input when it writes its own output.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from launchopt.command import INDEX_BYTES, Dtype, Op, ShapeKey
from launchopt.errors import ConfigError
from launchopt.streams.chains.attention import Attention
from launchopt.streams.chains.lengths import StepKind
from launchopt.streams.chains.program import GATHERED, HEAD, INPUT, SLOTS, Node, Program
from launchopt.streams.chains.weights import Weights
from launchopt.streams.operands import SLOT_ALIGNMENT_BYTES, ArenaKey, Operand, Operands
from launchopt.weights.packing import PLAIN, Packing

UNIT_BYTES = SLOT_ALIGNMENT_BYTES
NO_LAYER = -1
READS_CACHE = (Op.QK, Op.AV)
# 1 for each of A, B and C that every request has for itself, 0 for one that all share. Other ops: (0, 1, 1).
MOVES_WITH_LANE = {Op.ADD: (1, 1, 1), Op.KV_WRITE: (1, 1, 0)}


class Origin(enum.IntEnum):
    """The slot from which a slot of a template counts. It is known only when the step is issued, except for FIXED."""

    LANE = 0  # first slot of the request's lane
    PREFILL = 1  # first slot of the region of the request's prompt
    INPUT = 2  # slot of the step's input
    FIXED = 3  # slot 0
    WEIGHT = 4  # first slot of the step's copy of the weights


@dataclass(frozen=True, slots=True)
class Place:
    """A slot, counted from an origin."""

    origin: Origin
    slot: int


@dataclass(frozen=True, slots=True)
class Row:
    """A command of a template. `move`: slots of A between two copies of the weights; 0 if A is no weight."""

    name: str
    layer: int  # NO_LAYER for commands before the first layer or behind the last one
    op: Op
    m: int
    n: int
    k: int
    a: Place
    b: Place
    c: Place
    move: int
    operands: Operands


class Placement:
    """Offsets of a step's outputs, and its rows.

    head: features of the logits, and those of them that this GPU computes; None: the stream has no LM head. attention:
    None for a program without attention.
    """

    def __init__(
        self,
        program: Program,
        layers: int,
        replicas: int,
        head: tuple[int, int] | None,
        dtype: Dtype,
        attention: Attention | None,
        packing: Packing = PLAIN,
    ) -> None:
        self._program, self._layers, self._head_sizes, self._dtype = program, layers, head, dtype
        self.weights = Weights(program, layers, replicas, head and head[1], dtype, packing)
        self._pitches = self._row_widths()
        self._last = program.layer[-1].name
        self.activations = ArenaKey("x", 1, UNIT_BYTES // dtype.itemsize, dtype)
        self.cache: ArenaKey | None = None
        if attention is not None:
            tokens = attention.pages_total * 2 * attention.page_tokens
            self.cache = ArenaKey("kv", tokens, attention.kv_width, dtype)
        _, layer_units = self._layer_offsets(1)
        self.logits_offset = self.units(program.hidden) + self._slots_units(1) + layers * layer_units
        self._part_offset = self.logits_offset  # of the logits that this GPU computes
        self.lane_units = self.logits_offset
        if head is not None:
            vocab, own = head
            self._part_offset += self.units(vocab) if own < vocab else 0
            self.lane_units = self._part_offset + self.units(own)

    def units(self, features: int, columns: int = 1) -> int:
        """Return the units that `columns` rows of `features` elements take. Each row is padded to whole units."""
        return columns * -(-features * self._dtype.itemsize // UNIT_BYTES)

    def row_elements(self, features: int) -> int:
        """Return the elements from one row of `features` elements to the next."""
        return self.units(features) * UNIT_BYTES // self._dtype.itemsize

    def strides(self, shapes: Iterable[ShapeKey]) -> dict[ShapeKey, tuple[int, int, int]]:
        """Return the number of slots of A, B and C from one command of a batch to the next, for each shape.

        The requests of a batch share weights and the pool of KV caches. Their activations are one lane apart.
        """
        moves = {shape: MOVES_WITH_LANE.get(shape.op, (0, 1, 1)) for shape in shapes}
        return {
            shape: (a * self.lane_units, b * self.lane_units, c * self.lane_units) for shape, (a, b, c) in moves.items()
        }

    def _slots_units(self, n: int) -> int:
        return -(-n * INDEX_BYTES // UNIT_BYTES) if self._program.prologue else 0

    def _row_widths(self) -> dict[str, int]:
        """Return the elements between two rows of each node's output. Merged nodes share rows."""
        widths = {INPUT: self._program.hidden} | {node.name: node.m for node in self._program.layer}
        for names in self._program.merged:
            for name in names:
                if widths[name] * self._dtype.itemsize % UNIT_BYTES:
                    why = f"side by side, {self._dtype.name} rows must be a multiple of {UNIT_BYTES} bytes"
                    size = f"model.{'head_dim' if name in 'qkv' else 'intermediate'}"
                    stored = " or workload.merged=true" if self._program.prologue else ""  # workload=layer
                    whole = UNIT_BYTES // self._dtype.itemsize  # features that fill a unit
                    meant = f"{why}; use {size}={whole} or another multiple of {whole}{stored}"
                    raise ConfigError("model", f"{name} of {widths[name]} features", meant)
            widths |= dict.fromkeys(names, sum(widths[name] for name in names))
        return {name: self.row_elements(width) for name, width in widths.items()}

    def _layer_offsets(self, n: int) -> tuple[dict[str, int], int]:
        """Return the offset of each node's output within a layer's region, and the length of that region, in units."""
        offsets, at = {}, 0
        first_of = {name: names[0] for names in self._program.merged for name in names}
        for node in self._program.layer:
            if node.op is Op.KV_WRITE:
                continue
            if first_of.get(node.name, node.name) == node.name:
                start = offsets[node.name] = at
                at += n * self._pitches[node.name] * self._dtype.itemsize // UNIT_BYTES
                inner = self.units(node.m)
            else:
                offsets[node.name] = start + inner
                inner += self.units(node.m)
        return offsets, at

    def region_units(self, n: int) -> int:
        """Return the units of all outputs of a prompt's step with n columns."""
        spare = self.units(self._program.hidden, n) if self._layers > 1 else 0
        return self._slots_units(n) + self._layer_offsets(n)[1] + spare

    def _outputs(self, kind: StepKind, layers: int) -> dict[tuple[int, str], int]:
        """Return the offset of each node's output by (layer, name), in units from the start of the lane or region."""
        offsets, layer_units = self._layer_offsets(kind.n)
        base = 0 if kind.is_prompt else self.units(self._program.hidden)
        found = {(NO_LAYER, SLOTS): base}
        base += self._slots_units(kind.n)
        for layer in range(layers):
            start = base if kind.is_prompt else base + layer * layer_units
            found |= {(layer, name): start + offset for name, offset in offsets.items()}
            if kind.is_prompt and layer % 2:
                found[layer, self._last] = base + layer_units
        return found

    def _last_output(self, kind: StepKind) -> int:
        """Return the offset of the last layer's output, in units."""
        if not kind.is_prompt:
            return self.logits_offset - self.units(self._program.hidden)
        last = 1 - self._layers % 2  # a layer whose number has the parity of the last one: both write to one place
        return self._outputs(kind, last + 1)[last, self._last]

    def rows(self, kind: StepKind, layers: int) -> tuple[list[Row], list[list[Row]], list[Row]]:
        """Return the commands of a step: before its layers, of each of the first `layers`, and behind the last one."""
        n, origin = kind.n, Origin.PREFILL if kind.is_prompt else Origin.LANE
        places = {key: Place(origin, slot) for key, slot in self._outputs(kind, layers).items()}
        before = [self._row(node, NO_LAYER, n, places) for node in self._program.prologue]
        rows = []
        for layer in range(layers):
            places[layer, INPUT] = places[layer - 1, self._last] if layer else Place(Origin.INPUT, 0)
            rows.append([self._row(node, layer, n, places) for node in self._program.layer])
        behind = self._behind(Place(origin, self._last_output(kind)), n) if kind.ends_token else []
        return before, rows, behind

    def _activation(self, width: int) -> Operand:
        return Operand(self.activations, UNIT_BYTES, width)

    def _pitch(self, name: str, features: int, n: int) -> int:
        """Return the elements from one row of a node's output to the next.

        With one column no second row exists, and the distance ignores merging, so that such shapes have one layout.
        """
        return self._pitches[name] if n > 1 else self.row_elements(features)

    def _row(self, node: Node, layer: int, n: int, places: Mapping[tuple[int, str], Place]) -> Row:
        op, move = node.op, 0
        a, operand_a = Place(Origin.FIXED, 0), self._activation(self.row_elements(node.k))  # for an op without A
        if self.weights.has(node.name):
            operand_a, slot, move = self.weights.place(node.name, layer)
            a = Place(Origin.WEIGHT, slot)
        elif op in READS_CACHE:
            a, operand_a = Place(Origin.FIXED, layer), self._cache_operand()
        elif op is Op.KV_WRITE:
            a, operand_a = places[NO_LAYER, SLOTS], self._activation(1)
        elif node.a is not None:
            a, operand_a = places[layer, node.a], self._activation(self._pitch(node.a, node.m, n))
        if op is Op.SLOT_MAP:
            b = c = places[NO_LAYER, SLOTS]  # SLOT_MAP has no B
            operands = (operand_a, self._activation(1), self._activation(1))
            return Row(node.name, layer, op, node.m, n, node.k, a, b, c, move, operands)
        b, operand_b = places[layer, node.b], self._activation(self._pitch(node.b, node.k, n))
        if op is Op.KV_WRITE:
            c, operand_c = Place(Origin.FIXED, layer), self._cache_operand()
        else:
            c, operand_c = places[layer, node.name], self._activation(self._pitch(node.name, node.m, n))
        return Row(node.name, layer, op, node.m, n, node.k, a, b, c, move, (operand_a, operand_b, operand_c))

    def _cache_operand(self) -> Operand:
        assert self.cache is not None
        return Operand(self.cache, self.cache.slot_bytes, self.cache.cols)

    def _behind(self, last: Place, n: int) -> list[Row]:
        """Return the LM head, if there is one, and the gather behind it, if this GPU computes a part of the logits.

        Its input is the last column of the last layer's output.
        """
        if self._head_sizes is None:
            return []
        operand_a, slot, move = self.weights.place(HEAD, NO_LAYER)
        (vocab, own), hidden = self._head_sizes, self._program.hidden
        b, part = Place(last.origin, last.slot + self.units(hidden) * (n - 1)), Place(Origin.LANE, self._part_offset)
        given, of_part, whole = (self._activation(self.row_elements(width)) for width in (hidden, own, vocab))
        places = Place(Origin.WEIGHT, slot), b, part
        found = [Row(HEAD, NO_LAYER, Op.GEMM, own, 1, hidden, *places, move, (operand_a, given, of_part))]
        if own < vocab:
            to = Place(Origin.FIXED, 0), part, Place(Origin.LANE, self.logits_offset)
            found.append(Row(GATHERED, NO_LAYER, Op.ALL_GATHER, vocab, 1, own, *to, 0, (of_part, of_part, whole)))
        return found

"""Slots of the weights of a program's nodes.

In: a `Program`, its number of layers and of copies, and the element type. Out: the arenas of its weights, and the slot
of each node's weight in them.
"""

from __future__ import annotations

import math
from collections import Counter

from launchopt.command import Dtype, Op
from launchopt.errors import ConfigError
from launchopt.streams.chains.program import HEAD, Node, Program
from launchopt.streams.operands import SLOT_ALIGNMENT_BYTES, ArenaKey, Operand
from launchopt.weights.packing import PLAIN, Packing

VECTOR_ROLES = {Op.BIAS: "bias", Op.SCALE: "gain", Op.NORM: "gain", Op.ROPE: "gain"}
# Biases are a fraction of the values that they are added to (rms 0.6). A larger bias, which all columns share, would
# make the columns alike.
VECTOR_BOUNDS = {"bias": 0.25, "gain": 0.5}


class Weights:
    """Arenas of a program's weights, and the slot of each node's weight in them.

    head: features that the LM head gives; None: there is none. `slots`: number of slots of each arena. The copies
    follow one another; the LM head comes last. packing: of the weights of GEMMs, but for the LM head, which engines do
    not quantise.
    """

    def __init__(
        self,
        program: Program,
        layers: int,
        replicas: int,
        head: int | None,
        dtype: Dtype,
        packing: Packing = PLAIN,
    ) -> None:
        self._dtype, self._layers, self._packing = dtype, layers, packing
        self._group_of = {name: names for names in program.merged for name in names}
        self._per_layer: Counter[ArenaKey] = Counter()
        self._ranks: dict[str, int] = {}
        self._keys: dict[str, ArenaKey] = {}
        self._offsets: dict[str, int] = {}  # units from the start of the slot that merged weights share
        for node in program.layer:
            self._add(program, node)
        self.slots = {key: count * layers * replicas for key, count in self._per_layer.items()}
        if head is not None:
            key = ArenaKey("a", head, program.hidden, dtype)
            self._head_slot = self.slots.get(key, 0)
            self.slots[key] = self._head_slot + 1
            self._keys[HEAD] = key

    def _add(self, program: Program, node: Node) -> None:
        names = self._group_of.get(node.name, (node.name,))
        if node.op is Op.GEMM:
            if self._packing and len(names) > 1:
                why = (
                    f"{', '.join(names)} are parts of one weight, whose scales are behind it: use workload.merged=true"
                )
                raise ConfigError("workload.weights", self._packing.format, why)
            self._packing.check(node.k, f"k of {node.name}")
            key = ArenaKey("a", sum(program.node(name).m for name in names), node.k, self._dtype, self._packing)
        elif width := program.vector_width(node):
            key = ArenaKey(VECTOR_ROLES[node.op], 1, width, self._dtype)
        else:
            return
        before = names[: names.index(node.name)]
        if not before:
            self._ranks.update(dict.fromkeys(names, self._per_layer[key]))
            self._per_layer[key] += 1
        size = node.k * self._dtype.itemsize
        self._offsets[node.name] = sum(program.node(name).m for name in before) * size // SLOT_ALIGNMENT_BYTES
        self._keys[node.name] = key

    def has(self, name: str) -> bool:
        """Return whether a node has a weight."""
        return name in self._keys

    def place(self, name: str, layer: int) -> tuple[Operand, int, int]:
        """Return the layout of a node's weight, its slot in the first copy, and the slots from one copy to the next."""
        key = self._keys[name]
        in_units = any(self._keys[part] == key for part in self._group_of)
        operand = Operand(key, SLOT_ALIGNMENT_BYTES if in_units else key.slot_bytes, key.cols)
        slots = key.slot_bytes // operand.slot_bytes  # `operand` slots of one weight
        if name == HEAD:
            return operand, self._head_slot * slots, 0
        count = self._per_layer[key]
        rank = layer * count + self._ranks[name]
        return operand, rank * slots + self._offsets[name], self._layers * count * slots

    @property
    def fills(self) -> dict[ArenaKey, tuple[int, float]]:
        """Slots of each arena, and the bound of their uniform values. With it, a product keeps its input's rms."""
        return {key: (count, VECTOR_BOUNDS.get(key.role, math.sqrt(3 / key.cols))) for key, count in self.slots.items()}

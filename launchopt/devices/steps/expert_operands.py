"""Addresses of the operands of each launch of a step with experts, in the order of `LAUNCHES`.

In: a stream, and the addresses of its arenas. Out: `StepOperands`, whose `fill` writes the four addresses of each
launch of a step: A, B and C, and for a GEMM the first column of each expert. Every address is that of step 0, plus the
moves of the step's region, of its inputs, and of its copy of the weights. This module needs no GPU.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import numpy as np

from launchopt.command import INDEX_BYTES
from launchopt.devices.cublaslt import launch as lt
from launchopt.native import compiled
from launchopt.streams.expert_layout import DOWN, GATE_UP, ROUTER, UNIT_BYTES
from launchopt.streams.expert_stream import ExpertStream
from launchopt.streams.operands import ArenaKey
from launchopt.types import Int, Table

LAUNCHES = ("router", "top_k", "map", "permute", "gate_up", "silu_mul", "down", "combine")
GEMMS = {"router": ROUTER, "gate_up": GATE_UP, "down": DOWN}
OPERANDS = 4  # addresses of a launch
WORDS = OPERANDS * len(LAUNCHES)


class Move(enum.IntEnum):
    """Rows of `StepOperands.moves`: bytes that each address moves by."""

    STEP = 0  # from one step to the next
    INPUT = 1  # from one slot of inputs to the next
    COPY = 2  # from one copy of the weights to the next


class StepOperands:
    """The addresses of all steps. alone: address of the first column, and the end, of a single expert: the router."""

    def __init__(self, stream: ExpertStream, addresses: Mapping[ArenaKey, int], alone: int) -> None:
        layout, self._stream = stream.layout, stream
        region = layout.region
        base, inputs = addresses[layout.activations], addresses[layout.inputs]
        selection, rows = addresses[layout.selection], INDEX_BYTES * stream.layer.rows

        def at(unit: int) -> int:
            return base + UNIT_BYTES * unit

        weights = [
            addresses[key] + key.slot_bytes * first
            for key, first in zip(layout.weights, layout.first_weight, strict=True)
        ]
        firsts, table, mapped = at(region.map) + rows, at(region.table), at(region.map)
        self.addresses = np.array(
            [
                [weights[ROUTER], inputs, at(region.logits), alone],
                [selection, at(region.logits), table, 0],
                [table, table, mapped, 0],
                [mapped, inputs, at(region.gathered), 0],
                [weights[GATE_UP], at(region.gathered), at(region.gate_up), firsts],
                [at(region.gate_up), at(region.gate_up), at(region.activated), 0],
                [weights[DOWN], at(region.activated), at(region.down), firsts],
                [table, at(region.down), at(region.out), 0],
            ],
            np.int64,
        )
        self.moves = np.zeros((len(Move), *self.addresses.shape), np.int64)
        self._base, of_region = base, (self.addresses >= base) & (self.addresses < at(region.units))
        self.is_output = of_region.reshape(-1)  # also of inputs that are outputs of the step
        self.moves[Move.STEP][of_region] = UNIT_BYTES * region.units
        self.moves[Move.STEP, 1, 0] = layout.selection.slot_bytes
        self.moves[Move.INPUT][[0, 3], 1] = layout.inputs.slot_bytes
        for name, which in GEMMS.items():
            copy_bytes = layout.weights[which].slot_bytes * layout.copy_move[which]
            self.moves[Move.COPY, LAUNCHES.index(name), 0] = copy_bytes
        self._flat, self._flat_moves = self.addresses.reshape(-1), self.moves.reshape(len(Move), -1)

    def fill(self, words: Table, slot: int) -> None:
        """Write the addresses of the step whose logits are in `slot` to `words`, [WORDS]."""
        stream = self._stream
        step = slot // stream.layout.region.units
        at = step, step % stream.arenas[stream.layout.inputs], step % stream.replicas
        fill_words(words, self._flat, self._flat_moves, *at)

    def fill_apart(self, words: Table, memory: int) -> None:
        """Write the addresses of step 0, but for its outputs, which go to the memory at an address."""
        self.fill(words, 0)
        words[self.is_output] += memory - self._base


@compiled
def fill_words(words: Table, addresses: Table, moves: Table, step: Int, slot: Int, copy: Int) -> None:
    """Write addresses, moved by a number of steps, of slots of inputs, and of copies of the weights."""
    for i in range(len(addresses)):
        moved = moves[Move.STEP, i] * step + moves[Move.INPUT, i] * slot + moves[Move.COPY, i] * copy
        words[i] = addresses[i] + moved


@compiled
def launch_all(context: Table, plans: Table, words: Table) -> Int:
    """Make a launch for each row of `plans`, with four of `words` each; return the first status that is not OK."""
    for i in range(len(plans)):
        at = OPERANDS * i
        status = lt.launch(context, plans[i], words[at], words[at + 1], words[at + 2], words[at + 3])
        if status != lt.OK:
            return status
    return lt.OK

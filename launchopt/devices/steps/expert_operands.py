"""Addresses of the operands of each launch of a step with experts.

In: a stream, the addresses of its arenas, and the names of the launches (`expert_fusions.launches_of`). Out:
`StepOperands`, whose `fill` writes the four addresses of each launch of a step: A, B and C, and one more. That is the
first column of each expert for a GEMM, and the step's outputs for a fused launch. Every address is that of step 0, plus
the moves of the step's region, of its inputs, and of its copy of the weights. This module needs no GPU.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import numpy as np

from launchopt.command import INDEX_BYTES
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.steps.expert_fusions import FUSED_DOWN, FUSED_GATE_UP, ROUTE, Stepped
from launchopt.native import compiled
from launchopt.streams.experts.layout import DOWN, GATE_UP, ROUTER, UNIT_BYTES
from launchopt.streams.experts.stream import ExpertStream
from launchopt.streams.operands import ArenaKey
from launchopt.types import Int, Table

GEMMS = {"router": ROUTER, "gate_up": GATE_UP, "down": DOWN}
WEIGHTS = {**GEMMS, ROUTE: ROUTER, FUSED_GATE_UP: GATE_UP, FUSED_DOWN: DOWN}  # launches whose A are weights
OPERANDS = 4  # addresses of a launch


class Move(enum.IntEnum):
    """Rows of `StepOperands.moves`: bytes that each address moves by."""

    STEP = 0  # from one step to the next
    INPUT = 1  # from one slot of inputs to the next
    COPY = 2  # from one copy of the weights to the next


class StepOperands:
    """The addresses of all steps.

    launches: their names. alone: address of the first column, and the end, of a single expert: the router.
    """

    def __init__(
        self, stream: ExpertStream, addresses: Mapping[ArenaKey, int], launches: Sequence[str], alone: int
    ) -> None:
        layout, self._stream = stream.layout, stream
        region = layout.region
        base, inputs = addresses[layout.activations], addresses[layout.inputs]
        selection, rows = addresses[layout.selection], INDEX_BYTES * stream.layer.rows

        def at(unit: int) -> int:
            return base + UNIT_BYTES * unit

        router, gate_up, down = (
            addresses[key] + key.slot_bytes * first
            for key, first in zip(layout.weights, layout.first_weight, strict=True)
        )
        firsts, table, mapped = at(region.map) + rows, at(region.table), at(region.map)
        gathered, up, activated = at(region.gathered), at(region.gate_up), at(region.activated)
        operands = {
            "router": (router, inputs, at(region.logits), alone),
            "top_k": (selection, at(region.logits), table, 0),
            "map": (table, table, mapped, 0),
            "permute": (mapped, inputs, gathered, 0),
            "gate_up": (gate_up, gathered, up, firsts),
            "silu_mul": (up, up, activated, 0),
            "down": (down, activated, at(region.down), firsts),
            "combine": (table, at(region.down), at(region.out), 0),
            ROUTE: (router, inputs, at(region.logits), selection),
            FUSED_GATE_UP: (gate_up, inputs if ROUTE in launches else gathered, up, at(region.logits)),
            FUSED_DOWN: (down, activated, at(region.down), at(region.logits)),
        }
        self.addresses = np.array([operands[name] for name in launches], np.int64)
        self.moves = np.zeros((len(Move), *self.addresses.shape), np.int64)
        self._base, of_region = base, (self.addresses >= base) & (self.addresses < at(region.units))
        self.is_output = of_region.reshape(-1)  # also of inputs that are outputs of the step
        self.moves[Move.STEP][of_region] = UNIT_BYTES * region.units
        self.moves[Move.STEP][self.addresses == selection] = layout.selection.slot_bytes
        self.moves[Move.INPUT][self.addresses == inputs] = layout.inputs.slot_bytes
        for name, which in WEIGHTS.items():
            if name in launches:
                copy_bytes = layout.weights[which].slot_bytes * layout.copy_move[which]
                self.moves[Move.COPY, launches.index(name), 0] = copy_bytes
        self._flat, self._flat_moves = self.addresses.reshape(-1), self.moves.reshape(len(Move), -1)

    def fill(self, words: Table, slot: int, apart: int = 0) -> None:
        """Write the addresses of the step whose logits are in `slot` to `words`, [launches * OPERANDS].

        apart: bytes that the addresses of outputs are moved by.
        """
        stream = self._stream
        step = slot // stream.layout.region.units
        at = step, step % stream.arenas[stream.layout.inputs], step % stream.replicas
        fill_words(words, self._flat, self._flat_moves, *at)
        if apart:
            words[self.is_output] += apart

    def apart(self, memory: int) -> int:
        """Return the bytes from the outputs of step 0 to the memory at an address."""
        return memory - self._base

    def stepped(self, launch: int, state: int) -> Stepped:
        """Return what a launch needs to find its own operands on the GPU. launch: its index. state: see `Stepped`."""
        own = slice(OPERANDS * launch, OPERANDS * (launch + 1))
        slots = self._stream.arenas[self._stream.layout.inputs], self._stream.replicas
        return Stepped(self._flat[own], self._flat_moves[:, own], self.is_output[own].astype(np.int64), *slots, state)


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

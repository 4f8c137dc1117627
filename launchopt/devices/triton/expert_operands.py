"""Addresses of the operands of each launch of a step with experts, if its first GEMM gathers its inputs.

In: a stream, and the addresses of its arenas and of the blocks of rows (kernels/expert_align.cu). Out: `Operands`,
whose `of_step` writes four addresses for each of LAUNCHES. This module needs no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from launchopt.devices.steps.expert_operands import OPERANDS, Move, fill_words
from launchopt.streams.experts.layout import DOWN, GATE_UP, ROUTER, UNIT_BYTES
from launchopt.streams.experts.stream import ExpertStream
from launchopt.streams.operands import ArenaKey
from launchopt.types import Table

LAUNCHES = ("router", "top_k", "map", "gate_up", "silu_mul", "down", "combine")
OF_TRITON = {"gate_up": GATE_UP, "down": DOWN}
WEIGHTS = {"router": ROUTER, **OF_TRITON}
READ_BLOCKS = [LAUNCHES.index(name) for name in ("map", *OF_TRITON)]  # the launches whose last operand is the blocks
WORDS = OPERANDS * len(LAUNCHES)


class Operands:
    """The addresses of all steps. alone: address of the first column, and the end, of a single expert: the router."""

    def __init__(self, stream: ExpertStream, addresses: Mapping[ArenaKey, int], alone: int, blocks: int) -> None:
        layout, self._stream = stream.layout, stream
        self._base = base = addresses[layout.activations]
        inputs, selection = addresses[layout.inputs], addresses[layout.selection]
        region = [base + UNIT_BYTES * unit for unit in layout.region]
        logits, table, mapped, _, up, activated, down, out, end = region
        router, of_up, of_down = (
            addresses[key] + key.slot_bytes * first
            for key, first in zip(layout.weights, layout.first_weight, strict=True)
        )
        given = [
            [router, inputs, logits, alone],
            [selection, logits, table, 0],
            [table, table, mapped, blocks],
            [of_up, inputs, up, blocks],
            [up, up, activated, 0],
            [of_down, activated, down, blocks],
            [table, down, out, 0],
        ]
        addresses_of = np.array(given, np.int64)
        moves = np.zeros((len(Move), *addresses_of.shape), np.int64)
        of_region = (addresses_of >= base) & (addresses_of < end)
        moves[Move.STEP][of_region] = end - base
        moves[Move.STEP][addresses_of == selection] = layout.selection.slot_bytes
        moves[Move.INPUT][addresses_of == inputs] = layout.inputs.slot_bytes
        for name, which in WEIGHTS.items():
            moves[Move.COPY, LAUNCHES.index(name), 0] = layout.weights[which].slot_bytes * layout.copy_move[which]
        self._addresses, self._moves = addresses_of.reshape(-1), moves.reshape(len(Move), -1)
        self._of_region, self._region_bytes = of_region.reshape(-1), end - base

    def of_step(self, words: Table, step: int) -> None:
        """Write the addresses of a step to `words`, [WORDS]."""
        stream = self._stream
        at = step, step % stream.arenas[stream.layout.inputs], step % stream.replicas
        fill_words(words, self._addresses, self._moves, *at)

    def apart(self, words: Table, step: int, memory: int) -> None:
        """Write the addresses of a step, but for its outputs, which go to the memory at an address."""
        self.of_step(words, step)
        words[self._of_region] += memory - self._base - step * self._region_bytes

"""Operands in device memory: one array an arena, [slots, slot elements], for NumPy and for CuPy alike.

Inputs are filled with uniform random values, never zeros. Everything else is poisoned (every byte 0xFF, which is a
NaN in fp32, fp16 and bf16), so that what no GEMM wrote cannot pass for a result. bf16 is stored as
uint16, since neither library computes in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from launchopt.command import Dtype
from launchopt.workloads.attention import Attention
from launchopt.workloads.stream import ArenaKey, Operand

POISON_BYTE = 0xFF
CHUNK_ELEMENTS = 1 << 22  # random numbers made at a time: 16 MiB of scratch
STORAGE = {Dtype.fp32: np.float32, Dtype.fp16: np.float16, Dtype.bf16: np.uint16}


def from_float32(values: Any, dtype: Dtype) -> Any:
    """float32 to storage, rounded to nearest, ties to even. Shape kept."""
    if dtype is not Dtype.bf16:
        return values.astype(STORAGE[dtype])
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[(bits & 0x7FFFFFFF) > 0x7F800000] = 0x7FFF  # rounding a NaN could carry into its sign and give 0
    return rounded


def to_float32(values: Any, dtype: Dtype) -> Any:
    """Storage to float32, exactly."""
    if dtype is not Dtype.bf16:
        return values.astype(np.float32)
    return (values.astype(np.uint32) << 16).view(np.float32)


class Arenas:
    """The arenas of a workload, on the device of the array module `xp` (numpy or cupy).

    `fills`: for each arena how many slots, from the first, hold inputs, and how far their values are at most from its
    center.
    """

    def __init__(
        self, xp: Any, slots: Mapping[ArenaKey, int], fills: Mapping[ArenaKey, tuple[int, float]] | None = None
    ) -> None:
        self.xp = xp
        inputs = {arena: (count, 1.0) for arena, count in slots.items() if arena.role != "c"}
        self._fills = inputs if fills is None else fills
        self.arrays = {
            arena: xp.empty((count, arena.slot_bytes // arena.dtype.itemsize), STORAGE[arena.dtype])
            for arena, count in slots.items()
        }

    def fill(self, seed: int) -> None:
        """Random inputs; the same for the same seed on the same device."""
        for index, (arena, array) in enumerate(sorted(self.arrays.items())):
            if arena not in self._fills:
                continue
            filled, bound = self._fills[arena]
            generator = self.xp.random.default_rng([seed, index])
            flat = array[:filled].reshape(-1)
            for start in range(0, flat.size, CHUNK_ELEMENTS):
                chunk = flat[start : start + CHUNK_ELEMENTS]
                straight = arena.dtype is Dtype.fp32  # into the arena, without a copy
                values = generator.random(chunk.size, dtype=np.float32, out=chunk if straight else None)
                values *= 2 * bound
                values -= bound - arena.center
                if not straight:
                    chunk[:] = from_float32(values, arena.dtype)

    def poison(self) -> None:
        """Make everything a NaN that is not an input."""
        for arena, array in self.arrays.items():
            filled, _ = self._fills.get(arena, (0, 0.0))
            array[filled:].view(np.uint8).fill(POISON_BYTE)

    def matrices(self, arena: ArenaKey, slots: Any) -> Any:
        """Copies of some slots as float32 [len(slots), rows, cols], exact."""
        size = arena.rows * arena.cols
        taken = self.arrays[arena][self.xp.asarray(slots), :size]
        return to_float32(taken, arena.dtype).reshape(-1, arena.rows, arena.cols)

    def view(self, operand: Operand, rows: int, cols: int) -> Any:
        """Every slot of an operand in storage type, [slots, rows, cols], without a copy; slots may overlap."""
        array = self.arrays[operand.arena]
        size = array.itemsize
        last = ((rows - 1) * operand.row_elements + cols) * size  # bytes of one, without what follows its last row
        slots = 1 + (array.nbytes - last) // operand.slot_bytes
        view = self.xp.lib.stride_tricks.as_strided
        return view(array, (slots, rows, cols), (operand.slot_bytes, operand.row_elements * size, size))


class SeqState:
    """Where each request stands, and which pages of the KV cache it has, in memory of the array module `xp`.

    positions: int32 [2, requests], the position of the first column of a step, and of the next step.
    table: int32 [requests, pages of a request]. Neither moves, so that recorded launches may hold their addresses.
    Only Op.SLOT_MAP changes positions.
    """

    def __init__(self, xp: ModuleType, attention: Attention, requests: int, seed: int) -> None:
        self.positions: Any = xp.zeros((2, requests), np.int32)
        self.table: Any = xp.asarray(attention.page_table(seed))
        self.requests = requests

    def reset(self) -> None:
        """Begin a run: no request has a token. The pages stay."""
        self.positions[...] = 0

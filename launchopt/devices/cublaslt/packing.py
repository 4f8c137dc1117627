"""Packed launches: scattered operands are copied side by side, multiplied in one strided call, and copied back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.slot_copy import SlotCopier
from launchopt.devices.cublaslt.tables import Tables

Slots = tuple[NDArray[np.uint32], ...]  # of A, B and C


class Packing:
    """Scratch and copies on `stream`, for the packed plans of `tables` (their column PACKED0)."""

    def __init__(self, tables: Tables, stream: Any, check: Callable[[int], None]) -> None:
        self._tables, self._stream, self._check = tables, stream, check
        self._scratch = [cupy.empty(0, np.uint8) for _ in "abc"]  # batches are in order: one serves all shapes
        self._most = 0
        self._copier: SlotCopier | None = None

    def grow(self, most: int, slot_bytes: Sequence[int]) -> None:
        """Room for `most` commands with slots of so many bytes."""
        self._most = max(self._most, most)
        for operand, size in enumerate(slot_bytes):
            if self._scratch[operand].size < most * size:
                self._scratch[operand] = cupy.empty(most * size, np.uint8)

    def load(self) -> None:
        """Load the copy kernels, where anything is packed."""
        self._copier = SlotCopier(self._stream, self._most) if self._most else None

    def launch(self, index: int, count: int, slots: Slots) -> int:
        """Upload the slots, gather A and B, multiply, scatter C; returns the bytes that were copied."""
        row = self._tables.shapes[index].tolist()
        copier, plans, contexts = self._copier, self._tables.plans, self._tables.contexts
        assert copier is not None
        a, b, c = (scratch.data.ptr for scratch in self._scratch)
        copier.upload(slots)
        copier.gather(0, row[lt.BASE_A], a, row[lt.BYTES_A], count)
        copier.gather(1, row[lt.BASE_B], b, row[lt.BYTES_B], count)
        self._check(lt.launch(contexts[0], plans[row[lt.PACKED0] + count], a, b, c, 0))
        copier.scatter(2, c, row[lt.BASE_C], row[lt.BYTES_C], count)
        return count * int(sum(row[lt.BYTES_A : lt.BYTES_C + 1]))

    def close(self) -> None:
        """Give the scratch back."""
        self._scratch.clear()

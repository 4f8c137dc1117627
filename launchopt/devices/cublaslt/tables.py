"""The tables that compiled launch loops work from (`LaunchTables`): which shapes there are, and what launches each.

A device has tables of its own. A mode that launches in another way forks them and plans anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from launchopt.command import ShapeKey
from launchopt.devices.arenas import Arenas
from launchopt.devices.cublaslt import launch as lt
from launchopt.recording.launch_rows import Strategy
from launchopt.types import Table
from launchopt.workloads.chain import Stream

PLENTY = 1 << 40
Row = tuple[list[int], bytes]  # of `plans`, and the bytes that tell its kernel from others


def shape_table(stream: Stream, arenas: Arenas) -> Table:
    """Where each shape's operands lie, and how they move; no plans yet."""
    table = np.zeros((len(stream.shapes), len(lt.ShapeColumn)), np.int64)
    strides = stream.strides()
    for row, shape in zip(table, stream.shapes, strict=True):
        for i, operand in enumerate(stream.operands(shape)):
            if operand.arena in arenas.arrays:  # else its op has no such operand
                row[lt.ShapeColumn.BASE_A + i] = arenas.arrays[operand.arena].data.ptr
            row[lt.ShapeColumn.BYTES_A + i] = operand.slot_bytes
        row[lt.MOVES] = strides[shape]
        row[lt.ShapeColumn.ONE_IS], row[lt.ShapeColumn.MANY_ARE] = Strategy.single, Strategy.strided
    return table


class Tables:
    """Of one stream on one device. `contexts`: [streams, CONTEXT_WORDS], a power of two of them."""

    def __init__(self, shapes: Table, contexts: Table) -> None:
        self.shapes, self.contexts = shapes, contexts
        self.plans: Table = np.zeros((0, len(lt.PlanColumn)), np.int64)
        self._planned: dict[int, set[int]] = {}

    @property
    def arrays(self) -> tuple[Table, Table, Table]:
        """For compiled loops; ask again after planning."""
        return self.shapes, self.plans, self.contexts

    def fork(self, contexts: Table | None = None) -> Tables:
        """The same shapes, nothing planned; other streams where given."""
        return Tables(self.shapes.copy(), self.contexts if contexts is None else contexts)

    def strides_bytes(self, index: int) -> Table:
        """From one command's A, B, C to the next of a batch."""
        row = self.shapes[index]
        strides: Table = row[lt.MOVES] * row[lt.BYTES]
        return strides

    def sizes(self, index: int, sizes: Iterable[int], slots: Table) -> list[int]:
        """`sizes`, and those that were planned before: a run is no longer than its arenas."""
        known = self._planned.setdefault(index, set())
        known.update(sizes)
        moves = self.shapes[index, lt.MOVES]
        return [size for size in sorted(known) if np.all(moves * (size - 1) < slots)]

    def add(
        self, index: int, sizes: Iterable[int], make: Callable[[int], Row], column: int = lt.ShapeColumn.PLAN0
    ) -> list[int]:
        """Append rows for batch sizes 0 to max(sizes), those left out unused; returns a size for each kernel."""
        self.shapes[index, column], distinct = self.append(sizes, make)
        return distinct

    def append(self, sizes: Iterable[int], make: Callable[[int], Row]) -> tuple[int, list[int]]:
        """The same for no shape of the table: the row for size 0, and a size for each kernel."""
        sizes, first = list(sizes), len(self.plans)
        rows = np.zeros((max(sizes) + 1, len(lt.PlanColumn)), np.int64)
        distinct: dict[bytes, int] = {}
        for size in sizes:
            row, kernel = make(size)
            rows[size, : len(row)] = row
            distinct.setdefault(kernel, size)
        self.plans = np.concatenate([self.plans, rows])
        return first, list(distinct.values())


def operand_slots(stream: Stream, arenas: Arenas, shape: ShapeKey) -> Table:
    """Slots that the arenas of a shape's A, B and C have; plenty where its op has no such operand."""
    found = [(arenas.arrays.get(operand.arena), operand.slot_bytes) for operand in stream.operands(shape)]
    return np.array([PLENTY if array is None else array.nbytes // slot_bytes for array, slot_bytes in found])

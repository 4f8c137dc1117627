"""The tables that compiled launch loops read (`launch.LaunchTables`): shapes, and plans of their launches.

A device has its own tables. A mode that needs other plans forks the tables and adds its plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from launchopt.command import ShapeKey
from launchopt.devices.arenas import Arenas
from launchopt.devices.cublaslt.launch_tables import BYTES, MOVES, PlanColumn, PlanKind, ResidentColumn, ShapeColumn
from launchopt.devices.resident.ring import PostedShape
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chains.chain import Stream
from launchopt.types import Table

PLENTY = 1 << 40  # number of slots that stands for "no limit"
Row = tuple[list[int], bytes]  # a row of the plans table, and bytes that identify the kernel it launches


def resident_row(posted: PostedShape) -> Row:
    """Return the plan that posts one command of a shape to the persistent kernel."""
    row = [0] * len(PlanColumn)
    row[ResidentColumn.QUEUE], row[ResidentColumn.NUMBER] = posted.queue, posted.number
    row[ResidentColumn.SWAPPED], row[PlanColumn.KIND] = int(posted.swapped), int(PlanKind.RESIDENT)
    return row, b"resident"


def shape_table(stream: Stream, arenas: Arenas) -> Table:
    """Return the table of shapes, [shapes, ShapeColumn]: addresses of operands and strides, without plans."""
    table = np.zeros((len(stream.shapes), len(ShapeColumn)), np.int64)
    strides = stream.strides()
    for row, shape in zip(table, stream.shapes, strict=True):
        for i, operand in enumerate(stream.operands(shape)):
            if operand.arena in arenas.arrays:  # otherwise the op has no such operand
                row[ShapeColumn.BASE_A + i] = arenas.arrays[operand.arena].data.ptr
            row[ShapeColumn.BYTES_A + i] = operand.slot_bytes
        row[MOVES] = strides[shape]
        row[ShapeColumn.ONE_IS], row[ShapeColumn.MANY_ARE] = Strategy.single, Strategy.strided
    return table


class Tables:
    """The tables of one workload stream on one device.

    shapes: [shapes, ShapeColumn]. contexts: [CUDA streams, ContextWord]; the number of CUDA streams is a power of two.
    """

    def __init__(self, shapes: Table, contexts: Table) -> None:
        self.shapes, self.contexts = shapes, contexts
        self.plans: Table = np.zeros((0, len(PlanColumn)), np.int64)
        self._planned: dict[int, set[int]] = {}

    @property
    def arrays(self) -> tuple[Table, Table, Table]:
        """Fields of a `LaunchTables`, for compiled loops. `add` and `append` make earlier values of it stale."""
        return self.shapes, self.plans, self.contexts

    def fork(self, contexts: Table | None = None) -> Tables:
        """Return tables of the same shapes without plans. contexts: of other CUDA streams; None: the same streams."""
        return Tables(self.shapes.copy(), self.contexts if contexts is None else contexts)

    def strides_bytes(self, index: int) -> Table:
        """Return the bytes from the A, B and C of one command of an evenly spaced batch to those of the next, [3]."""
        row = self.shapes[index]
        strides: Table = row[MOVES] * row[BYTES]
        return strides

    def sizes(self, index: int, sizes: Iterable[int], slots: Table) -> list[int]:
        """Return the batch sizes to plan shape `index` for: `sizes` and all sizes of earlier calls, in ascending order.

        Sizes whose evenly spaced run does not fit into the arenas are left out. slots: of the arenas of A, B and C.
        """
        known = self._planned.setdefault(index, set())
        known.update(sizes)
        moves = self.shapes[index, MOVES]
        return [size for size in sorted(known) if np.all(moves * (size - 1) < slots)]

    def add(
        self, index: int, sizes: Iterable[int], make: Callable[[int], Row], column: int = ShapeColumn.PLAN0
    ) -> list[int]:
        """Append plans of shape `index`, one per batch size; return one batch size for each distinct kernel.

        make: returns the plan of a batch size. column: PLAN0, or PACKED0 for packed batches.
        """
        self.shapes[index, column], distinct = self.append(sizes, make)
        return distinct

    def append(self, sizes: Iterable[int], make: Callable[[int], Row]) -> tuple[int, list[int]]:
        """Append plans, one per batch size; return the row for size 0, and one size for each distinct kernel.

        Rows of sizes that are not in `sizes` stay unused.
        """
        sizes, first = list(sizes), len(self.plans)
        rows = np.zeros((max(sizes) + 1, len(PlanColumn)), np.int64)
        distinct: dict[bytes, int] = {}
        for size in sizes:
            row, kernel = make(size)
            rows[size, : len(row)] = row
            distinct.setdefault(kernel, size)
        self.plans = np.concatenate([self.plans, rows])
        return first, list(distinct.values())


def operand_slots(stream: Stream, arenas: Arenas, shape: ShapeKey) -> Table:
    """Return the number of slots in the arenas of a shape's A, B and C; PLENTY if its op has no such operand."""
    found = [(arenas.arrays.get(operand.arena), operand.slot_bytes) for operand in stream.operands(shape)]
    return np.array([PLENTY if array is None else array.nbytes // slot_bytes for array, slot_bytes in found])

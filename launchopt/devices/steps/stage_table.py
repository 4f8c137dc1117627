"""The table of a step's stages, and the compiled loop that launches them one after another.

A stage is one row of the step's template, or several fused rows. A table of stages is int64
[stages, StageColumn.ARGUMENTS + 4 * ArgumentColumn]: the rows of a stage, the plans of its launch, and the operands
that it takes. The other compiled functions say whether the requests of a step are evenly spaced in memory, since a
stage is one launch only if they are.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import ShapeColumn
from launchopt.devices.runs import run_end
from launchopt.native import compiled, monotonic_ns
from launchopt.recording.launch_rows import LaunchFacts, RecordingArrays
from launchopt.recording.row_writer import note
from launchopt.records import request_of, slots_of
from launchopt.types import Int, Table, Words


class Role(enum.IntEnum):
    """The kind of one argument of a launch: the address of an operand of a row, or the number of the first request."""

    A = 0
    B = 1
    C = 2
    REQUEST = 3


class StageColumn(enum.IntEnum):
    """Columns of a table of stages. From ARGUMENTS on: `ArgumentColumn` for each of the four arguments of a launch."""

    FIRST_ROW = 0
    STOP_ROW = 1
    SHAPE = 2  # recorded for the launch
    STRATEGY = 3  # recorded for the launch
    PLAN0 = 4  # row of the plans table; the plan for n requests is in row PLAN0 + n
    ARGUMENTS = 5


class ArgumentColumn(enum.IntEnum):
    """Columns of one argument of a launch."""

    ROW = 0  # row of the step
    ROLE = 1  # Role
    SHAPE = 2  # index of the shape of that row


ARGUMENT_COLUMNS = len(ArgumentColumn)


class Argument(NamedTuple):
    """One argument of a launch: an operand of a row of the step, or that row's first request."""

    row: int
    role: Role


@dataclass(frozen=True, slots=True)
class Fused:
    """A stage: one launch with four arguments for rows `first` to `stop` of a step."""

    first: int
    stop: int
    arguments: tuple[Argument, ...]
    strategy: int  # recorded for the launch
    plan: int  # row of the plans table; the plan for n requests is in row plan + n


class Place(NamedTuple):
    """Rows `first` to `stop` of a kind of step, counted from its first row, with one copy of the weights.

    pdl: the launch gets programmatic stream serialization, and its kernel must wait for earlier launches.
    """

    kind: int
    replica: int
    first: int
    stop: int
    pdl: bool = False


@compiled
def even_requests(words: Words, size: int, rows: int, shape_of: Table, shapes: Table) -> Int:
    """Return the number of leading requests whose operands are evenly spaced in every row.

    Such requests use the same copy of the weights.
    """
    least = size
    for row in range(rows):
        shape = shapes[shape_of[row]]
        own = words[row * size : row * size + least]
        least = min(
            least,
            run_end(own, 0, shape[ShapeColumn.MOVE_A], shape[ShapeColumn.MOVE_B], shape[ShapeColumn.MOVE_C]),
        )
    return least


@compiled
def most_runs(words: Words, size: int, rows: int, shape_of: Table, shapes: Table, most: int) -> Int:
    """Return the largest number of evenly spaced runs in any row; counting stops at `most` + 1."""
    found = 0
    for row in range(rows):
        found = max(found, lt.count_runs(words[row * size : (row + 1) * size], shape_of[row], shapes, most))
    return found


@compiled
def mark_even(words: Words, size: int, rows: int, shape_of: Table, shapes: Table, even: NDArray[np.bool_]) -> None:
    """Set even[row] to whether the operands of all requests are evenly spaced in this row."""
    for row in range(rows):
        shape = shapes[shape_of[row]]
        own = words[row * size : (row + 1) * size]
        even[row] = (
            run_end(own, 0, shape[ShapeColumn.MOVE_A], shape[ShapeColumn.MOVE_B], shape[ShapeColumn.MOVE_C]) == size
        )


@compiled
def _argument(i: Int, stage: Table, words: Words, size: int, shapes: Table) -> Int:
    """Return argument i of a stage's launch: the address of an operand, or the number of the first request."""
    first = StageColumn.ARGUMENTS + ARGUMENT_COLUMNS * i
    row, role = stage[first + ArgumentColumn.ROW], stage[first + ArgumentColumn.ROLE]
    if role == Role.REQUEST:
        return request_of(words, 0)
    slot_a, slot_b, slot_c = slots_of(words, row * size)
    slot = slot_a if role == Role.A else (slot_b if role == Role.B else slot_c)
    shape = shapes[stage[first + ArgumentColumn.SHAPE]]
    return shape[ShapeColumn.BASE_A + role] + slot * shape[ShapeColumn.BYTES_A + role]


@compiled
def launch_stages(
    words: Words,
    size: int,
    stages: Table,
    tables: tuple[Table, Table, Table],
    recording: RecordingArrays,
    batch: tuple[int, int, int],
) -> Int:
    """Make and record one launch per stage for `size` requests; return the first status that is not OK, else OK.

    tables: the fields of a `LaunchTables`. batch: its number, the reason for its flush, and the flush time in ns.
    """
    shapes, plans, contexts = tables
    number, reason, flush_ns = batch
    for i in range(len(stages)):
        stage = stages[i]
        start_ns = monotonic_ns()
        status = lt.launch(
            contexts[0],
            plans[stage[StageColumn.PLAN0] + size],
            _argument(0, stage, words, size, shapes),
            _argument(1, stage, words, size, shapes),
            _argument(2, stage, words, size, shapes),
            _argument(3, stage, words, size, shapes),
        )
        end_ns = monotonic_ns()
        if status != lt.OK:
            return status
        facts = LaunchFacts(number, stage[StageColumn.SHAPE], stage[StageColumn.STRATEGY], reason, flush_ns)
        first, stop = stage[StageColumn.FIRST_ROW] * size, stage[StageColumn.STOP_ROW] * size
        note(recording, words, first, stop, facts, start_ns, end_ns)
    return lt.OK

"""Launch whole steps on the GPU: every stage of a step is one launch for all its requests.

A stage is one row of the step's template, or several fused rows. The operands of the requests of a `StepBatch` must be
evenly spaced in memory; otherwise the batch is cut into parts that are. A compiled loop walks over a table of stages,
[stages, StageColumn + ArgumentColumn]: the rows of a stage, the plans of its launch, and the operands that it takes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batcher import SEVERAL
from launchopt.batching.buckets import FlushReason
from launchopt.batching.step_batcher import StepBatch
from launchopt.command import COMMAND_DTYPE, ShapeKey, as_words
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import ShapeColumn
from launchopt.devices.cublaslt.tables import Tables
from launchopt.devices.runs import run_end
from launchopt.devices.steps.keys import StepKeys
from launchopt.devices.steps.likely import likely_steps
from launchopt.native import compiled, monotonic_ns
from launchopt.recording.launch_rows import (
    COMMAND_COLUMNS,
    CURSOR_WORDS,
    LAUNCH_COLUMNS,
    CursorWord,
    LaunchFacts,
    RecordingArrays,
    note,
)
from launchopt.records import columns_of, request_of, slot_a_of, slots_of
from launchopt.streams import chain as ch
from launchopt.streams.chain import ChainStream, chain_of
from launchopt.streams.placement import FROM_INPUT, FROM_LANE
from launchopt.types import Int, Table, Words

UNRECORDED_ROWS = 16  # rows of the dummy recording, which launches of a graph capture get
MOST_KNOWN = 4096  # number of batches whose stages are remembered


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


@compiled
def even_requests(words: Words, size: int, rows: int, shape_of: Table, shapes: Table) -> Int:
    """Return the number of leading requests whose operands are evenly spaced in every row; these share weights."""
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


class LtSteps:
    """Stages of every kind of step of a device's workload, and their launches.

    limits: the largest number of commands of each shape in one launch. tables: plans by shape and number of requests.
    """

    def __init__(self, device: GpuDevice, limits: Mapping[ShapeKey, int], tables: Tables) -> None:
        self.device, self.stream, self.most = device, chain_of(device.work), max(limits.values())
        self.tables, self._limits = tables, limits
        self._index = {shape: index for index, shape in enumerate(self.stream.shapes)}
        kinds = reversed(range(len(self.stream.kinds)))
        self._kind_of = {self._key(self.stream.rows_of(kind)): kind for kind in kinds}
        self._indices: dict[int, Table] = {}
        self._probes: dict[int, int] = {}
        self._stages: dict[tuple[int, int], Table] = {}  # stages by kind and copy of the weights
        self._known: dict[bytes, Table] = {}  # stages of evenly spaced batches, by the batch's key
        self.keys = StepKeys(self._probe)
        self.key_of = self.keys.key_of
        # A recording whose cursor is at its end is full, and `note` writes nothing to it.
        launches = np.zeros((UNRECORDED_ROWS, LAUNCH_COLUMNS), np.int64)
        commands = np.zeros((UNRECORDED_ROWS, COMMAND_COLUMNS), np.int64)
        cursor = np.zeros(CURSOR_WORDS, np.int64)
        cursor[CursorWord.NEXT_LAUNCH] = UNRECORDED_ROWS
        self._unrecorded = (launches, commands, cursor)

    def _key(self, rows: range) -> tuple[int, int]:
        """Return the key of a kind of step: the number of its rows, and the number of columns of the first row."""
        return len(rows), int(self.stream.template["n"][rows[0]])

    def indices(self, kind: int) -> Table:
        """Return the index of the shape of each row of a kind of step, [rows]."""
        if kind not in self._indices:
            shapes = (self.stream.shape_of(row) for row in self.stream.rows(kind))
            self._indices[kind] = np.array([self._index[shape] for shape in shapes], np.int64)
        return self._indices[kind]

    def most_of(self, kind: int) -> int:
        """Return the largest number of requests in a batch of this kind, which is the smallest limit of its rows."""
        return min(self._limits[self.stream.shapes[index]] for index in self.indices(kind).tolist())

    def likely(self, bound: int) -> Iterator[StepBatch]:
        """Yield at most `bound` decode steps that a run is likely to launch."""
        kind = self.stream.decode_kind
        if kind >= 0:
            for requests, replica in likely_steps(self.stream, self.most_of(kind), bound):
                yield step_of(self.stream, requests, replica)

    def kind_of(self, batch: StepBatch) -> int:
        """Return the kind of a batch's steps."""
        return self._kind_of[batch.rows, int(columns_of(batch.words, 0))]

    def replica_of(self, batch: StepBatch, kind: int) -> int:
        """Return the number of the copy of the weights that the first request's step uses."""
        rows = self.stream.rows_of(kind)
        for row in rows:
            if move := int(self.stream.replica_moves[row]):
                slot = int(slot_a_of(batch.words, (row - rows.start) * batch.size))
                return (slot - int(self.stream.template["slot_a"][row])) // move
        return 0

    def fuse(self, kind: int, replica: int, fused: Sequence[Fused]) -> None:
        """Make the stages of a kind of step and copy of the weights: `fused`, and one stage for each other row.

        Rows are counted from the first row of the step.
        """
        shape_of, stages, at = self.indices(kind).tolist(), list[list[int]](), 0
        by_first = {each.first: each for each in fused}
        while at < len(shape_of):
            each = by_first.get(at) or self._alone(at, shape_of[at])
            shape = shape_of[at] if each.stop == at + 1 else SEVERAL
            arguments = [value for row, role in each.arguments for value in (row, role, shape_of[row])]
            stages.append([at, each.stop, shape, each.strategy, each.plan, *arguments])
            at = each.stop
        self._stages[kind, replica] = np.array(stages, np.int64)

    def _alone(self, row: int, shape_index: int) -> Fused:
        """Return the stage of one row, which launches the plan of its shape."""
        shape = self.tables.shapes[shape_index]
        arguments = tuple(Argument(row, role) for role in Role)
        return Fused(row, row + 1, arguments, int(shape[ShapeColumn.MANY_ARE]), int(shape[ShapeColumn.PLAN0]))

    def _probe(self, batch: StepBatch) -> int:
        """Return a row that has a weight, since two requests of a batch may use different copies of it."""
        kind = self.kind_of(batch)
        if kind not in self._probes:
            rows = self.stream.rows_of(kind)
            moves = self.stream.replica_moves[rows.start : rows.stop]
            self._probes[kind] = int(np.argmax(moves > 0))
        return self._probes[kind]

    def even_parts(self, batch: StepBatch) -> list[StepBatch]:
        """Return `batch` if its requests are evenly spaced in memory; otherwise return copies of parts that are."""
        shape_of = self.indices(self.kind_of(batch))
        columns = int(columns_of(batch.words, 0))
        parts: list[StepBatch] = []
        left = batch
        while True:
            even = int(even_requests(left.words, left.size, left.rows, shape_of, self.tables.shapes))
            even = 1 if columns > 1 else even  # a plan of several columns holds the columns of one request
            if even == left.size:
                return [*parts, left]
            whole = left.words.reshape(left.rows, left.size, -1)
            first, rest = (np.ascontiguousarray(part) for part in (whole[:, :even], whole[:, even:]))
            width = whole.shape[2]
            parts.append(StepBatch(first.reshape(-1, width), batch.reason, even, batch.rows))
            left = StepBatch(rest.reshape(-1, width), batch.reason, left.size - even, batch.rows)

    def stages_of(self, batch: StepBatch) -> Table:
        """Return the stages of a batch whose requests are evenly spaced in memory."""
        kind = self.kind_of(batch)
        key = kind, self.replica_of(batch, kind)
        if key not in self._stages:
            self.fuse(*key, ())
        return self._stages[key]

    def launch_known(self, batch: StepBatch, flush_ns: int) -> bool:
        """Make and record one launch per stage if `launch` has already launched a batch with the same key.

        Return False, and launch nothing, if it has not. Batches with the same key have the same operand addresses. Only
        keys of evenly spaced batches are remembered.
        """
        stages = self._known.get(self.key_of(batch))
        if stages is not None:
            self._launch(batch, stages, flush_ns)
        return stages is not None

    def launch(self, batch: StepBatch, flush_ns: int) -> None:
        """Make and record one launch per stage, for each evenly spaced part of the batch."""
        if self.launch_known(batch, flush_ns):
            return
        parts = self.even_parts(batch)
        if len(parts) == 1:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[self.key_of(batch)] = self.stages_of(batch)
        for part in parts:
            self.launch_even(part, flush_ns)

    def runs(self, batch: StepBatch, most: int) -> int:
        """Return the largest number of evenly spaced runs in any row of a batch; counting stops at `most` + 1."""
        indices = self.indices(self.kind_of(batch))
        return int(most_runs(batch.words, batch.size, batch.rows, indices, self.tables.shapes, most))

    def even_rows(self, batch: StepBatch) -> NDArray[np.bool_]:
        """Return for each row whether the operands of all its requests are evenly spaced, bool [rows]."""
        even = np.zeros(batch.rows, np.bool_)
        mark_even(batch.words, batch.size, batch.rows, self.indices(self.kind_of(batch)), self.tables.shapes, even)
        return even

    def launch_rows(self, batch: StepBatch, first: int, stop: int, flush_ns: int) -> None:
        """Make one launch for each of rows `first` to `stop`, which must be evenly spaced. No row may be fused."""
        self._launch(batch, self.stages_of(batch)[first:stop], flush_ns)

    def launch_even(self, batch: StepBatch, flush_ns: int) -> None:
        """Make and record one launch per stage for a batch whose requests are evenly spaced in memory."""
        self._launch(batch, self.stages_of(batch), flush_ns)

    def _launch(self, batch: StepBatch, stages: Table, flush_ns: int) -> None:
        device = self.device
        device.enter(SEVERAL, batch.size)
        facts = (device.recorder.next_batch(), int(batch.reason), flush_ns)
        device.check(launch_stages(batch.words, batch.size, stages, self.tables.arrays, device.records, facts))
        device.left()

    def record(self, batch: StepBatch) -> None:
        """Make the launches of `launch_even` for a graph that is being captured, without recording them."""
        facts = (0, int(batch.reason), 0)
        stages = self.stages_of(batch)
        self.device.check(launch_stages(batch.words, batch.size, stages, self.tables.arrays, self._unrecorded, facts))


def step_of(stream: ChainStream, requests: int, replica: int) -> StepBatch:
    """Return the decode step, as the driver issues it, of the first `requests` requests with weight copy `replica`."""
    rows = stream.rows_of(stream.decode_kind)
    own = slice(rows.start, rows.stop)
    template, lanes = stream.template[own], stream.table[:requests, ch.LANE]
    records = np.repeat(template[:, None], requests, axis=1).astype(COMMAND_DTYPE)
    records["request"] = np.arange(requests)
    moved = replica * stream.replica_moves[own]
    for role, origins in (("a", stream.a_from), ("b", stream.b_from), ("c", stream.c_from)):
        in_lane = np.isin(origins[own], (FROM_LANE, FROM_INPUT))
        records[f"slot_{role}"] += (in_lane[:, None] * lanes[None]).astype(np.uint32)
    records["slot_a"] += moved.astype(np.uint32)[:, None]
    return StepBatch(as_words(records.reshape(-1)), FlushReason.full, requests, len(rows))

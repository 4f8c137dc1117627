"""Launch whole steps on the GPU: every stage of a step is one launch for all its requests.

The operands of the requests of a `StepBatch` must be evenly spaced in memory; otherwise the batch is cut into parts
that are. `LtSteps` makes the table of the stages of each kind of step; `launch_stages` walks over it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import SEVERAL, FlushReason, StepBatch
from launchopt.command import COMMAND_DTYPE, ShapeKey, as_words
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt.launch_tables import ShapeColumn
from launchopt.devices.cublaslt.tables import Row, Tables
from launchopt.devices.steps.keys import StepKeys
from launchopt.devices.steps.likely import likely_steps
from launchopt.devices.steps.stage_table import (
    Argument,
    Fused,
    Place,
    Role,
    StageColumn,
    even_requests,
    launch_stages,
    mark_even,
    most_runs,
)
from launchopt.recording.launch_rows import (
    COMMAND_COLUMNS,
    CURSOR_WORDS,
    LAUNCH_COLUMNS,
    CursorWord,
)
from launchopt.records import columns_of, slot_a_of
from launchopt.streams.chains.chain import ChainStream, chain_of
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.chains.placement import Origin
from launchopt.types import Table

UNRECORDED_ROWS = 16  # rows of the dummy recording, which launches of a graph capture get
MOST_KNOWN = 4096  # number of batches whose stages are remembered
NEVER_APART = 1 << 30  # most requests of a launch if there is no limit


class LtSteps:
    """Stages of every kind of step of a device's workload, and their launches.

    limits: the largest number of commands of each shape in one launch. tables: plans by shape and number of requests.
    coalesce: a launch holds all requests of a batch that are evenly spaced in memory; otherwise, one request.
    """

    def __init__(
        self, device: GpuDevice, limits: Mapping[ShapeKey, int], tables: Tables, coalesce: bool = True
    ) -> None:
        self._coalesce = coalesce
        self.device, self.stream, self.most = device, chain_of(device.work), max(limits.values())
        self.tables, self._limits = tables, limits
        self._index = {shape: index for index, shape in enumerate(self.stream.shapes)}
        kinds = reversed(range(len(self.stream.kinds)))
        self._kind_of = {self._key(self.stream.rows_of(kind)): kind for kind in kinds}
        self._indices: dict[int, Table] = {}
        self._probes: dict[int, int] = {}
        # Stages by kind and copy of the weights: the most requests that they are for, ascending, and the table.
        self._stages: dict[tuple[int, int], list[tuple[int, Table]]] = {}
        self._plans: dict[Hashable, int] = {}  # rows of plans of fused launches
        self._alone_stages: dict[int, Table] = {}  # by kind: one stage for each row
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

    def planned(self, key: Hashable, make: Callable[[int], Row], most: int = NEVER_APART) -> int:
        """Return the row of the plans table for 0 requests of a fused launch, planned once for each key.

        make: returns the plan for a number of requests up to `most`. Two fused launches of one key have the same plans.
        """
        if key not in self._plans:
            self._plans[key], _ = self.tables.append(range(1, min(self.most, most) + 1), make)
        return self._plans[key]

    def weight_address(self, place: Place, row: int) -> int:
        """Return the address of operand A, a weight, of a row of a kind of step, in the place's copy of the weights."""
        at = self.stream.rows_of(place.kind)[row]
        slot = int(self.stream.template["slot_a"][at]) + place.replica * int(self.stream.replica_moves[at])
        shape = self.tables.shapes[self.indices(place.kind)[row]]
        return int(shape[ShapeColumn.BASE_A] + slot * shape[ShapeColumn.BYTES_A])

    def fuse(self, kind: int, replica: int, fused: Sequence[Fused], most: int = NEVER_APART) -> None:
        """Make the stages of a kind of step and copy of the weights: `fused`, and one stage for each other row.

        Rows are counted from the first row of the step. most: the stages are for batches of up to `most` requests.
        """
        kept = [(limit, table) for limit, table in self._stages.get((kind, replica), []) if limit != most]
        self._stages[kind, replica] = sorted([*kept, (most, self._table(kind, fused))], key=lambda each: each[0])

    def _table(self, kind: int, fused: Sequence[Fused]) -> Table:
        """Return the table of stages of a kind of step."""
        shape_of, stages, at = self.indices(kind).tolist(), list[list[int]](), 0
        by_first = {each.first: each for each in fused}
        while at < len(shape_of):
            each = by_first.get(at) or self._alone(at, shape_of[at])
            shape = shape_of[at] if each.stop == at + 1 else SEVERAL
            arguments = [value for row, role in each.arguments for value in (row, role, shape_of[row])]
            stages.append([at, each.stop, shape, each.strategy, each.plan, *arguments])
            at = each.stop
        return np.array(stages, np.int64)

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
        if batch.size > 1 and (not self._coalesce or int(columns_of(batch.words, 0)) > 1):
            return _apart(batch)  # a plan of several columns holds the columns of one request
        parts: list[StepBatch] = []
        left = batch
        while True:
            even = int(even_requests(left.words, left.size, left.rows, shape_of, self.tables.shapes))
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
        for most, table in self._stages.get((kind, self.replica_of(batch, kind)), ()):
            if batch.size <= most:
                return table
        return self._rows_alone(kind)

    def _rows_alone(self, kind: int) -> Table:
        """Return the stages of a kind of step with one stage for each row."""
        if kind not in self._alone_stages:
            self._alone_stages[kind] = self._table(kind, ())
        return self._alone_stages[kind]

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
        """Make one launch per stage for rows `first` to `stop`, which must be evenly spaced.

        Rows of a stage that begins before `first`, or ends behind `stop`, are launched one by one.
        """
        stages, alone = self.stages_of(batch), self._rows_alone(self.kind_of(batch))
        whole = stages[(stages[:, StageColumn.FIRST_ROW] >= first) & (stages[:, StageColumn.STOP_ROW] <= stop)]
        start, end = stop, stop
        if len(whole):
            start, end = int(whole[0, StageColumn.FIRST_ROW]), int(whole[-1, StageColumn.STOP_ROW])
        self._launch(batch, np.concatenate([alone[first:start], whole, alone[end:stop]]), flush_ns)

    def cut_rows(self, batch: StepBatch, even: NDArray[np.bool_]) -> int:
        """Return the number of rows of fused stages that have a row which is not evenly spaced. even: bool [rows]."""
        rows = self.stages_of(batch)[:, [StageColumn.FIRST_ROW, StageColumn.STOP_ROW]].tolist()
        return sum(stop - first for first, stop in rows if stop > first + 1 and not even[first:stop].all())

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
        """Make the launches of `launch` for a graph that is being captured, without recording them."""
        facts = (0, int(batch.reason), 0)
        for part in self.even_parts(batch):
            stages = self.stages_of(part)
            self.device.check(launch_stages(part.words, part.size, stages, self.tables.arrays, self._unrecorded, facts))


def _apart(batch: StepBatch) -> list[StepBatch]:
    """Return a copy of each request's step."""
    return [
        StepBatch(np.ascontiguousarray(batch.words[request :: batch.size]), batch.reason, 1, batch.rows)
        for request in range(batch.size)
    ]


def step_of(stream: ChainStream, requests: int, replica: int) -> StepBatch:
    """Return the decode step, as the driver issues it, of the first `requests` requests with weight copy `replica`."""
    rows = stream.rows_of(stream.decode_kind)
    own = slice(rows.start, rows.stop)
    template, lanes = stream.template[own], stream.table[:requests, ChainColumn.LANE]
    records = np.repeat(template[:, None], requests, axis=1).astype(COMMAND_DTYPE)
    records["request"] = np.arange(requests)
    moved = replica * stream.replica_moves[own]
    for role, origins in (("a", stream.a_from), ("b", stream.b_from), ("c", stream.c_from)):
        in_lane = np.isin(origins[own], (Origin.LANE, Origin.INPUT))
        records[f"slot_{role}"] += (in_lane[:, None] * lanes[None]).astype(np.uint32)
    records["slot_a"] += moved.astype(np.uint32)[:, None]
    return StepBatch(as_words(records.reshape(-1)), FlushReason.full, requests, len(rows))

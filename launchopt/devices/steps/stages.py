"""Whole steps on the GPU: each stage of a step, a row of the template or several fused, in one launch for all requests.

In: a `StepBatch`. Its requests lie evenly spaced, or are cut into groups that do. Out: launches, from a compiled loop
over a table of stages: which operands of which rows a launch takes, which rows it does, and where its plans are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.buckets import FlushReason
from launchopt.batching.step_batcher import StepBatch
from launchopt.command import COMMAND_DTYPE, W_MN, W_SLOT_A_B, W_SLOT_C_REQUEST, ShapeKey, as_words
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.tables import Tables
from launchopt.devices.runs import HIGH, LOW, run_end, slots_of
from launchopt.devices.steps.keys import StepKeys
from launchopt.devices.steps.likely import likely_steps
from launchopt.native import compiled, monotonic_ns
from launchopt.recording.recorder import CURSOR_WORDS, LAUNCH_COLUMNS, CursorWord, LaunchFacts, note
from launchopt.types import Int, Table
from launchopt.workloads import chain as ch

# Columns of a table of stages: the rows that are done, the shape and strategy to be noted, the plan for no request; and
# for each of `lt_launch.launch`'s four arguments the row of the step, which of its operands, and that row's shape.
FIRST, STOP, NOTED, STRATEGY, PLAN, ARGUMENTS = range(6)
A, B, C, REQUEST = range(4)  # which operand
NOWHERE = 16  # rows of a recording that nobody reads
MOST_KNOWN = 4096  # batches whose stages are kept


@dataclass(frozen=True, slots=True)
class Fused:
    """Rows `first` to `stop` of a step in one launch, whose arguments are operands of rows: (row, A, B or C)."""

    first: int
    stop: int
    arguments: tuple[tuple[int, int], ...]
    strategy: int
    plan: int  # row of the plans for no request


@compiled
def even_requests(words: NDArray[np.uint64], size: int, rows: int, shape_of: Table, shapes: Table) -> Int:
    """How many requests, from the first, lie evenly spaced in every row, and share their weights."""
    least = size
    for row in range(rows):
        shape = shapes[shape_of[row]]
        own = words[row * size : row * size + least]
        least = min(least, run_end(own, 0, shape[lt.MOVE_A], shape[lt.MOVE_B], shape[lt.MOVE_C]))
    return least


@compiled
def most_runs(words: NDArray[np.uint64], size: int, rows: int, shape_of: Table, shapes: Table, most: int) -> Int:
    """Into how many evenly spaced runs the requests of a row fall at worst; stops counting past `most`."""
    found = 0
    for row in range(rows):
        found = max(found, lt.count_runs(words[row * size : (row + 1) * size], shape_of[row], shapes, most))
    return found


@compiled
def mark_even(
    words: NDArray[np.uint64], size: int, rows: int, shape_of: Table, shapes: Table, even: NDArray[np.bool_]
) -> None:
    """Which rows have all their requests evenly spaced."""
    for row in range(rows):
        shape = shapes[shape_of[row]]
        own = words[row * size : (row + 1) * size]
        even[row] = run_end(own, 0, shape[lt.MOVE_A], shape[lt.MOVE_B], shape[lt.MOVE_C]) == size


@compiled
def _argument(i: Int, stage: Table, words: NDArray[np.uint64], size: int, shapes: Table) -> Int:
    """Argument i of a stage's launch: an address, or the first request."""
    row, role, index = stage[ARGUMENTS + 3 * i], stage[ARGUMENTS + 3 * i + 1], stage[ARGUMENTS + 3 * i + 2]
    if role == REQUEST:
        return np.int64(words[0, W_SLOT_C_REQUEST] >> HIGH)
    slot_a, slot_b, slot_c = slots_of(words, row * size)
    slot = slot_a if role == A else (slot_b if role == B else slot_c)
    return shapes[index, lt.BASE_A + role] + slot * shapes[index, lt.BYTES_A + role]


@compiled
def launch_stages(
    words: NDArray[np.uint64],
    size: int,
    stages: Table,
    tables: Any,
    records: Any,
    batch: int,
    reason: int,
    flush_ns: int,
) -> Int:
    """One launch a stage for `size` requests; returns the first status that is not 0."""
    shapes, plans, contexts = tables
    for i in range(len(stages)):
        stage = stages[i]
        start_ns = monotonic_ns()
        status = lt.launch(
            contexts[0],
            plans[stage[PLAN] + size],
            _argument(0, stage, words, size, shapes),
            _argument(1, stage, words, size, shapes),
            _argument(2, stage, words, size, shapes),
            _argument(3, stage, words, size, shapes),
        )
        end_ns = monotonic_ns()
        if status != lt.OK:
            return status
        facts = LaunchFacts(batch, stage[NOTED], stage[STRATEGY], reason, flush_ns)
        note(records, words, stage[FIRST] * size, stage[STOP] * size, facts, start_ns, end_ns)
    return lt.OK


class LtSteps:
    """Stages of every kind of step of a device's stream. `device`: a CudaDevice. `tables`: a plan for each shape."""

    def __init__(self, device: Any, limits: Mapping[ShapeKey, int], tables: Tables) -> None:
        self.device, self.stream, self.most = device, device.work, max(limits.values())
        self.tables, self._limits = tables, limits
        self._index = {shape: index for index, shape in enumerate(self.stream.shapes)}
        kinds = reversed(range(len(self.stream.kinds)))
        self._kind_of = {self._key(self.stream.rows_of(kind)): kind for kind in kinds}
        self._indices: dict[int, Table] = {}
        self._probes: dict[int, int] = {}
        self._stages: dict[tuple[int, int], Table] = {}
        self._known: dict[bytes, Table] = {}  # stages of batches that are even
        self.keys = StepKeys(self._probe)
        self.key_of = self.keys.key_of
        # For launches that are not to be noted: a recording that is always full.
        launches, commands = np.zeros((NOWHERE, LAUNCH_COLUMNS), np.int64), np.zeros((NOWHERE, 4), np.int64)
        cursor = np.zeros(CURSOR_WORDS, np.int64)
        cursor[CursorWord.NEXT_LAUNCH] = NOWHERE
        self._nowhere = (launches, commands, cursor)

    def _key(self, rows: range) -> tuple[int, int]:
        """What tells a kind of step: how many rows, and the columns of its first."""
        return len(rows), int(self.stream.template["n"][rows[0]])

    def indices(self, kind: int) -> Table:
        """The shape of each row of a kind, as its index."""
        if kind not in self._indices:
            shapes = (self.stream.shape_of(row) for row in self.stream.rows(kind))
            self._indices[kind] = np.array([self._index[shape] for shape in shapes], np.int64)
        return self._indices[kind]

    def most_of(self, kind: int) -> int:
        """How many requests a batch of this kind can have: each row is planned for no more."""
        return min(self._limits[self.stream.shapes[index]] for index in self.indices(kind).tolist())

    def likely(self, bound: int) -> Iterator[StepBatch]:
        """The steps that a run is likely to ask for, `bound` at the most."""
        kind = self.stream.decode_kind
        if kind >= 0:
            for requests, replica in likely_steps(self.stream, self.most_of(kind), bound):
                yield step_of(self.stream, requests, replica)

    def kind_of(self, batch: StepBatch) -> int:
        """The kind of a batch's steps."""
        return self._kind_of[batch.rows, int(batch.words[0, W_MN] >> HIGH)]

    def replica_of(self, batch: StepBatch, kind: int) -> int:
        """Which copy of the weights the first request's step uses."""
        rows = self.stream.rows_of(kind)
        for row in rows:
            if move := int(self.stream.replica_moves[row]):
                slot = int(batch.words[(row - rows.start) * batch.size, W_SLOT_A_B] & LOW)
                return (slot - int(self.stream.template["slot_a"][row])) // move
        return 0

    def fuse(self, kind: int, replica: int, fused: Sequence[Fused]) -> None:
        """Make the stages of a kind and replica: `fused` (rows counted from the step's first), and the others alone."""
        shape_of, stages, at = self.indices(kind).tolist(), [], 0
        by_first = {each.first: each for each in fused}
        while at < len(shape_of):
            each = by_first.get(at)
            if each is None:
                index = shape_of[at]
                plan = int(self.tables.shapes[index, lt.PLAN0])
                strategy = int(self.tables.shapes[index, lt.MANY_ARE])
                each = Fused(at, at + 1, ((at, A), (at, B), (at, C), (at, REQUEST)), strategy, plan)
            noted = shape_of[at] if each.stop == at + 1 else -1
            arguments = [value for row, role in each.arguments for value in (row, role, shape_of[row])]
            stages.append([at, each.stop, noted, each.strategy, each.plan, *arguments])
            at = each.stop
        self._stages[kind, replica] = np.array(stages, np.int64)

    def _probe(self, batch: StepBatch) -> int:
        """A row with a weight: its copy may differ between requests."""
        kind = self.kind_of(batch)
        if kind not in self._probes:
            rows = self.stream.rows_of(kind)
            moves = self.stream.replica_moves[rows.start : rows.stop]
            self._probes[kind] = int(np.argmax(moves > 0))
        return self._probes[kind]

    def even_parts(self, batch: StepBatch) -> list[StepBatch]:
        """`batch`, or copies of parts of it whose requests lie evenly spaced."""
        shape_of = self.indices(self.kind_of(batch))
        columns = int(batch.words[0, W_MN] >> HIGH)
        parts: list[StepBatch] = []
        left = batch
        while True:
            even = int(even_requests(left.words, left.size, left.rows, shape_of, self.tables.shapes))
            even = 1 if columns > 1 else even  # a wide plan holds one column a request
            if even == left.size:
                return [*parts, left]
            whole = left.words.reshape(left.rows, left.size, -1)
            first, rest = (np.ascontiguousarray(part) for part in (whole[:, :even], whole[:, even:]))
            width = whole.shape[2]
            parts.append(StepBatch(first.reshape(-1, width), batch.reason, even, batch.rows))
            left = StepBatch(rest.reshape(-1, width), batch.reason, left.size - even, batch.rows)

    def stages_of(self, batch: StepBatch) -> Table:
        """The stages of a batch whose requests lie evenly spaced."""
        kind = self.kind_of(batch)
        key = kind, self.replica_of(batch, kind)
        if key not in self._stages:
            self.fuse(*key, ())
        return self._stages[key]

    def launch_known(self, batch: StepBatch, flush_ns: int) -> bool:
        """One launch a stage, noted, where a batch like this was found to be even; else nothing, and False."""
        stages = self._known.get(self.key_of(batch))
        if stages is not None:
            self._launch(batch, stages, flush_ns)
        return stages is not None

    def launch(self, batch: StepBatch, flush_ns: int) -> None:
        """One launch a stage, noted."""
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
        """Into how many evenly spaced runs the requests fall in the worst row of a batch; past `most` just more."""
        indices = self.indices(self.kind_of(batch))
        return int(most_runs(batch.words, batch.size, batch.rows, indices, self.tables.shapes, most))

    def even_rows(self, batch: StepBatch) -> NDArray[np.bool_]:
        """Which rows of a batch have all their requests evenly spaced."""
        even = np.zeros(batch.rows, np.bool_)
        mark_even(batch.words, batch.size, batch.rows, self.indices(self.kind_of(batch)), self.tables.shapes, even)
        return even

    def launch_rows(self, batch: StepBatch, first: int, stop: int, flush_ns: int) -> None:
        """Rows `first` to `stop`, one launch each, none fused: of these all requests lie evenly spaced."""
        self._launch(batch, self.stages_of(batch)[first:stop], flush_ns)

    def launch_even(self, batch: StepBatch, flush_ns: int) -> None:
        """The same for requests that lie evenly spaced."""
        self._launch(batch, self.stages_of(batch), flush_ns)

    def _launch(self, batch: StepBatch, stages: Table, flush_ns: int) -> None:
        device = self.device
        device.enter(-1, batch.size)
        common = (self.tables.arrays, device.records, device.recorder.next_batch(), int(batch.reason), flush_ns)
        device.check(launch_stages(batch.words, batch.size, stages, *common))
        device.left()

    def record(self, batch: StepBatch) -> None:
        """The same launches, not noted: for a graph that is being captured. Requests must lie evenly spaced."""
        common = (self.tables.arrays, self._nowhere, 0, int(batch.reason), 0)
        self.device.check(launch_stages(batch.words, batch.size, self.stages_of(batch), *common))


def step_of(stream: Any, requests: int, replica: int) -> StepBatch:
    """What a decode step of the first `requests` requests asks for, as the driver issues it."""
    rows = stream.rows_of(stream.decode_kind)
    own = slice(rows.start, rows.stop)
    template, lanes = stream.template[own], stream.table[:requests, ch.LANE]
    records = np.repeat(template[:, None], requests, axis=1).astype(COMMAND_DTYPE)
    records["request"] = np.arange(requests)
    moved = replica * stream.replica_moves[own]
    for role, origins in (("a", stream.a_from), ("b", stream.b_from), ("c", stream.c_from)):
        in_lane = np.isin(origins[own], (ch.FROM_LANE, ch.FROM_INPUT))
        records[f"slot_{role}"] += (in_lane[:, None] * lanes[None]).astype(np.uint32)
    records["slot_a"] += moved.astype(np.uint32)[:, None]
    return StepBatch(as_words(records.reshape(-1)), FlushReason.full, requests, len(rows))

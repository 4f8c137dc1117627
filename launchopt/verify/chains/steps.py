"""Check the commands of steps whose inputs and outputs are still in memory, since no later step overwrote them.

After a run these are the last steps of all requests (`StepCheck.last_steps`); during an audit run, the steps that just
ended (`verify.chains.audit`). Of a decode step all commands can be checked. Of a chunk of a prompt these are the
commands of the last layer, and the slot map, since all layers write to the same memory. Inputs that were fed back are
reconstructed from the outputs that the run kept (`verify.chains.inputs`). If one launch computed a node and its
successor, the node's output was never written. The check then computes that output in float64 from the inputs in
memory, through as many unwritten nodes as there are. Each adds the variance of its own fp32 errors and of being stored
once (`verify.ops.stored`), although the launch may keep it unrounded; the op behind passes the variance on by its
derivative. So the bound of the output that was written holds for launches that round in between, and for those that do
not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.chains.lengths import StepKind
from launchopt.streams.chains.placement import NO_LAYER, Origin, Place, Row
from launchopt.streams.chains.program import HEAD
from launchopt.types import Array
from launchopt.verify.chains.columns import Columns
from launchopt.verify.chains.inputs import Inputs, Numbers, last_of_prompt
from launchopt.verify.chains.reference import Evaluator
from launchopt.verify.findings import Findings
from launchopt.verify.ops import Graded, exact, joined
from launchopt.verify.sums import reduced

NOTHING = np.zeros(0, np.int64)
NO_COLUMNS = Columns(NOTHING, NOTHING, NOTHING)


class Steps(NamedTuple):
    """Steps of requests, all of one kind. Steps of the same request are adjacent.

    kind: index of the kind. outputs: for a decode step, the tokens that the request has with this step; for a chunk of
    a prompt, 1. starts: position of the step's first column. numbers: number of each step within its request; None:
    they are the last steps. places: of decode steps whose lanes were copied, the index of the copy.
    """

    kind: int
    requests: Numbers
    outputs: Numbers
    starts: Numbers
    numbers: Numbers | None = None
    places: Numbers | None = None

    def part(self, index: Numbers | slice | NDArray[np.bool_]) -> Steps:
        """Return the steps at an index."""
        numbers, places = (None if each is None else each[index] for each in (self.numbers, self.places))
        return Steps(self.kind, self.requests[index], self.outputs[index], self.starts[index], numbers, places)

    def name(self, i: int) -> str:
        """Return the name of step i, for messages."""
        which = "the last step" if self.numbers is None else f"step {self.numbers[i]}"
        return f"{which} of request {self.requests[i]}"


@dataclass(frozen=True, slots=True)
class _Part:
    """Some steps of one kind, and the columns that are compared.

    rows: the rows of the step, by layer and node name. copies: as in `StepCheck.check`. columns: numbers of the
    compared columns within a step. at: request, position and weight copy of each of these columns, for all requests.
    """

    kind: StepKind
    rows: dict[tuple[int, str], Row]
    steps: Steps
    copies: Array
    columns: Numbers
    at: Columns


class StepCheck:
    """Checks steps of requests.

    left: the KV caches; None without attention. unwritten: names of nodes whose outputs were not written. chunk_bytes:
    memory that the check may use at a time, roughly. most_columns: columns of a step that are compared at most, chosen
    by `generator`.
    """

    def __init__(
        self,
        stream: ChainStream,
        inputs: Inputs,
        evaluator: Evaluator,
        unwritten: frozenset[str],
        chunk_bytes: int,
        most_columns: int,
        generator: np.random.Generator,
    ) -> None:
        self._stream, self._inputs, self._evaluator = stream, inputs, evaluator
        self._xp, self._left = evaluator.xp, evaluator.left
        self._unwritten, self._chunk_bytes = unwritten, chunk_bytes
        self._most_columns, self._generator = most_columns, generator
        self._unit = stream.activations.cols
        self._rows: dict[int, list[Row]] = {}

    def last_steps(self, findings: Findings, own: Numbers | None = None) -> None:
        """Check the last step of every request. own: only of these."""
        stream = self._stream
        decodes = stream.table[:, ChainColumn.DECODES] > 0
        last_kind = np.where(decodes, stream.decode_kind, stream.table[:, ChainColumn.REST_KIND])
        for kind in np.unique(last_kind).tolist():
            which = np.flatnonzero(last_kind == kind)
            which = which if own is None else which[np.isin(which, own)]
            starts = last_of_prompt(stream, which) + stream.outputs[which] - 1
            if stream.kinds[kind].is_prompt:
                own = stream.table[which]
                starts = own[:, ChainColumn.CACHED] + own[:, ChainColumn.FULL_CHUNKS] * (stream.chunk_tokens or 0)
            self.check(findings, Steps(kind, which, stream.outputs[which], starts))

    def rows(self, kind: int) -> list[Row]:
        """Return the rows of a kind of step."""
        if kind not in self._rows:
            self._rows[kind] = self._stream.rows(kind)
        return self._rows[kind]

    def check(
        self, findings: Findings, steps: Steps, layers: Collection[int] | None = None, copies: Array = None
    ) -> None:
        """Check steps of one kind. layers: None: all layers. copies: the copied lanes, as in `Audit`."""
        rows, kind = self.rows(steps.kind), self._stream.kinds[steps.kind]
        by_name = {(row.layer, row.name): row for row in rows}
        replicas = (steps.outputs - 1) % self._stream.replicas
        for replica in np.unique(replicas).tolist():
            own = steps.part(replicas == replica)
            for number, row in enumerate(rows):
                if self._is_checkable(kind, row) and (layers is None or row.layer in layers):
                    label = f"{self._stream.shape_of(row)}, command {number} of"
                    self._command(findings, row, _Part(kind, by_name, own, copies, NOTHING, NO_COLUMNS), label)
                findings.progress.add(len(own.requests) / len(rows))

    def _is_checkable(self, kind: StepKind, row: Row) -> bool:
        if row.name in self._unwritten:
            return False
        return not kind.is_prompt or row.layer in (NO_LAYER, self._stream.layers - 1)

    def _command(self, findings: Findings, row: Row, part: _Part, label: str) -> None:
        """Check the command `row` of steps that use one copy of the weights."""
        steps = part.steps
        replica = int(steps.outputs[0] - 1) % self._stream.replicas
        columns = np.arange(row.n)
        if row.n > self._most_columns:
            columns = np.sort(self._generator.choice(row.n, self._most_columns, replace=False))
        most = max(1, self._chunk_bytes // (8 * 8 * len(columns) * (row.m + row.k)))
        for start in range(0, len(steps.requests), most):
            some = steps.part(slice(start, start + most))
            positions = (some.starts[:, None] + columns).reshape(-1)
            at = Columns(np.repeat(some.requests, len(columns)), positions, np.full(len(positions), replica))
            own = replace(part, steps=some, columns=columns, at=at)
            name = partial(_named, label, some)
            findings.judge(self._output(row, own), self._expected(row, own), name, columns=len(columns))
            findings.compared += len(some.requests)

    def _expected(self, row: Row, part: _Part) -> Graded:
        """Return the expected output of a row, computed from its inputs in memory."""
        if row.op is Op.SLOT_MAP:
            return exact(self._xp, self._xp.asarray(self._slots(part), np.float64)[:, None])
        if row.op in (Op.ALL_REDUCE, Op.ALL_GATHER):
            parts = self._inputs.parts(self._units(row.b, part, row.operands[1].row_elements), row.k, part.copies)
            if row.op is Op.ALL_GATHER:
                return exact(self._xp, self._xp.concatenate(parts, axis=1))
            assert self._stream.split is not None
            given = [exact(self._xp, each) for each in parts]
            return reduced(self._xp, given, self._stream.dtype, self._stream.split.rounds_sums)
        node = None if row.name == HEAD else self._stream.program.node(row.name)
        program = self._stream.program
        b = self._input(row, "b", program.sources(node) if node else (program.layer[-1].name,), part)
        a = self._input(row, "a", (node.a,), part) if node and node.a and row.op is Op.ADD else None
        return self._evaluator.node(row, b, a, part.at, self._left)

    def _slots(self, part: _Part) -> Numbers:
        assert self._left is not None
        return self._left.slots(part.at.requests, part.at.positions)

    def _input(self, row: Row, role: str, names: tuple[str, ...], part: _Part) -> Graded:
        """Return the operand B, or A, that a row read. names: the nodes whose outputs, side by side, it is."""
        stream, place, operand = self._stream, row.b if role == "b" else row.a, row.operands["ab".index(role)]
        if not self._unwritten.isdisjoint(names):
            return joined(self._xp, [self._expected(part.rows[row.layer, name], part) for name in names])
        if place.origin != Origin.INPUT:
            units = self._units(place, part, operand.row_elements)
            return exact(self._xp, self._inputs.rows(units, row.k if role == "b" else row.m, part.copies))
        if part.kind.is_prompt:
            values = self._inputs.of_prompts(part.at.requests, part.at.positions)
        else:  # the request's next input has overwritten this input
            requests, at = part.steps.requests, part.steps.outputs - 1
            tokens = stream.table[requests, ChainColumn.FIRST_TOKEN] + at
            values = self._inputs.of_tokens(tokens, requests, at)
        return exact(self._xp, values)

    def _output(self, row: Row, part: _Part) -> Array:
        """Return the output of a row that is in memory, float64 [requests * columns, features]."""
        if row.op is Op.KV_WRITE:
            assert self._left is not None
            return self._left.at(part.at.requests, row.layer, part.at.positions).reshape(len(part.at), -1)
        if row.op is Op.SLOT_MAP:
            base = self._bases(row.c, part)
            words = self._inputs.words(base, row.n, part.copies)
            return words[:, self._xp.asarray(part.columns)].reshape(-1, 1)
        return self._inputs.rows(self._units(row.c, part, row.operands[2].row_elements), row.m, part.copies)

    def _bases(self, place: Place, part: _Part) -> Numbers:
        if part.steps.places is not None:
            of_copies: Numbers = part.steps.places * self._stream.lane_units + place.slot
            return of_copies
        column = ChainColumn.LANE if place.origin == Origin.LANE else ChainColumn.PREFILL
        bases: Numbers = self._stream.table[part.steps.requests, column] + place.slot
        return bases

    def _units(self, place: Place, part: _Part, row_elements: int) -> Numbers:
        """Return the unit at which each compared column starts, [requests * columns]."""
        moves = part.columns * (row_elements // self._unit)
        units: Numbers = (self._bases(place, part)[:, None] + moves).reshape(-1)
        return units


def _named(label: str, steps: Steps, i: int) -> str:
    return f"{label} {steps.name(i)}"

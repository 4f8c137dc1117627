"""Check the commands of every request's last step, whose inputs and outputs are still in memory after a run.

A command is checked if nothing overwrote its inputs. If the last step is a decode step, these are all its commands. If
it is a prompt, these are the commands of the last layer, and the slot map. Inputs that were fed back are reconstructed
from the outputs that the run kept (`verify.inputs`). If one launch computed a node and its successor, the node's output
was never written. The check then computes that output from the inputs in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.devices.arenas import Arenas
from launchopt.streams.chain import ChainStream
from launchopt.streams.chain_table import ChainColumn
from launchopt.streams.lengths import StepKind
from launchopt.streams.placement import NO_LAYER, Origin, Place, Row
from launchopt.streams.program import HEAD
from launchopt.types import Array
from launchopt.verify.findings import Findings
from launchopt.verify.inputs import Inputs, Numbers, last_of_prompt
from launchopt.verify.ops import Graded, exact
from launchopt.verify.reference import Columns, Evaluator, LeftCache


class _Group(NamedTuple):
    """Requests whose last steps are of the same kind and use the same copy of the weights."""

    kind: StepKind
    rows: list[Row]
    requests: Numbers
    replica: int


@dataclass(frozen=True, slots=True)
class _Part:
    """The last steps of some requests of a group, and the columns that are compared.

    rows: the rows of the step, by layer and node name. columns: numbers of the compared columns within a step.
    at: request, position and weight copy of each of these columns, for all requests.
    """

    kind: StepKind
    rows: dict[tuple[int, str], Row]
    requests: Numbers
    columns: Numbers
    at: Columns


class LastSteps:
    """Checks the last steps of all requests.

    left: the KV caches after the run; None without attention. unwritten: names of nodes whose outputs were not written.
    chunk_bytes: memory that the check may use at a time, roughly.
    """

    def __init__(
        self,
        stream: ChainStream,
        arenas: Arenas,
        inputs: Inputs,
        evaluator: Evaluator,
        left: LeftCache | None,
        unwritten: frozenset[str],
        chunk_bytes: int,
    ) -> None:
        self._stream, self._xp, self._inputs = stream, arenas.xp, inputs
        self._evaluator, self._left = evaluator, left
        self._unwritten, self._chunk_bytes = unwritten, chunk_bytes
        self._unit = stream.activations.cols

    def check(self, findings: Findings, generator: np.random.Generator, max_columns: int) -> None:
        """Check the last step of every request."""
        stream = self._stream
        decodes = stream.table[:, ChainColumn.DECODES] > 0
        last_kind = np.where(decodes, stream.decode_kind, stream.table[:, ChainColumn.REST_KIND])
        for index, kind in enumerate(stream.kinds):
            own = np.flatnonzero(last_kind == index)
            if not len(own):
                continue
            rows = stream.rows(index)
            replicas = (stream.outputs[own] - 1) % stream.replicas
            for replica in np.unique(replicas).tolist():
                group = _Group(kind, rows, own[replicas == replica], replica)
                for number, row in enumerate(rows):
                    if self._is_checkable(kind, row):
                        self._command(findings, generator, max_columns, group, number)
                    findings.progress.add(len(group.requests) / len(rows))

    def _is_checkable(self, kind: StepKind, row: Row) -> bool:
        if row.name in self._unwritten:
            return False
        return not kind.is_prompt or row.layer in (NO_LAYER, self._stream.layers - 1)

    def _command(
        self, findings: Findings, generator: np.random.Generator, max_columns: int, group: _Group, number: int
    ) -> None:
        """Check command `number` of the last steps of a group, in at most `max_columns` columns per step."""
        stream, row = self._stream, group.rows[number]
        by_name = {(each.layer, each.name): each for each in group.rows}
        columns = np.arange(row.n)
        if row.n > max_columns:
            columns = np.sort(generator.choice(row.n, max_columns, replace=False))
        label = f"{stream.shape_of(row)}, command {number} of the last step of request"
        for some in _parts(group.requests, self._chunk_bytes // (8 * 8 * len(columns) * (row.m + row.k))):
            positions = (self._starts(group.kind, some)[:, None] + columns).reshape(-1)
            at = Columns(np.repeat(some, len(columns)), positions, np.full(len(positions), group.replica))
            part = _Part(group.kind, by_name, some, columns, at)
            name = partial(_named, label, some)
            findings.judge(self._output(row, part), self._expected(row, part), name, columns=len(columns))
            findings.compared += len(some)

    def _starts(self, kind: StepKind, requests: Numbers) -> Numbers:
        """Return the position of the first column of each request's last step."""
        stream = self._stream
        if kind.is_prompt:
            chunks: Numbers = stream.table[requests, ChainColumn.FULL_CHUNKS] * (stream.chunk_tokens or 0)
            return chunks
        return last_of_prompt(stream, requests) + stream.outputs[requests] - 1

    def _expected(self, row: Row, part: _Part) -> Graded:
        """Return the expected output of a row, computed from its inputs in memory."""
        if row.op is Op.SLOT_MAP:
            return exact(self._xp, self._xp.asarray(self._slots(part), np.float64)[:, None])
        node = None if row.name == HEAD else self._stream.program.node(row.name)
        b = self._input(row, "b", node.b if node else self._stream.program.layer[-1].name, part)
        a = self._input(row, "a", node.a, part) if node and node.a and row.op is Op.ADD else None
        return self._evaluator.node(row, b, a, part.at, self._left)

    def _slots(self, part: _Part) -> Numbers:
        assert self._left is not None
        return np.concatenate(
            [self._left.slots(request, part.at.positions[own]) for request, own in part.at.by_request()]
        )

    def _input(self, row: Row, role: str, name: str, part: _Part) -> Graded:
        """Return the operand B, or A, that a row read. name: the node whose output the operand is."""
        stream, place, operand = self._stream, row.b if role == "b" else row.a, row.operands["ab".index(role)]
        if name in self._unwritten:
            return self._expected(part.rows[row.layer, name], part)
        if place.origin != Origin.INPUT:
            units = self._units(place, part, operand.row_elements)
            return exact(self._xp, self._inputs.rows(units, row.k if role == "b" else row.m))
        if part.kind.is_prompt:
            values = self._inputs.of_prompts(part.at.requests, part.at.positions)
        else:  # the request's next input has overwritten this input
            at = stream.outputs[part.requests] - 1
            tokens = stream.table[part.requests, ChainColumn.FIRST_TOKEN] + at
            values = self._inputs.of_tokens(tokens, part.requests, at)
        return exact(self._xp, values)

    def _output(self, row: Row, part: _Part) -> Array:
        """Return the output of a row that is in memory, float64 [requests * columns, features]."""
        if row.op is Op.KV_WRITE:
            assert self._left is not None
            parts = [self._left.at(request, row.layer, part.at.positions[own]) for request, own in part.at.by_request()]
            return self._xp.concatenate(parts).reshape(len(part.at), -1)
        if row.op is Op.SLOT_MAP:
            base = self._bases(row.c, part)
            words = self._inputs.words(base, row.n)
            return words[:, self._xp.asarray(part.columns)].reshape(-1, 1)
        return self._inputs.rows(self._units(row.c, part, row.operands[2].row_elements), row.m)

    def _bases(self, place: Place, part: _Part) -> Numbers:
        column = ChainColumn.LANE if place.origin == Origin.LANE else ChainColumn.PREFILL
        bases: Numbers = self._stream.table[part.requests, column] + place.slot
        return bases

    def _units(self, place: Place, part: _Part, row_elements: int) -> Numbers:
        """Return the unit at which each compared column starts, [requests * columns]."""
        moves = part.columns * (row_elements // self._unit)
        units: Numbers = (self._bases(place, part)[:, None] + moves).reshape(-1)
        return units


def _named(label: str, requests: Numbers, i: int) -> str:
    return f"{label} {requests[i]}"


def _parts(values: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(values), max(1, most)):
        yield values[start : start + max(1, most)]

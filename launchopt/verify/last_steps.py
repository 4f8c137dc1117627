"""The commands of every request's last step, whose inputs and outputs are still in memory: does each fit its inputs?

In: a stream and its arenas after a run, `Findings`. A command is compared where nothing wrote over what it read: of a
decode step all, of a prompt's those of the last layer, and the slot map. Inputs that were fed back come from what was
kept (`verify_inputs`). Where a node's output was never written, as one launch did it and its successor, what the
successor reads is computed from what was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.devices.arenas import Arenas
from launchopt.verify.findings import Findings
from launchopt.verify.inputs import Inputs, Numbers, last_of_prompt
from launchopt.verify.ops import Graded, exact
from launchopt.verify.reference import Columns, Evaluator, LeftCache
from launchopt.workloads import chain as ch
from launchopt.workloads.chain import ChainStream, StepKind
from launchopt.workloads.placement import NO_LAYER, Place, Row
from launchopt.workloads.program import HEAD


@dataclass(frozen=True, slots=True)
class _Part:
    """Some requests' last step: which of its columns are looked at."""

    kind: StepKind
    rows: dict[tuple[int, str], Row]
    requests: Numbers
    columns: Numbers
    at: Columns


class LastSteps:
    """The check of them. `chunk_bytes`: memory it may take at a time, about."""

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
        """All requests."""
        stream = self._stream
        decodes = stream.table[:, ch.DECODES] > 0
        last_kind = np.where(decodes, stream.decode_kind, stream.table[:, ch.REST_KIND])
        for index, kind in enumerate(stream.kinds):
            own = np.flatnonzero(last_kind == index)
            if not len(own):
                continue
            rows = stream.rows(index)
            replicas = (stream.outputs[own] - 1) % stream.replicas
            for replica in np.unique(replicas).tolist():
                for number, row in enumerate(rows):
                    if self._is_checkable(kind, row):
                        requests = own[replicas == replica]
                        self._command(findings, generator, max_columns, kind, rows, number, requests, replica)

    def _is_checkable(self, kind: StepKind, row: Row) -> bool:
        if row.name in self._unwritten:
            return False
        return not kind.is_prompt or row.layer in (NO_LAYER, self._stream.layers - 1)

    def _command(
        self,
        findings: Findings,
        generator: np.random.Generator,
        max_columns: int,
        kind: StepKind,
        rows: list[Row],
        number: int,
        requests: Numbers,
        replica: int,
    ) -> None:
        """One command of these requests' last steps."""
        stream, row = self._stream, rows[number]
        by_name = {(each.layer, each.name): each for each in rows}
        columns = np.arange(row.n)
        if row.n > max_columns:
            columns = np.sort(generator.choice(row.n, max_columns, replace=False))
        label = f"{stream.shape_of(row)}, command {number} of the last step of request"
        for some in _parts(requests, self._chunk_bytes // (8 * 8 * len(columns) * (row.m + row.k))):
            positions = (self._starts(kind, some)[:, None] + columns).reshape(-1)
            at = Columns(np.repeat(some, len(columns)), positions, np.full(len(positions), replica))
            part = _Part(kind, by_name, some, columns, at)
            name = partial(_named, label, some)
            findings.judge(self._output(row, part), self._expected(row, part), name, columns=len(columns))
            findings.compared += len(some)

    def _starts(self, kind: StepKind, requests: Numbers) -> Numbers:
        """Position of the first column of each one's last step."""
        stream = self._stream
        if kind.is_prompt:
            chunks: Numbers = stream.table[requests, ch.FULL_CHUNKS] * (stream.chunk_tokens or 0)
            return chunks
        return last_of_prompt(stream, requests) + stream.outputs[requests] - 1

    def _expected(self, row: Row, part: _Part) -> Graded:
        """What a row should give from what is in memory."""
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
        """What a row read as B, or A."""
        stream, place, operand = self._stream, row.b if role == "b" else row.a, row.operands["ab".index(role)]
        if name in self._unwritten:
            return self._expected(part.rows[row.layer, name], part)
        if place.origin != ch.FROM_INPUT:
            units = self._units(place, part, operand.row_elements)
            return exact(self._xp, self._inputs.rows(units, row.k if role == "b" else row.m))
        if part.kind.is_prompt:
            values = self._inputs.of_prompts(part.at.requests, part.at.positions)
        else:  # written over by what followed it
            at = stream.outputs[part.requests] - 1
            values = self._inputs.of_tokens(stream.table[part.requests, ch.FIRST_TOKEN] + at, part.requests, at)
        return exact(self._xp, values)

    def _output(self, row: Row, part: _Part) -> Any:
        """What is where a row should have written, float64 [requests * columns, features]."""
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
        column = ch.LANE if place.origin == ch.FROM_LANE else ch.PREFILL
        bases: Numbers = self._stream.table[part.requests, column] + place.slot
        return bases

    def _units(self, place: Place, part: _Part, row_elements: int) -> Numbers:
        """Units at which each request's columns start, [requests * columns]."""
        moves = part.columns * (row_elements // self._unit)
        units: Numbers = (self._bases(place, part)[:, None] + moves).reshape(-1)
        return units


def _named(label: str, requests: Numbers, i: int) -> str:
    return f"{label} {requests[i]}"


def _parts(values: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(values), max(1, most)):
        yield values[start : start + max(1, most)]

"""A reader of activations finds what was written for it, whatever other requests do meanwhile."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.programs import program_streams
from support.steps.stream_steps import records_of, steps_of

from launchopt.command import Op
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.chains.lengths import StepKind
from launchopt.streams.chains.placement import NO_LAYER, UNIT_BYTES, Row
from launchopt.streams.chains.program import HEAD, INPUT, SLOTS

properties = settings(deadline=None, max_examples=60)
TABLE, NOBODY = -1, 0


class Ownership:
    """Keeps for every unit of activations the number of the output that was written there last."""

    def __init__(self, stream: ChainStream) -> None:
        self.stream = stream
        self.owner = np.full(stream.total_units, NOBODY)
        self.owner[: stream.table_rows * stream.units(stream.hidden)] = TABLE
        self.of_request = np.full(stream.total_units, -1)
        self.fed: dict[int, int] = {}
        self.numbers = iter(range(1, 1 << 40))

    def step(self, request: int, step: int) -> None:
        """Run one step of a request, and feed its result back."""
        stream, kind = self.stream, steps_of(self.stream, request)[step]
        written: dict[tuple[int, str], int] = {}
        records = records_of(stream, request, step)
        rows = stream.rows(stream.kinds.index(kind))
        for record, row in zip(records, rows, strict=True):
            for role, *names in self.reads(row):
                if len(names) > 1:
                    units = [stream.units(stream.program.node(each).m) for each in names]
                    parts = np.repeat([written[row.layer, each] for each in names], units)
                    assert (self.owner[self.units(record, row, role)].reshape(row.n, -1) == parts).all(), row.name
                    continue
                (name,) = names
                if (row.layer, name) == (0, INPUT):
                    expected = TABLE if kind.is_prompt or step == 0 else self.fed[request]
                elif name == SLOTS:
                    expected = written[NO_LAYER, SLOTS]
                elif row.name == HEAD:
                    expected = written[stream.layers - 1, name]
                else:
                    last = stream.program.layer[-1].name
                    expected = written[(row.layer - 1, last) if name == INPUT else (row.layer, name)]
                assert (self.owner[self.units(record, row, role)] == expected).all(), (row.name, name)
            if row.op is not Op.KV_WRITE:
                written[row.layer, row.name] = self.write(request, self.units(record, row, "c"))
        lane = int(stream.table[request, ChainColumn.LANE])
        self.fed[request] = self.write(request, np.arange(lane, lane + stream.units(stream.hidden)))

    def reads(self, row: Row) -> list[tuple[str, ...]]:
        """Return the activations that a row reads: the role of each, and the nodes that made it, side by side."""
        if row.name == HEAD:
            return [("b", self.stream.program.layer[-1].name)]
        node = self.stream.program.node(row.name)
        if row.op is Op.SLOT_MAP:
            return []
        return [("b", *self.stream.program.sources(node)), *([("a", node.a)] if node.a else [])]

    def units(self, record: np.void, row: Row, role: str) -> np.ndarray:
        """Return the units that an operand of a row covers."""
        operand = row.operands["abc".index(role)]
        assert operand.arena == self.stream.activations
        assert operand.slot_bytes == UNIT_BYTES
        first = int(record[f"slot_{role}"])
        if (row.op, role) in ((Op.SLOT_MAP, "c"), (Op.KV_WRITE, "a")):
            return np.arange(first, first + -(-row.n * 4 // UNIT_BYTES))
        pitch, rest = divmod(operand.row_elements, UNIT_BYTES // self.stream.dtype.itemsize)
        assert rest == 0
        features = row.k if role == "b" else row.m
        assert row.n == 1 or pitch >= self.stream.units(features)
        return (first + pitch * np.arange(row.n)[:, None] + np.arange(self.stream.units(features))).reshape(-1)

    def write(self, request: int, units: np.ndarray) -> int:
        number = next(self.numbers)
        assert (units < self.stream.total_units).all()
        assert (self.owner[units] != TABLE).all()
        assert np.isin(self.of_request[units], [-1, request]).all()
        self.owner[units], self.of_request[units] = number, request
        return number


@properties
@given(program_streams(), st.randoms(use_true_random=False))
def test_what_is_read_is_what_was_written_for_it(stream: ChainStream, random: object) -> None:
    """Requests run at the same time, and take their steps in any order."""
    memory = Ownership(stream)
    left = [request for request in range(stream.requests) for _ in steps_of(stream, request)]
    random.shuffle(left)  # type: ignore[attr-defined]
    done = [0] * stream.requests
    for request in left:
        memory.step(request, done[request])
        done[request] += 1


@properties
@given(program_streams())
def test_all_outputs_of_a_decode_step_stay(stream: ChainStream) -> None:
    kind = StepKind(1, False, True)
    if kind not in stream.kinds:
        return
    lane = Ownership(stream)
    lane.owner[:] = NOBODY
    rows = stream.rows(stream.kinds.index(kind))
    request = int(np.flatnonzero(stream.table[:, ChainColumn.DECODES])[0])
    records = records_of(stream, request, len(steps_of(stream, request)) - 1)
    for record, row in zip(records, rows, strict=True):
        if row.op is not Op.KV_WRITE:
            units = lane.units(record, row, "c")
            assert (lane.owner[units] == NOBODY).all()
            lane.owner[units] = 1

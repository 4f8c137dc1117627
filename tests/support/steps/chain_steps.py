"""Random streams of requests, and their steps counted one by one. The tables of a stream must agree with this count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype, Records, ShapeKey
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.chain_table import ChainColumn
from launchopt.streams.chains.lengths import StepKind
from launchopt.streams.chains.placement import UNIT_BYTES, Origin


def requests_of(*sizes: tuple[int, int]) -> Requests:
    """Return requests. sizes: (prompt, output) tokens of each request."""
    prompts, outputs = (np.array(column, np.int64) for column in zip(*sizes, strict=True))
    return Requests(10 * np.arange(len(sizes)), prompts, outputs)


@st.composite
def layers_of_gemms(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Draw 2 to 4 different shapes. Each reads outputs of the previous one, all or the first ones."""
    widths = st.sampled_from([1, 3, 8, 64, 128, 129, 200])
    hidden = draw(widths)
    outputs = [*draw(st.lists(widths, min_size=1, max_size=3)), hidden]
    inputs = [hidden, *(draw(st.integers(1, width)) for width in outputs[:-1])]
    layer = list(zip(outputs, inputs, strict=True))
    return layer if len(set(layer)) == len(layer) else [(hidden + 1, hidden), (hidden, hidden + 1)]


@st.composite
def streams(draw: st.DrawFn) -> ChainStream:
    sizes = st.tuples(st.integers(0, 20), st.integers(0, 6)).filter(any)
    linears = draw(layers_of_gemms())
    heads = [
        None,
        1,
        40,
        2000,
        *(m for m, k in linears if k == linears[0][1]),
    ]  # the last ones give the LM head the shape of a layer's GEMM
    return ChainStream(
        linears,
        draw(st.integers(1, 3)),
        requests_of(*draw(st.lists(sizes, min_size=1, max_size=6))),
        draw(st.sampled_from(Dtype)),
        draw(st.integers(1, 3)),
        ChainSettings(
            vocab=draw(st.sampled_from(heads)),
            chunk_tokens=draw(st.none() | st.integers(1, 8)),
            seed=draw(st.integers(0, 3)),
        ),
    )


@dataclass(frozen=True)
class Step:
    request: int
    kind: StepKind
    number: int  # number of the step within its request
    token: int  # token to which the step belongs


def steps_of(stream: ChainStream) -> Iterator[Step]:
    """Return every step of every request, counted one by one."""
    rows = zip(stream.asked.context_tokens.tolist(), stream.asked.generated_tokens.tolist(), strict=True)
    for request, (prompt, generated) in enumerate(rows):
        left, number, outputs = prompt, 0, max(1, generated)
        while left:
            columns = min(left, stream.chunk_tokens or left)
            left -= columns
            yield Step(request, StepKind(columns, True, left == 0), number, 0)
            number += 1
        for token in range(1 if prompt else 0, outputs):
            yield Step(request, StepKind(1, False, True), number, token)
            number += 1


def shapes_of(stream: ChainStream, kind: StepKind) -> list[ShapeKey]:
    shapes = [ShapeKey(m, kind.n, k, stream.dtype) for _ in range(stream.layers) for m, k in stream.linears]
    if stream.vocab and kind.ends_token:
        shapes.append(ShapeKey(stream.vocab, 1, stream.hidden, stream.dtype))
    return shapes


def template_of(stream: ChainStream, kind: StepKind) -> tuple[Records, slice]:
    at = stream.kinds.index(kind)
    rows = slice(0 if at == 0 else int(stream.kind_stops[at - 1]), int(stream.kind_stops[at]))
    return stream.template[rows], rows


@dataclass(frozen=True)
class Span:
    """The units from `start` to `stop` - 1."""

    start: int
    stop: int

    def meets(self, other: Span) -> bool:
        return self.start < other.stop and other.start < self.stop


def inputs_and_outputs(stream: ChainStream, step: Step) -> list[tuple[Span | None, Span]]:
    """Return the units of each GEMM's input and output in a step; None for an input that the driver chooses."""
    records, rows = template_of(stream, step.kind)
    base = {
        Origin.LANE: stream.table[step.request, ChainColumn.LANE],
        Origin.PREFILL: stream.table[step.request, ChainColumn.PREFILL],
    }
    spans: list[tuple[Span | None, Span]] = []
    for record, b_from, c_from in zip(records, stream.b_from[rows], stream.c_from[rows], strict=True):
        m, n, k = (int(record[name]) for name in "mnk")
        _, b, c = stream.operands(ShapeKey(m, n, k, stream.dtype))
        assert b.slot_bytes == c.slot_bytes == UNIT_BYTES
        unit = UNIT_BYTES // stream.dtype.itemsize
        assert b.row_elements % unit == c.row_elements % unit == 0
        assert c.row_elements >= m
        assert b.row_elements >= k or n == 1
        source = None
        if b_from != Origin.INPUT:
            start = int(base[b_from]) + int(record["slot_b"])
            source = Span(start, start + (n - 1) * b.row_elements // unit + stream.units(k))
        start = int(base[c_from]) + int(record["slot_c"])
        spans.append((source, Span(start, start + (n - 1) * c.row_elements // unit + stream.units(m))))
    return spans

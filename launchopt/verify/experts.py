"""Check the outputs of an `ExpertStream` in float64, outside the timed region.

Each output of a step is compared with what follows from its inputs, as they are in memory after the run. The inputs of
the first command are what the seed gives (`verify.operands`), so a wrong output cannot hide behind a later one. The
experts that the device chose, and the rows of their columns, must be those of the routing exactly. A command that ran
before its inputs were written has read NaN, and so is wrong.

Of an output with more than `max_columns` columns a GEMM is checked in that many, and its other columns must have been
written. If a mode does not write the copies of columns (`permute`), they are computed from the map. If the time allowed
is too short for all steps, a random sample is checked, one step at least.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype, ShapeKey
from launchopt.devices.arenas import Arenas, to_float32
from launchopt.streams.experts.layout import DOWN, GATE_UP, ROUTER
from launchopt.streams.experts.stream import SINGLE, ExpertStream
from launchopt.types import Array
from launchopt.verify import ops as vo
from launchopt.verify.commands import CheckSettings, Verification, columns_of, unreported
from launchopt.verify.findings import CheckProgress, Findings
from launchopt.verify.ops import Graded, exact
from launchopt.verify.sums import weighted_sum

PERMUTE = "permute"
CHUNK_ELEMENTS = 4 << 20  # elements of an output that are checked at a time; float64 arrays of that size take 32 MB


def verify_experts(
    stream: ExpertStream, arenas: Arenas, settings: CheckSettings, unwritten: frozenset[str] = frozenset()
) -> Verification:
    """Check the outputs of `stream` on the device that holds them.

    unwritten: names of groups, of which only `permute` may be one, whose outputs were not written. They do not count
    as compared.
    """
    is_gathered = PERMUTE in unwritten
    check = _Check(stream, arenas, settings, is_gathered)
    start_s, done = time.monotonic(), 0
    for step in check.generator.permutation(stream.steps).tolist():
        check.step(step)
        done += int(SINGLE - is_gathered + 2 * stream.active[step])
        settings.report(done)
        if time.monotonic() - start_s > settings.budget_s:
            break
    check.findings.compared = done
    return check.findings.verdict(stream.commands)


class _Check:
    """Checks steps of a stream."""

    def __init__(self, stream: ExpertStream, arenas: Arenas, settings: CheckSettings, is_gathered: bool) -> None:
        self._is_gathered = is_gathered  # the first GEMM reads the columns themselves
        self._stream, self._arenas, self._settings, self._xp = stream, arenas, settings, arenas.xp
        self._layout, self._layer, self._dtype = stream.layout, stream.layer, stream.dtype
        self.generator = np.random.default_rng([settings.seed, 0xE4C4])
        self.findings = Findings(arenas.xp, 0, CheckProgress(1, unreported))

    def step(self, step: int) -> None:
        """Check all outputs of a step."""
        stream, layout, layer, xp = self._stream, self._layout, self._layer, self._xp
        region, base, hidden = layout.region, step * layout.region.units, layer.hidden
        copy, chosen = step % stream.replicas, stream.routing.chosen[step]
        inputs = self._arenas.matrix(layout.inputs, step % stream.arenas[layout.inputs])
        logits = self._rows(base + region.logits, layer.columns, layer.experts)
        router = layout.first_weight[ROUTER] + copy * layout.copy_move[ROUTER]
        self._gemm(f"step {step}, router", layout.singles["router"], router, inputs, logits)
        weights = self._choice(step, base, logits, chosen)
        at = self._map(step, base, chosen)
        if self._is_gathered:
            gathered = inputs[xp.asarray(self._column_of(at))]
        else:
            gathered = self._rows(base + region.gathered, layer.rows, hidden)
            self._copies(f"step {step}, permute", inputs, gathered, at)
        up = self._rows(base + region.gate_up, layer.rows, 2 * layer.inner)
        self._experts(step, GATE_UP, gathered, up)
        activated = self._rows(base + region.activated, layer.rows, layer.inner)
        for some in _chunks(layer.rows, 2 * layer.inner):
            expected = vo.silu_mul(xp, self._exact(up[some]), self._dtype)
            self._judge(f"step {step}, silu_mul", activated[some], expected)
        down = self._rows(base + region.down, layer.rows, hidden)
        self._experts(step, DOWN, activated, down)
        out = self._rows(base + region.out, layer.columns, hidden)
        for some in _chunks(layer.columns, layer.top_k * hidden):
            rows = self._exact(down[xp.asarray(at[some])])
            expected = weighted_sum(rows, weights[some], self._dtype)
            self._judge(f"step {step}, combine", out[some], expected)

    def _rows(self, unit: int, count: int, width: int) -> Array:
        """Return a view of `count` rows of `width` elements from a unit on, in the storage type."""
        flat = self._arenas.arrays[self._layout.activations]
        units = self._layout.units(width)
        return flat[unit : unit + count * units].reshape(count, -1)[:, :width]

    def _words(self, unit: int, units: int) -> Array:
        """Return a view of some units as int32."""
        return self._arenas.arrays[self._layout.activations][unit : unit + units].reshape(-1).view(np.int32)

    def _exact(self, values: Array) -> Graded:
        return exact(self._xp, self._wide(values))

    def _wide(self, values: Array) -> Array:
        wide = values if values.dtype == np.float32 else to_float32(values, self._dtype)
        return wide.astype(np.float64)

    def _judge(self, name: str, got: Array, expected: Graded) -> None:
        self.findings.judge(self._wide(got), expected, lambda _: name, columns=len(got))

    def _same(self, name: str, is_wrong: Array) -> None:
        """Count an output as wrong if any of its elements, which must be exact, is."""
        wrong = int(is_wrong.sum())
        at = np.zeros(1, np.int64)
        self.findings.refuse(np.array([wrong > 0]), lambda _: name, [f"{wrong} values differ"], np.zeros(1), at)

    def _choice(self, step: int, base: int, logits: Array, chosen: NDArray[np.int32]) -> Array:
        """Check the chosen experts, and the softmax of their logits; return the weights, [columns, top_k, 1]."""
        layout, top_k, xp = self._layout, self._layer.top_k, self._xp
        units = self._layer.columns * layout.table_units
        table = self._words(base + layout.region.table, units).reshape(self._layer.columns, -1)
        self._same(f"step {step}, top_k", table[:, :top_k] != xp.asarray(chosen))
        found = table[:, top_k : 2 * top_k].copy().view(np.float32).astype(np.float64)
        own = self._wide(logits)[xp.arange(len(chosen))[:, None], xp.asarray(chosen)]
        below = own - own.max(axis=1, keepdims=True)
        powers = xp.exp(below)
        value = powers / powers.sum(axis=1, keepdims=True)
        # As of vo.softmax: exp amplifies the rounding of its argument. Weights are stored in fp32.
        roundings = 8.0 - 2.0 * below + math.sqrt(top_k)
        expected = vo.stored(value, xp.zeros(value.shape), Dtype.fp32, roundings)
        self.findings.judge(found, expected, lambda _: f"step {step}, weights of top_k", columns=len(found))
        return found[:, :, None]

    def _map(self, step: int, base: int, chosen: NDArray[np.int32]) -> NDArray[np.int64]:
        """Check the map, and return the row of each expert of each column, [columns, top_k]."""
        layer, layout = self._layer, self._layout
        order = np.argsort(chosen.reshape(-1), kind="stable")
        rows = np.empty(layer.rows, np.int64)
        rows[order] = np.arange(layer.rows)
        firsts = np.append(0, np.cumsum(self._stream.expert_columns[step]))
        expected = np.concatenate([rows, firsts])
        words = self._words(base + layout.region.map, layout.region.gathered - layout.region.map)
        self._same(f"step {step}, map", words[: len(expected)] != self._xp.asarray(expected))
        return rows.reshape(chosen.shape)

    def _column_of(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the column of each row. at: the rows of each column, [columns, top_k]."""
        column = np.empty(self._layer.rows, np.int64)
        column[at.reshape(-1)] = np.repeat(np.arange(self._layer.columns), self._layer.top_k)
        return column

    def _copies(self, name: str, inputs: Array, gathered: Array, at: NDArray[np.int64]) -> None:
        column = self._column_of(at)
        for some in _chunks(self._layer.rows, self._layer.hidden):
            expected = self._wide(inputs[self._xp.asarray(column[some])])
            self._same(name, self._wide(gathered[some]) != expected)

    def _experts(self, step: int, which: int, inputs: Array, outputs: Array) -> None:
        """Check the GEMMs of all experts that have rows."""
        stream, layout = self._stream, self._layout
        slot = layout.first_weight[which] + step % stream.replicas * layout.copy_move[which]
        shape_of, name = {GATE_UP: (layout.gate_up, "gate_up"), DOWN: (layout.down, "down")}[which]
        first = 0
        for expert, n in enumerate(stream.expert_columns[step].tolist()):
            if n:
                own = slice(first, first + n)
                what = f"step {step}, {name} of expert {expert}"
                self._gemm(what, shape_of(n), slot + expert, inputs[own], outputs[own])
            first += n

    def _gemm(self, name: str, shape: ShapeKey, slot: int, inputs: Array, outputs: Array) -> None:
        arena = self._layout.weights[shape.layout]
        weight = self._arenas.matrices(arena, self._xp.asarray([slot]))[0].astype(np.float64, copy=False)
        columns = columns_of(self.generator, shape.n, self._settings.max_columns)
        some = self._xp.asarray(columns)
        self._judge(
            name, outputs[some], vo.gemm(self._exact(inputs[some]), weight, self._dtype, int(bool(shape.packing)))
        )
        if len(columns) < shape.n:
            self._same(f"{name}: not written", self._xp.isnan(self._wide(outputs)))


def _chunks(rows: int, width: int) -> Iterator[slice]:
    """Yield slices of rows whose elements fit into memory."""
    at_once = max(1, CHUNK_ELEMENTS // width)
    for first in range(0, rows, at_once):
        yield slice(first, min(first + at_once, rows))

"""Requests as chains of GEMMs: each step's input is the step before's output, each token's input the token before.

In: a model's linear layers, and requests (prompt and output tokens). Out: for every kind of step a template of
records, for every request where its operands lie; the driver fills templates in as steps are issued, so that nothing
that depends on the order in which tokens are done is decided here.

The data. One arena of 256-byte units holds the embedding table and every activation; slots b and c of a record are
units of it. The output of a GEMM is the input of the next without a copy: B is the output before it, of which the
first k features are used (the q part of q, k and v; the first half of gate and up), rows a whole number of units
apart. Weights are uniform in +-sqrt(3 / k), so that an output's rms is its input's, whatever the depth. A prompt is
consecutive rows of the table; its chunks are steps of n columns. After the last GEMM of a token the result is fed
back: scaled to the rms of an input (no sampling), or the row of the token that was sampled.

Where it lies. Decode steps of a request write into its lane, all lanes equally far apart, so that requests in step
can be one strided batch; prompt chunks into a region of one layer's outputs. Both are written again by the next step:
of each request the last step's outputs stay (`verify_chain` says how all the others are checked).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.requests import Requests
from launchopt.command import COMMAND_DTYPE, NO_TOKEN, Dtype, Flag, Records, ShapeKey
from launchopt.errors import ArenaMemoryError, ConfigError
from launchopt.workloads.stream import ArenaKey, Operand, Operands

UNIT_BYTES = 256
LEAST_TABLE_ROWS = 1024
MOST_UNITS = 2**32 - 1

# Columns of `table`, a row a request. Units count from the start of the activation arena.
DUE_NS, FULL_CHUNKS, REST_KIND, DECODES, LANE, PREFILL, PROMPT, FIRST_TOKEN, AFTER = range(9)
TABLE_COLUMNS = 9
NO_PROMPT = -1
# Where a slot of a template counts from.
FROM_LANE, FROM_PREFILL, FROM_INPUT = range(3)


@dataclass(frozen=True, slots=True)
class StepKind:
    """A step of n columns: of a prompt (its end, or a chunk before), or of one output token."""

    n: int
    is_prompt: bool
    ends_token: bool


class ChainStream:
    """Commands of `linears` (pairs of m, k) x `layers` for each step of each request.

    `vocab`: width of the LM head that follows a token's last layer, None for none. `chunk_tokens`: most columns of a
    prompt's step, None for whole prompts. ConfigError where the layers do not fit one another.
    """

    def __init__(
        self,
        linears: Sequence[tuple[int, int]],
        layers: int,
        requests: Requests,
        dtype: Dtype,
        replicas: int,
        vocab: int | None = None,
        chunk_tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        self.linears, self.layers, self.dtype, self.replicas = tuple(linears), layers, dtype, replicas
        self.vocab, self.chunk_tokens, self.asked = vocab, chunk_tokens, requests
        self.hidden = self.linears[0][1]
        self._check_fit()
        self.requests = len(requests)
        self.outputs = np.maximum(requests.generated_tokens, 1)
        self.tokens = int(self.outputs.sum())
        self.gemms_per_step = len(self.linears) * layers
        self._layout(requests, seed)
        self._count()

    def _check_fit(self) -> None:
        widths = [m for m, _ in self.linears]
        for (_, k), before in zip(self.linears, [widths[-1], *widths], strict=False):
            if k > before:
                raise ConfigError("model", f"{before} -> {k}", "a layer needs more features than the one before gives")
        if widths[-1] != self.hidden:
            raise ConfigError("model", widths[-1], f"the last layer must give hidden={self.hidden} features")
        if len(widths) == 1 and self.layers > 1 and self.asked.context_tokens.any():
            raise ConfigError("model", self.linears, "a layer of one GEMM would write over its own input in a prompt")

    def units(self, features: int, columns: int = 1) -> int:
        """Units of `columns` rows of `features` elements, each row a whole number of units."""
        return columns * -(-features * self.dtype.itemsize // UNIT_BYTES)

    def row_elements(self, features: int) -> int:
        """Elements from one row to the next."""
        return self.units(features) * UNIT_BYTES // self.dtype.itemsize

    def _layout(self, requests: Requests, seed: int) -> None:
        prompts = requests.context_tokens
        chunk = self.chunk_tokens or max(1, int(prompts.max(initial=1)))
        full = np.where(prompts > 0, (prompts - 1) // chunk, 0)
        rest = prompts - full * chunk
        self._steps = Counter[StepKind]()
        table = np.zeros((self.requests, TABLE_COLUMNS), np.int64)
        table[:, DUE_NS], table[:, AFTER] = requests.arrival_ns, requests.after
        table[:, FULL_CHUNKS] = full
        table[:, DECODES] = self.outputs - (prompts > 0)
        table[:, FIRST_TOKEN] = np.concatenate([[0], np.cumsum(self.outputs)[:-1]])
        self._steps[StepKind(chunk, True, False)] += int(full.sum())
        self._steps[StepKind(1, False, True)] += int(table[:, DECODES].sum())
        for n, count in zip(*np.unique(rest[prompts > 0], return_counts=True), strict=True):
            self._steps[StepKind(int(n), True, True)] += int(count)
        self.kinds = sorted((kind for kind, count in self._steps.items() if count), key=_kind_order)
        kind_of = {kind: index for index, kind in enumerate(self.kinds)}
        table[:, REST_KIND] = [
            kind_of[StepKind(int(n), True, True)] if prompt else NO_PROMPT
            for n, prompt in zip(rest, prompts, strict=True)
        ]
        self.decode_kind = kind_of.get(StepKind(1, False, True), -1)
        self.chunk_kind = kind_of.get(StepKind(chunk, True, False), -1)
        self.table_rows = max(self.vocab or 0, LEAST_TABLE_ROWS, 2 * int(prompts.max(initial=1)))
        self._lane_offsets()
        row_units = self.units(self.hidden)
        lanes = self.table_rows * row_units
        table[:, LANE] = lanes + np.arange(self.requests) * self.lane_units
        widest = np.where(full > 0, chunk, rest)
        sizes = widest * sum(self.units(m) for m, _ in self.linears) * (prompts > 0)
        prefill = lanes + self.requests * self.lane_units
        table[:, PREFILL] = prefill + np.concatenate([[0], np.cumsum(sizes)[:-1]])
        generator = np.random.default_rng([seed, 0x9307])
        rows = generator.integers(0, self.table_rows - np.maximum(prompts, 1) + 1)
        table[:, PROMPT] = rows * row_units
        self.total_units = int(prefill + sizes.sum())
        if self.total_units > MOST_UNITS:
            needed, most = (units * UNIT_BYTES / 1e9 for units in (self.total_units, MOST_UNITS))
            raise ArenaMemoryError(f"activations need {needed:,.0f} GB, of which {most:,.0f} can be addressed")
        self.table = table

    def _lane_offsets(self) -> None:
        """Where in its lane a decode step's outputs go: after the fed-back input, one after another."""
        sizes = [self.units(m) for m, _ in self.linears] * self.layers
        starts = self.units(self.hidden) + np.concatenate([[0], np.cumsum(sizes)])
        self.lane_outputs = [int(start) for start in starts[:-1]]
        self.logits_offset = int(starts[-1])
        self.lane_units = self.logits_offset + (self.units(self.vocab) if self.vocab else 0)

    def _count(self) -> None:
        self.counts: dict[ShapeKey, int] = {}
        self._together: dict[ShapeKey, int] = {}
        self.commands = 0
        templates = [self._template(kind) for kind in self.kinds]
        for kind, (records, *_) in zip(self.kinds, templates, strict=True):
            uses = self._steps[kind]
            self.commands += uses * len(records)
            shapes = Counter(ShapeKey(int(r["m"]), int(r["n"]), int(r["k"]), self.dtype) for r in records)
            for shape, times in shapes.items():
                self.counts[shape] = self.counts.get(shape, 0) + times * uses
                self._together[shape] = min(self.requests, self._together.get(shape, 0) + uses)
        self.shapes = sorted(self.counts)
        self.kind_stops = np.cumsum([len(records) for records, *_ in templates])
        parts = (np.concatenate(part) for part in zip(*templates, strict=True))
        self.template, self.b_from, self.c_from, self.replica_moves = parts
        self.arenas = self._arenas()
        self._widths_before = self._input_widths()

    def _template(self, kind: StepKind) -> tuple[Records, NDArray[np.int8], NDArray[np.int8], NDArray[np.int64]]:
        """Records of one step, where their slots b and c count from, and from one copy of their weight to the next."""
        gemms = [(m, k) for _ in range(self.layers) for m, k in self.linears]
        has_head = self.vocab is not None and kind.ends_token
        records = np.zeros(len(gemms) + has_head, COMMAND_DTYPE)
        b_from, c_from = (np.full(len(records), FROM_PREFILL if kind.is_prompt else FROM_LANE, np.int8) for _ in "bc")
        outputs = self._prompt_outputs(kind.n) if kind.is_prompt else self.lane_outputs
        moves = np.zeros(len(records), np.int64)
        ranks: Counter[tuple[int, int]] = Counter()
        for i, (m, k) in enumerate(gemms):
            records[i]["m"], records[i]["n"], records[i]["k"] = m, kind.n, k
            records[i]["slot_a"], records[i]["slot_c"] = ranks[m, k], outputs[i]
            records[i]["slot_b"] = outputs[i - 1] if i else 0
            ranks[m, k] += 1
        moves[: len(gemms)] = [ranks[shape] for shape in gemms]
        b_from[0] = FROM_INPUT
        if has_head and self.vocab is not None:
            last_column = self.units(self.hidden) * (kind.n - 1)
            head = records[-1]
            head["m"], head["n"], head["k"] = self.vocab, 1, self.hidden
            head["slot_a"] = ranks[self.vocab, self.hidden] * self.replicas  # behind the layers' own, if they have such
            head["slot_b"], head["slot_c"] = outputs[len(gemms) - 1] + last_column, self.logits_offset
            c_from[-1] = FROM_LANE
        records["dtype"] = self.dtype
        records["step"] = np.arange(len(records))
        records["token"] = 0 if kind.ends_token else NO_TOKEN
        records["flags"][-1] = Flag.STEP_END
        return records, b_from, c_from, moves

    def _prompt_outputs(self, n: int) -> list[int]:
        """A layer writes where the layer before did, for what that wrote has been read by then."""
        starts = np.concatenate([[0], np.cumsum([self.units(m, n) for m, _ in self.linears])[:-1]])
        return [int(start) for start in starts] * self.layers

    def _arenas(self) -> dict[ArenaKey, int]:
        per_layer = Counter(self.linears)
        arenas = {
            ArenaKey("a", m, k, self.dtype): count * self.layers * self.replicas for (m, k), count in per_layer.items()
        }
        if self.vocab:
            head = ArenaKey("a", self.vocab, self.hidden, self.dtype)
            arenas[head] = arenas.get(head, 0) + 1
        arenas[self.activations] = self.total_units
        if not self.vocab:
            arenas[self.history] = self.tokens
        return arenas

    @property
    def activations(self) -> ArenaKey:
        """The arena of units: table, lanes, prompt regions."""
        return ArenaKey("x", 1, UNIT_BYTES // self.dtype.itemsize, self.dtype)

    @property
    def history(self) -> ArenaKey:
        """Every token's last output, kept to be checked where nothing is sampled."""
        return ArenaKey("h", 1, self.row_elements(self.hidden), self.dtype)

    def _input_widths(self) -> dict[ShapeKey, int]:
        """Elements from row to row of each shape's B."""
        before = dict(zip(self.linears, [self.hidden, *(m for m, _ in self.linears)], strict=False))
        if len(before) < len(self.linears) and any(kind.n > 1 for kind in self.kinds):
            raise ConfigError("model", self.linears, "two layers of one shape cannot be told apart in a prompt")
        before.setdefault((self.vocab or 0, self.hidden), self.hidden)
        return {shape: self.row_elements(before[shape.m, shape.k]) for shape in self.shapes}

    def operands(self, shape: ShapeKey) -> Operands:
        """Where A, B and C of a shape live."""
        weight = ArenaKey("a", shape.m, shape.k, self.dtype)
        return (
            Operand(weight, weight.slot_bytes, shape.k),
            Operand(self.activations, UNIT_BYTES, self._widths_before[shape]),
            Operand(self.activations, UNIT_BYTES, self.row_elements(shape.m)),
        )

    def together(self, shape: ShapeKey) -> int:
        """Most commands of a shape that can be in one batch: one of each request that has such a step."""
        return self._together[shape]

    @property
    def fills(self) -> dict[ArenaKey, tuple[int, float]]:
        """Slots of each arena that hold inputs, and the bound of their uniform values."""
        fills = {arena: (slots, math.sqrt(3 / arena.cols)) for arena, slots in self.arenas.items() if arena.role == "a"}
        return fills | {self.activations: (self.table_rows * self.units(self.hidden), 1.0)}

    def strides(self) -> dict[ShapeKey, tuple[int, int, int]]:
        """Slots from one command of a batch to the next: requests in step share A, and lie a lane apart."""
        return dict.fromkeys(self.shapes, (0, self.lane_units, self.lane_units))

    @property
    def arena_bytes(self) -> int:
        """Device memory of all operands."""
        return sum(arena.slot_bytes * slots for arena, slots in self.arenas.items())

    @property
    def input_bytes(self) -> int:
        """Bytes of the distinct weights that the stream cycles over."""
        return sum(arena.slot_bytes * slots for arena, slots in self.arenas.items() if arena.role == "a")

    @property
    def flops(self) -> int:
        """Floating-point operations of the whole stream."""
        return sum(shape.flops * count for shape, count in self.counts.items())

    @property
    def bytes_moved(self) -> int:
        """Bytes that A, B and C of every command add up to."""
        return sum(shape.bytes * count for shape, count in self.counts.items())


def _kind_order(kind: StepKind) -> tuple[bool, bool, int]:
    return kind.is_prompt, kind.ends_token, kind.n

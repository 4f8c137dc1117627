"""`ChainStream`: requests as steps of a program. A step reads the outputs of the previous step of its request.

In: a program, or a model's linear layers, and requests (prompt and output tokens). Out: a template of records for each
kind of step, and the slots of each request's operands. The driver fills in a template when it issues a step.
One arena of 256-byte units holds the embedding table and all activations; a slot of an activation is a unit. A node
reads the output of another node without a copy. Weights are uniform in +-sqrt(3 / k), so that activations have the same
root mean square in every layer. A prompt is consecutive rows of the table, and each of its chunks is a step of n
columns. After the last command of a token its result is fed back as the next input (`devices/feedback`).
Decode steps of a request write into its lane. All lanes are equally far apart, so that one strided batch can hold the
same op of several requests. The next step overwrites the lane, so only the last step's outputs stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype, Op, ShapeKey
from launchopt.errors import ConfigError
from launchopt.prefixes.sharing import SharedPrefixes
from launchopt.streams.chains.attention import Attention
from launchopt.streams.chains.chain_table import ChainColumn, count_steps, place_activations
from launchopt.streams.chains.lengths import StepKind
from launchopt.streams.chains.placement import UNIT_BYTES, Placement, Row
from launchopt.streams.chains.program import Program, linear_program
from launchopt.streams.chains.template import Templates
from launchopt.streams.chains.tensor import Split, head_share
from launchopt.streams.chains.work import count_commands, work_of
from launchopt.streams.operands import ArenaKey, Fixed, Operands
from launchopt.streams.stream import CommandStream
from launchopt.weights.packing import PLAIN, Packing

LEAST_TABLE_ROWS = 1024  # fewest rows of the embedding table


class ChainSettings(NamedTuple):
    """Settings of a `ChainStream` that have a default."""

    vocab: int | None = None  # width of the LM head behind a token's last layer; None: no LM head
    chunk_tokens: int | None = None  # maximum columns of a step of a prompt; None: each prompt is one step
    seed: int = 0  # fixes the first inputs of requests and the pages of the KV cache
    split: Split | None = None  # the whole program, if the program of the stream is the share of one of several GPUs
    packing: Packing = PLAIN  # of the weights of all GEMMs but the LM head
    prefixes: SharedPrefixes | None = None  # tokens of prompts that need no step; None: every token has one


USUAL = ChainSettings()


class ChainStream:
    """Commands of `layers` layers of `program` for each step of each request. `program` may be pairs (m, k) of GEMMs.

    Raises ConfigError if the layers do not fit together.
    """

    has_steps: ClassVar[bool] = True
    independent: ClassVar[bool] = False
    packable: ClassVar[bool] = False
    is_serial: ClassVar[bool] = False
    has_groups: ClassVar[bool] = False
    span_ns: ClassVar[int] = 0
    fixed: Mapping[ArenaKey, Fixed] = {}

    def __init__(
        self,
        program: Program | Sequence[tuple[int, int]],
        layers: int,
        requests: Requests,
        dtype: Dtype,
        replicas: int,
        settings: ChainSettings = USUAL,
    ) -> None:
        self.program = program if isinstance(program, Program) else linear_program(program)
        self.layers, self.dtype, self.replicas, self.seed = layers, dtype, replicas, settings.seed
        self.vocab, self.chunk_tokens, self.asked = settings.vocab, settings.chunk_tokens, requests
        self.split, self.tensor = settings.split, settings.split.tensor if settings.split else 1
        self.prefixes = settings.prefixes
        self.hidden, self.norm_epsilon = self.program.hidden, self.program.norm_epsilon
        self.linears = tuple((node.m, node.k) for node in self.program.layer if node.op is Op.GEMM)
        self.requests = len(requests)
        self.outputs = np.maximum(requests.generated_tokens, 1)
        self.tokens = int(self.outputs.sum())
        self.commands_per_step = len(self.program.prologue) + len(self.program.layer) * layers  # without the LM head
        self.gemms_per_step = len(self.linears) * layers
        self.attention = self._attention()
        self._latest_rows: tuple[int, list[Row]] = (-1, [])  # a kind, and its rows
        head = None if self.vocab is None else (self.vocab, head_share(self.vocab, self.tensor))
        self.packing = settings.packing
        self._place = Placement(self.program, layers, replicas, head, dtype, self.attention, self.packing)
        self.lane_units, self.logits_offset = self._place.lane_units, self._place.logits_offset
        self._layout(requests, self.seed)
        self._count()

    def _attention(self) -> Attention | None:
        shape = self.program.attention
        if shape is None:
            return None
        if self.asked.longest > shape.ctx:
            raise ConfigError("program", f"ctx={shape.ctx}", f"a request has {self.asked.longest} tokens")
        return Attention.of(shape, self.requests, None if self.prefixes is None else self.prefixes.page_count)

    def units(self, features: int, columns: int = 1) -> int:
        """Return the units of `columns` rows of `features` elements. Each row takes a whole number of units."""
        return self._place.units(features, columns)

    def row_elements(self, features: int) -> int:
        """Return the elements from one row of `features` elements to the next."""
        return self._place.row_elements(features)

    def _layout(self, requests: Requests, seed: int) -> None:
        prompts = requests.context_tokens
        chunk = self.chunk_tokens or max(1, int(prompts.max(initial=1)))
        self.table, self.kinds, self._lengths = count_steps(requests, self.outputs, chunk, self.prefixes)
        kind_of = {kind: index for index, kind in enumerate(self.kinds)}
        self.decode_kind = kind_of.get(StepKind(1, False, True), -1)
        self.chunk_kind = kind_of.get(StepKind(chunk, True, False), -1)
        self.table_rows = rows = max(self.vocab or 0, LEAST_TABLE_ROWS, 2 * int(prompts.max(initial=1)))
        row_units = self.units(self.hidden)
        self.total_units = place_activations(self.table, prompts, chunk, self._place, rows, row_units, seed)

    def _count(self) -> None:
        self._templates = templates = Templates(self._place, self.kinds, self.layers, self.dtype)
        self.template, self.kind_stops, self.replica_moves = templates.records, templates.stops, templates.moves
        self.a_from, self.b_from, self.c_from = templates.a_from, templates.b_from, templates.c_from
        steps = [self._lengths[kind].steps for kind in self.kinds]
        self.counts, self._together = count_commands(templates.shapes, steps, self.requests)
        self.commands = sum(self.counts.values())
        self.shapes = sorted(self.counts)
        self.arenas = self._arenas()

    def rows(self, kind: int) -> list[Row]:
        """Return the op and the operands of each command in the template of a kind, in a list that stays as it is."""
        if self._latest_rows[0] != kind:  # making them takes some ms, and callers ask for one kind many times
            before, layers, after = self._place.rows(self.kinds[kind], self.layers)
            self._latest_rows = kind, [*before, *(row for rows in layers for row in rows), *after]
        return self._latest_rows[1]

    def rows_of(self, kind: int) -> range:
        """Return the rows of `template` that belong to a kind."""
        return range(0 if kind == 0 else int(self.kind_stops[kind - 1]), int(self.kind_stops[kind]))

    def shape_of(self, row: Row) -> ShapeKey:
        """Return the shape of a row, with its layout."""
        return self._templates.shape_of(row)

    def _arenas(self) -> dict[ArenaKey, int]:
        arenas = dict(self._place.weights.slots)
        arenas[self.activations] = self.total_units
        if self._place.cache is not None:
            arenas[self._place.cache] = self.layers
        if not self.vocab:
            arenas[self.history] = self.tokens
        return arenas

    @property
    def step_rows(self) -> int:
        """Commands of the longest step."""
        return int(np.diff(self.kind_stops, prepend=0).max())

    @property
    def decode_rows(self) -> int:
        """Commands of a step that generates a token; 0: the stream has no such step."""
        return len(self.rows_of(self.decode_kind)) if self.decode_kind >= 0 else 0

    def steps_of(self, rows: int) -> int:
        """Return the number of steps of a request in a batch of `rows` rows; more than 1: they were issued together."""
        return rows // self.decode_rows if rows > self.step_rows else 1

    def commands_of(self, requests: NDArray[np.int64]) -> int:
        """Return the number of commands of some requests."""
        rows, table = np.diff(self.kind_stops, prepend=0), self.table[requests]
        rest = table[:, ChainColumn.REST_KIND]
        whole = rows[self.chunk_kind] * table[:, ChainColumn.FULL_CHUNKS] + rows[rest] * (rest >= 0)
        return int((whole + rows[self.decode_kind] * table[:, ChainColumn.DECODES]).sum())

    def most_rows(self, together: int) -> int:
        """Return the most commands of a request that are issued at once: one step, or `together` tokens."""
        return max(self.step_rows, together * self.decode_rows)

    @property
    def spared_bytes(self) -> int:
        """Bytes of the inputs at the start of the arena of activations. Outputs are written behind them."""
        return int(self.table[0, ChainColumn.LANE]) * UNIT_BYTES

    @property
    def batches_share_weights(self) -> bool:
        """Whether a batch can hold commands of several requests, which all read one weight."""
        return self.requests > 1

    @property
    def fewest_weights(self) -> int | None:
        """Minimum number of slots over all arenas of weights."""
        return min(slots for arena, slots in self.arenas.items() if arena.is_weight)

    @property
    def ordered_requests(self) -> int:
        """Number of requests whose commands must run in order."""
        return self.requests

    def ordering(self, violated: bool, mode_keeps_order: bool) -> str:
        """Return the order that holds within a request, as in summary.parquet: per_request or violated."""
        return "violated" if violated else "per_request"

    @property
    def activations(self) -> ArenaKey:
        """Key of the arena of activations: the embedding table, then lanes, then the regions of prompts."""
        return self._place.activations

    @property
    def cache(self) -> ArenaKey:
        """Key of the arena of the KV cache, which has a slot per layer. Only for programs with attention."""
        assert self._place.cache is not None
        return self._place.cache

    @property
    def history(self) -> ArenaKey:
        """Key of the arena that keeps the last layer's output of every token for the check. Only without sampling."""
        return ArenaKey("h", 1, self.row_elements(self.hidden), self.dtype)

    @property
    def page_table(self) -> NDArray[np.int32]:
        """Pages of each request, int32 [requests, pages_a_request]. Only for programs with attention."""
        assert self.attention is not None
        own = self.attention.page_table(self.seed)
        return own if self.prefixes is None else self.prefixes.pages(own)

    def prompt_units(self, requests: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the unit of the row of the embedding table that each position of these prompts has as its input."""
        owners = requests if self.prefixes is None else self.prefixes.owners(requests, positions)
        own = self.table[owners]
        rows = positions - own[:, ChainColumn.CACHED]
        units: NDArray[np.int64] = own[:, ChainColumn.PROMPT] + rows * self.units(self.hidden)
        return units

    def operands(self, shape: ShapeKey) -> Operands:
        """Return the layout of A, B and C of a shape. The slots of an operand that the op lacks are units.

        A slot of the cache is the pool of a layer. Each of its rows holds the keys, or the values, of one token. The
        output of a slot map has no gaps between its rows.
        """
        return self._templates.operands[shape]

    def together(self, shape: ShapeKey) -> int:
        """Return the maximum commands of a shape in one batch: a request has at most one command in a batch."""
        return self._together[shape]

    @property
    def fills(self) -> dict[ArenaKey, tuple[int, float]]:
        """Slots of each arena that hold inputs, and the largest distance of their values from `ArenaKey.center`."""
        return self._place.weights.fills | {self.activations: (self.table_rows * self.units(self.hidden), 1.0)}

    def strides(self) -> dict[ShapeKey, tuple[int, int, int]]:
        """Return the number of slots of A, B and C from one command of a batch to the next, for each shape."""
        return self._place.strides(self.shapes)

    @property
    def arena_bytes(self) -> int:
        """Device memory of all operands."""
        return sum(arena.slot_bytes * slots for arena, slots in self.arenas.items())

    @property
    def input_bytes(self) -> int:
        """Bytes of the distinct weights that the stream cycles over."""
        return sum(arena.slot_bytes * slots for arena, slots in self.arenas.items() if arena.is_weight)

    @property
    def flops(self) -> int:
        """FLOPs of the whole stream. Those of attention are summed over the positions that each column sees."""
        return self._work()[0]

    @property
    def bytes_moved(self) -> int:
        """Sum of the bytes of A, B and C over all commands.

        Scores count for the positions that columns see. A step counts its cache once, up to its last position
        (`Lengths`).
        """
        return self._work()[1]

    def _work(self) -> tuple[int, int]:
        ops = [node.op for node in self.program.layer] * self.layers
        return work_of(self.counts, ops, self.attention, self._lengths.values(), self.dtype)


Stream = CommandStream | ChainStream


def chain_of(stream: Stream) -> ChainStream:
    """Return `stream` itself, as a ChainStream; TypeError for a stream of independent commands."""
    if isinstance(stream, ChainStream):
        return stream
    raise TypeError("this needs a stream of requests")

"""Streams of independent commands: their shapes, operands and records in blocks.

The producer pushes the records, the consumer allocates the arenas, and the check computes each output. Each of them
derives the stream from the same few numbers, so none depends on another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype, Records, ShapeKey
from launchopt.streams.model import NORM_EPSILON
from launchopt.streams.operands import ArenaKey, Fixed, Operand, Operands, arenas_of
from launchopt.weights.packing import PLAIN, Packing

if TYPE_CHECKING:
    from launchopt.streams.chains.attention import Attention
    from launchopt.streams.chains.program import Program

BLOCK_RECORDS = 4096


@dataclass(frozen=True, slots=True)
class Block:
    """Successive records. `due_ns`: when each is due, since the start; None: as soon as the ring has space."""

    records: Records
    due_ns: NDArray[np.int64] | None


class CommandStream:
    """Base of streams in which no command reads the output of another. A subclass makes commands and operands.

    counts: commands of each shape. independent: every command is a request of its own.
    """

    has_steps: ClassVar[bool] = False  # True: steps of requests that depend on each other (`ChainStream`)
    packable: ClassVar[bool] = True  # True: a mode may copy the operands of a batch side by side
    attention: ClassVar[Attention | None] = None
    program: ClassVar[Program | None] = None
    norm_epsilon: ClassVar[float] = NORM_EPSILON
    hidden: ClassVar[int] = 0  # features of a token; 0: no tokens
    step_rows: ClassVar[int] = 0  # commands of the longest step
    tensor: ClassVar[int] = 1  # GPUs that split each layer
    spared_bytes: ClassVar[int] = 0  # bytes of inputs at the start of the arena of outputs
    fixed: Mapping[ArenaKey, Fixed] = {}  # values of arenas whose inputs are not random

    dtype: Dtype
    packing: Packing = PLAIN
    arenas: dict[ArenaKey, int]
    counts: dict[ShapeKey, int]
    shapes: list[ShapeKey]
    commands: int
    requests: int
    layers: int
    replicas: int
    independent: bool

    def blocks(self, block_records: int = BLOCK_RECORDS) -> Iterator[Block]:
        """Yield the stream in order, in blocks of about `block_records` records."""
        raise NotImplementedError

    def strides(self) -> dict[ShapeKey, tuple[int, int, int]]:
        """Return the most frequent distance, in slots of (A, B, C), between successive commands of each shape."""
        raise NotImplementedError

    def operands(self, shape: ShapeKey) -> Operands:
        """Return the layout of A, B and C of a shape."""
        a, b, c = (Operand(arena, arena.slot_bytes, arena.cols) for arena in arenas_of(shape))
        return a, b, c

    def together(self, shape: ShapeKey) -> int:
        """Return the maximum commands of a shape in one batch."""
        return self.counts[shape]

    @property
    def span_ns(self) -> int:
        """Recorded time from the first command to the last; 0 if commands do not arrive at recorded times."""
        return 0

    @property
    def has_groups(self) -> bool:
        """Whether commands form groups that follow one another (`ListStream`). Steps keep order in another way."""
        return False

    @property
    def batches_share_weights(self) -> bool:
        """Whether a batch can hold commands of several requests, which all read one weight."""
        return False

    @property
    def weights_in_turn(self) -> bool:
        """Whether commands of a shape take its weights in turn, so that successive commands read different ones."""
        return True

    @property
    def fewest_weights(self) -> int | None:
        """Minimum number of different weights over all shapes; None: no weight is used twice (`RowStream`)."""
        return min(slots for arena, slots in self.arenas.items() if arena.is_weight)

    @property
    def ordered_requests(self) -> int:
        """Number of requests whose commands must run in order; 0: any order is correct."""
        return 0 if self.independent else self.requests

    @property
    def is_serial(self) -> bool:
        """Whether all commands belong to one request."""
        return not self.independent and self.requests == 1

    def ordering(self, violated: bool, mode_keeps_order: bool) -> str:
        """Return the order that holds within a request, as in summary.parquet: per_request or none."""
        return "per_request" if self.independent or mode_keeps_order else "none"

    @property
    def fills(self) -> dict[ArenaKey, tuple[int, float]]:
        """Slots of each arena that hold inputs, and the bound b of their uniform values in -b .. b."""
        return {arena: (slots, 1.0) for arena, slots in self.arenas.items() if arena.role != "c"}

    @property
    def arena_bytes(self) -> int:
        """Device memory of all operands."""
        return sum(arena.slot_bytes * slots for arena, slots in self.arenas.items())

    @property
    def input_bytes(self) -> int:
        """Bytes of the distinct inputs (A and B) that the stream cycles over."""
        return sum(arena.slot_bytes * slots for arena, slots in self.arenas.items() if arena.role != "c")

    @property
    def flops(self) -> int:
        """FLOPs of the whole stream."""
        return sum(shape.flops * count for shape, count in self.counts.items())

    @property
    def bytes_moved(self) -> int:
        """Sum of the bytes of A, B and C over all commands."""
        return sum(shape.bytes * count for shape, count in self.counts.items())


def commands_of(stream: object) -> CommandStream:
    """Return `stream` itself, as a CommandStream; TypeError for a stream of requests."""
    if isinstance(stream, CommandStream):
        return stream
    raise TypeError("this needs a stream of independent commands")

"""The whole weights of a split model, from which each GPU copies its share.

The same seed gives the same model on one GPU and on several. So every rank fills the whole weights, copies its part of
them into its arenas, and keeps the whole ones: the check computes the layers of the whole model from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Protocol

import numpy as np

from launchopt.command import Op
from launchopt.devices.arenas import Arenas, Sources
from launchopt.devices.peers.segment import Collectives
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.chains.placement import Row
from launchopt.streams.chains.program import HEAD
from launchopt.streams.operands import ArenaKey
from launchopt.types import Array


def whole_of(stream: ChainStream) -> ChainStream:
    """Return the stream of the whole model, as one GPU executes it."""
    assert stream.split is not None
    settings = ChainSettings(stream.vocab, stream.chunk_tokens, stream.seed, prefixes=stream.prefixes)
    return ChainStream(stream.split.whole, stream.layers, stream.asked, stream.dtype, stream.replicas, settings)


def whole_weight_bytes(stream: ChainStream) -> int:
    """Return the bytes of the whole weights, which each rank keeps for the check; 0 if the stream is not split."""
    return whole_of(stream).input_bytes if stream.split is not None else 0


def sources_of(stream: ChainStream, activations: Array) -> Sources:
    """Return where the operands of one rank come from: weights are copied, inputs are those of the whole stream.

    activations: memory for them.
    """
    whole = whole_of(stream)
    copied = frozenset(arena for arena in stream.arenas if arena.is_weight)
    return Sources(_numbers(whole), copied, {stream.activations: activations})


def _numbers(whole: ChainStream) -> dict[ArenaKey, int]:
    """Return the number with which the seed gives the values of each arena of a whole model."""
    return {arena: number for number, arena in enumerate(sorted(whole.arenas))}


class SplitRank(Protocol):
    """A device's part of a model that several devices split."""

    shares: WeightShares

    @property
    def updates_graphs(self) -> bool:
        """Whether a graph of its launches may be updated to other addresses."""

    def reset(self) -> None:
        """Begin a run: set the counts of all-reduces to 0."""

    def collectives(self) -> Collectives | None:
        """Return the all-reduces of the latest run; None if they were not counted."""

    def close(self) -> None:
        """Detach from the memory of the other devices. Call it once the device is closed."""


class WeightShares:
    """The whole weights of a stream, and the parts that the GPU with number `rank` holds."""

    def __init__(self, stream: ChainStream, xp: ModuleType, rank: int, seed: int) -> None:
        self.stream, self.rank, self.whole_stream = stream, rank, whole_of(stream)
        slots = {arena: count for arena, count in self.whole_stream.arenas.items() if arena.is_weight}
        fills = {arena: self.whole_stream.fills[arena] for arena in slots}
        self.whole = Arenas(xp, slots, fills, Sources(_numbers(self.whole_stream)))
        self.whole.fill(seed)

    def copy_to(self, arenas: Arenas) -> None:
        """Copy this rank's part of every weight into its arenas."""
        for _, part, own in self._parts(arenas):
            own[...] = part

    def fault(self, arenas: Arenas) -> str | None:
        """Return what is wrong with the weights in the rank's arenas; None if they are its parts of the whole ones."""
        for name, part, own in self._parts(arenas):
            bits = np.dtype(f"u{own.itemsize}")
            if not bool((own.view(bits) == part.view(bits)).all()):
                return f"the share of weight {name} is not that of the whole weight"
        return None

    def _parts(self, arenas: Arenas) -> Iterator[tuple[str, Array, Array]]:
        """Yield the name of each weight, and views of its part in the whole weight and of its place in `arenas`."""
        split = self.stream.split
        assert split is not None
        kind = next(i for i, kind in enumerate(self.stream.kinds) if kind.ends_token)
        whole_rows = {(row.layer, row.name): row for row in self.whole_stream.rows(kind)}
        for row in self.stream.rows(kind):
            if not row.operands[0].arena.is_weight:
                continue
            for replica in range(self.stream.replicas if row.move else 1):
                own = _weight(arenas, row, replica)
                whole = _weight(self.whole, whole_rows[row.layer, row.name], replica)
                if row.op is not Op.GEMM:
                    yield row.name, whole, own
                    continue
                is_head, at = row.name == HEAD, 0
                rows, columns = split.head_cut(len(whole), self.rank) if is_head else split.cut(row.name, self.rank)
                for each in rows:
                    cut = whole[each.start : each.stop, columns.start : columns.stop]
                    yield row.name if is_head else f"{row.name} of layer {row.layer}", cut, own[at : at + len(each)]
                    at += len(each)


def _weight(arenas: Arenas, row: Row, replica: int) -> Array:
    """Return a view of the weight of a row, [m, k], or [1, width] of a vector."""
    operand = row.operands[0]
    rows, cols = (row.m, row.k) if row.op is Op.GEMM else (1, operand.arena.cols)
    return arenas.view(operand, rows, cols)[row.a.slot + replica * row.move]

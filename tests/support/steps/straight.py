"""A stream's products the straightforward way, one command after another: what a correct run leaves behind."""

from __future__ import annotations

from typing import Any

import numpy as np

from launchopt.command import Records, ShapeKey
from launchopt.devices.arenas import Arenas, from_float32
from launchopt.streams.operands import arenas_of
from launchopt.streams.stream import CommandStream


def operands(stream: CommandStream, seed: int = 0) -> Arenas:
    """Random inputs, poisoned outputs."""
    arenas = Arenas(np, stream.arenas)
    arenas.fill(seed)
    arenas.poison()
    return arenas


def records_of(stream: CommandStream) -> Records:
    return np.concatenate([block.records for block in stream.blocks()])


def shape_of(stream: CommandStream, record: Any) -> ShapeKey:
    return ShapeKey(int(record["m"]), int(record["n"]), int(record["k"]), stream.dtype)


def output(stream: CommandStream, arenas: Arenas, record: Any) -> Any:
    """C [n, m] of a command, in storage type, to read or to write."""
    shape = shape_of(stream, record)
    return arenas.view(stream.operands(shape)[2], shape.n, shape.m)[record["slot_c"]]


def multiply(stream: CommandStream, arenas: Arenas, records: Records) -> None:
    """C = B @ A.T for each record, by the slots it names."""
    for record in records:
        arena_a, arena_b, _ = arenas_of(shape_of(stream, record))
        a = arenas.matrices(arena_a, [record["slot_a"]])[0]
        b = arenas.matrices(arena_b, [record["slot_b"]])[0]
        output(stream, arenas, record)[:] = from_float32(b @ a.T, stream.dtype)

"""Streams of independent commands, and their products one after another. A correct run leaves the same outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from launchopt.command import Dtype, Records, ShapeKey
from launchopt.devices.arenas import Arenas, from_float32
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.streams.operands import arenas_of
from launchopt.streams.stream import CommandStream
from launchopt.workloads.gemv import gemv


def operands(stream: CommandStream, seed: int = 0) -> Arenas:
    """Return arenas with random inputs and poisoned outputs."""
    arenas = Arenas(np, stream.arenas)
    arenas.fill(seed)
    arenas.poison()
    return arenas


def records_of(stream: CommandStream) -> Records:
    return np.concatenate([block.records for block in stream.blocks()])


def shape_of(stream: CommandStream, record: Any) -> ShapeKey:
    return ShapeKey(int(record["m"]), int(record["n"]), int(record["k"]), stream.dtype)


def output(stream: CommandStream, arenas: Arenas, record: Any) -> Any:
    """Return a view of C, [n, m], of a command, in storage type."""
    shape = shape_of(stream, record)
    return arenas.view(stream.operands(shape)[2], shape.n, shape.m)[record["slot_c"]]


def multiply(stream: CommandStream, arenas: Arenas, records: Records) -> None:
    """Compute C = B @ A.T for each record, with the operands in its slots."""
    for record in records:
        arena_a, arena_b, _ = arenas_of(shape_of(stream, record))
        a = arenas.matrices(arena_a, [record["slot_a"]])[0]
        b = arenas.matrices(arena_b, [record["slot_b"]])[0]
        output(stream, arenas, record)[:] = from_float32(b @ a.T, stream.dtype)


def small(dtype: Dtype = Dtype.fp32, n: int = 3) -> GemmStream:
    """24 commands of one shape, no two with the same inputs."""
    return gemv(8, n, 32, 24, dtype, 6)


def layers(dtype: Dtype) -> GemmStream:
    """Shapes that share arenas, of two widths, from two requests."""
    linears = [(16, 8), (8, 16), (24, 8), (8, 16)]
    return GemmStream(
        linears, 2, [Segment(5, 2), Segment(1, 6, 1), Segment(5, 1)], dtype, 3, CommandOrder(shuffle=True)
    )

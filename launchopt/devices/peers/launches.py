"""Launches of our own all-reduce and gather (launchopt/kernels/all_reduce.cu). This module needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from launchopt.command import ShapeKey
from launchopt.devices.cublaslt.kernel_plans import Launch
from launchopt.kernels.shared_peers import (
    ALL_REDUCE,
    ALL_REDUCE_BLOCKS,
    ALL_REDUCE_THREADS,
    LINE_WORDS,
    PEERS,
    REDUCE_ADD,
)

VECTOR_BYTES, WARP = 16, 32  # bytes that a thread reads at a time, and threads of a warp
LIMIT_NS = 120_000_000_000  # longest wait of a kernel for another GPU: a rank that has died must not hold the others

Three = tuple[int, int, int]


def all_reduce_launch(shape: ShapeKey, size: int, rows: Three, strides_bytes: Three, peers: int) -> Launch:
    """Return the launch for `size` commands of a shape, of ALL_REDUCE or ALL_GATHER.

    rows: elements from one row of A, B, C to the next. strides_bytes: bytes from one command's A, B, C to the next
    command's. peers: address of struct Peers.
    """
    words = np.zeros(1, ALL_REDUCE)
    words[0] = shape.k, shape.n, size, *rows[1:], *strides_bytes[1:], peers  # k: features of a part
    vectors = size * shape.n * -(-shape.k * shape.dtype.itemsize // VECTOR_BYTES)
    threads = min(ALL_REDUCE_THREADS, -(-vectors // WARP) * WARP)
    blocks = min(ALL_REDUCE_BLOCKS, -(-vectors // threads))
    return Launch((blocks, 1, 1), (threads, 1, 1), 0, words.view(np.int64))


def reduce_add_launch(shape: ShapeKey, size: int, layout: Sequence[int], peers: int) -> Launch:
    """Return the launch of REDUCE_ADD, or REDUCE_ADD_NORM, for `size` all-reduces of a shape.

    layout: the fields of struct ReduceAdd between `commands` and `peers`.
    """
    words = np.zeros(1, REDUCE_ADD)
    words[0] = shape.m, shape.n, size, *layout, peers
    vectors = -(-shape.m * shape.dtype.itemsize // VECTOR_BYTES)
    threads = min(ALL_REDUCE_THREADS, -(-vectors // WARP) * WARP)
    return Launch((min(ALL_REDUCE_BLOCKS, size * shape.n), 1, 1), (threads, 1, 1), 0, words.view(np.int64))


def signals_bytes(ranks: int) -> int:
    """Return the bytes that a rank needs behind its activations, for the flags and lines of all ranks."""
    return ranks * 8 * (ALL_REDUCE_BLOCKS + LINE_WORDS)


def peers_struct(rank: int, parts: Sequence[int], signals: Sequence[int], own: Sequence[int]) -> np.ndarray:
    """Return struct Peers of a rank.

    parts: addresses of the activations of each rank. signals: of the memory of each rank for flags, u64 [ranks,
    ALL_REDUCE_BLOCKS], and behind them lines, u64 [ranks, LINE_WORDS]. own: of this rank's generations and account.
    """
    peers, ranks = np.zeros(1, PEERS), len(parts)
    lines = [each + ranks * 8 * ALL_REDUCE_BLOCKS for each in signals]
    peers["size"], peers["rank"], peers["limit_ns"] = ranks, rank, LIMIT_NS
    peers["arrived"], peers["pushed"] = signals[rank], lines[rank]
    peers["generations"], peers["account"] = own
    peers["parts"][0, :ranks] = parts
    peers["flags"][0, :ranks] = [each + rank * 8 * ALL_REDUCE_BLOCKS for each in signals]
    peers["lines"][0, :ranks] = [each + rank * 8 * LINE_WORDS for each in lines]
    return peers

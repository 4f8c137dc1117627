"""Compute the macros, grid and arguments of the attention of a decode step in one launch (kernels/step_attention.cu).

The module needs no GPU. `devices/steps/fusions/own_attention.py` makes the stages of steps from it.

The kernel's results lie within the bound that `verify.ops` derives for scores, softmax and AV one after another, each
computed from the inputs of the one before (`scores`, `softmax`, `weighed`). That bound has, for each element, the
standard deviation u * |score| of storing a score, and u * p of storing a probability, with the unit roundoff u:

    scores           The kernel keeps them in fp32: the term u * |score| of the bound is not used up.
    powers           exp2((score - largest) * log2(e)) instead of exp(score - largest). Rounding the argument once more
                     changes the power by 2**-24 * |argument|. The bound has 2 * |score - largest| such roundings.
    largest score    It grows from tile to tile, and sums are corrected by exp2 of the difference. A correction rounds
                     once, relative to the sum; there are at most as many as tiles, and `softmax` counts sqrt(tokens).
    probabilities    Halves: the power is rounded to the dtype before the second product, by u * p at most, as a stored
                     probability is. The divisor is the sum of the powers in fp32, as in softmax.
    splits           Sums of splits are fp32, and their factors round three times.

So every rounding of the kernel has its counterpart in the bound, and two storing roundings of the bound have none in
the kernel. With ROPE=1 the rotated queries and key are rounded to the dtype exactly as ROPE stores them, and with
QK_NORM=1 the normed ones as ROPE rounds them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from launchopt.command import Dtype
from launchopt.kernels.shared import MOST_SPLITS, QUERIES, STEP_ATTENTION
from launchopt.streams.chains.attention import Attention
from launchopt.types import Array, Table

NAME = "step_attention"  # the source and its function
HEAD_DIMS = (64, 128)
WARPS, FEWER_WARPS = 8, 4  # warps of a block: of most launches; of those that have more blocks than fit on the GPU
TILE_BYTES = 4096  # bytes of keys of a tile, of which a warp has one at once
MULTIPROCESSORS = 132  # multiprocessors of an H200; on other GPUs, tokens may be divided slightly worse


@dataclass(frozen=True, slots=True)
class Parts:
    """What a launch does beside attention. rope: also ROPE and KV_WRITE. pdl: the launch is programmatic."""

    rope: bool = False
    pdl: bool = False


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses that a launch needs beside its operands, and the number of requests: fields of STEP_ATTENTION."""

    positions: int
    table: int
    requests: int
    turns: int = 0
    gains: int = 0
    mixed: int = 0
    weights: int = 0
    arrived: int = 0


def refusal(attention: Attention) -> str | None:
    """Return why the kernel does not support this shape of attention, or None."""
    if attention.head_dim not in HEAD_DIMS:
        return f"has head_dim={attention.head_dim}; our attention kernel takes {' or '.join(map(str, HEAD_DIMS))}"
    if group_of(attention) > QUERIES:
        return f"has {group_of(attention)} query heads per kv head; our attention kernel takes up to {QUERIES}"
    return None


def group_of(attention: Attention) -> int:
    """Return the number of query heads per kv head."""
    return attention.q_heads // attention.kv_heads


def warps_of(attention: Attention, dtype: Dtype, requests: int) -> int:
    """Return the warps of a block. With fewer warps, more blocks run at once; fp32 needs all threads for a head."""
    fits = requests * attention.kv_heads <= MULTIPROCESSORS * _blocks(dtype, WARPS)
    return WARPS if fits or dtype is Dtype.fp32 else FEWER_WARPS


def _blocks(dtype: Dtype, warps: int) -> int:
    """Return the blocks that fit on a multiprocessor, by their registers."""
    return (8 if dtype is Dtype.fp32 else 16) // warps


def defines_of(attention: Attention, dtype: Dtype, parts: Parts, warps: int = WARPS) -> Mapping[str, int]:
    """Return the macros of the kernel, but DTYPE. warps: of a block."""
    return {
        "HEAD_DIM": attention.head_dim,
        "GROUP": group_of(attention),
        "PAGE_TOKENS": attention.page_tokens if attention.is_paged else 0,
        "BLOCK_WARPS": warps,
        "BLOCKS": _blocks(dtype, warps),
        "ROPE": int(parts.rope),
        "QK_NORM": int(parts.rope and attention.qk_norm),
        "PDL": int(parts.pdl),
    }


def least_tokens(attention: Attention, dtype: Dtype) -> int:
    """Return the fewest tokens of a block: one tile for each warp."""
    return WARPS * TILE_BYTES // (attention.head_dim * dtype.itemsize)


def splits_of(attention: Attention, dtype: Dtype, requests: int) -> int:
    """Return the number of blocks that share the tokens of a request and kv head: each multiprocessor has one block.

    On an H100, twice as many splits were no faster for one request, and from 10% slower to 2% faster for 16 requests.
    """
    at_once = MULTIPROCESSORS // (requests * attention.kv_heads)
    return max(1, min(MOST_SPLITS, at_once, -(-attention.ctx // least_tokens(attention, dtype))))


def sums_shape(attention: Attention, most_requests: int) -> tuple[int, int, int]:
    """Return the size of the memory for sums: kv heads of all requests, splits of all of these, values of a split.

    It suffices for launches of up to `most_requests` requests.
    """
    items = most_requests * attention.kv_heads
    return items, max(items, MULTIPROCESSORS), group_of(attention) * attention.head_dim


def array_shapes(attention: Attention, most_requests: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays that launches share, of elements of 4 bytes.

    turns: cosines and sines of each position. sums: sums of splits, then their weights. arrived: finished splits.
    """
    items, splits, width = sums_shape(attention, most_requests)
    sums = (splits, width + 2 * group_of(attention))
    return {"turns": (attention.ctx, attention.head_dim), "sums": sums, "arrived": (items,)}


def memory_bytes(attention: Attention, most_requests: int) -> int:
    """Return the bytes of the arrays that all launches share; 0 if the kernel does not support this shape."""
    shapes = {} if refusal(attention) else array_shapes(attention, most_requests)
    return sum(4 * math.prod(shape) for shape in shapes.values())


def turns_of(attention: Attention) -> Array:
    """Return the cosines, then the sines, of each position, float32 [ctx, head_dim]. Angles are float64."""
    half = attention.head_dim // 2
    turns = np.empty((attention.ctx, 2, half), np.float32)
    frequencies = attention.theta ** (-np.arange(half) / half)
    for first in range(0, attention.ctx, 1 << 14):
        angles = np.arange(first, min(first + (1 << 14), attention.ctx))[:, None] * frequencies
        turns[first : first + len(angles), 0], turns[first : first + len(angles), 1] = np.cos(angles), np.sin(angles)
    return turns.reshape(attention.ctx, -1)


def words_of(attention: Attention, splits: int, least: int, strides: tuple[int, int], at: Addresses) -> Table:
    """Return struct StepAttention as words.

    strides: bytes from one request's row of q, k and v to the next, and of results.
    """
    words = np.zeros(1, STEP_ATTENTION)
    sizes = (attention.kv_heads, attention.ctx, attention.pages_a_request, at.requests, splits, least)
    addresses = (at.positions, at.table, at.turns, at.gains, at.mixed, at.weights, at.arrived)
    words[0] = (*strides, *sizes, *addresses)
    return words.view(np.int64)

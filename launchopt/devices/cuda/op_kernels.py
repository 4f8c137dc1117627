"""Compute the grid, block, shared memory and arguments of our own kernels (launchopt/kernels) for batches of a shape.

A kernel takes the addresses of A, B and C, the request of the first command, and struct Args by value. The kernel of
fused.cu takes the addresses of two vectors, of B and of C, and struct Args. This module needs no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from launchopt.command import Op, ShapeKey
from launchopt.errors import ConfigError
from launchopt.kernels import shared
from launchopt.kernels.shared import ATTENTION_WARPS, AV_LANES, KEY_LANES, KEYS, QUERIES
from launchopt.kernels.shared_experts import MAP_THREADS
from launchopt.streams.chains.attention import Attention
from launchopt.types import Table
from launchopt.weights.packing import Scales

ARGS = shared.ARGS.names or ()  # fields of struct Args, one word each; theta is a float64
VECTOR_BYTES = 16  # bytes that a thread reads or writes at a time
WARP = 32
MOST_IN_YZ = 65_535  # CUDA's limit of blocks of a grid in y and in z
MOST_THREADS = 256  # most threads per block, except as below
MOST_QUANTISING_THREADS = 1024  # threads per block of quantise_inputs.cu
MOST_ROW_THREADS = 512  # most threads per block of NORM and SOFTMAX; a thread holds 16 bytes of a row in registers
ATTENTION_THREADS = WARP * ATTENTION_WARPS
GEMV_WARPS, GEMV_MOST_COLUMNS = 8, 8
QUANTISED_GEMV, TENSOR_GEMV = "gemv_quantised", "gemv_quantised_rows"
TENSOR_ROWS, TENSOR_WARPS = 16, (8, 16)  # rows, and warps to choose from, of a block of TENSOR_GEMV

Three = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class OpLaunch:
    """The launch of one of our own kernels. shared_bytes: dynamic shared memory of a block."""

    function_name: str
    grid: Three
    block: Three
    shared_bytes: int
    args: Table  # words of struct Args; the last word holds the bits of theta


@dataclass(frozen=True, slots=True)
class SeqAddresses:
    """Device addresses of a `SeqState`, and its number of requests."""

    positions: int = 0
    table: int = 0
    requests: int = 0


def geometry(
    shape: ShapeKey,
    batch: int,
    row_elements: Three,
    stride_bytes: Three,
    attention: Attention | None = None,
    state: SeqAddresses | None = None,
) -> OpLaunch:
    """Return the launch of `batch` commands of any op but GEMM (ops.cu).

    row_elements: elements from one row of A, B, C to the next. stride_bytes: bytes from one command's A, B, C to the
    next command's. attention, state: for ops of attention. ConfigError: a grid cannot hold `batch` commands.
    """
    if shape.op is Op.GEMM:
        raise ValueError("a GEMM is no op of ops.cu")
    grid, threads, shared_bytes = _plain(shape) if attention is None else _with_heads(shape, attention)
    args = _args(shape, row_elements, stride_bytes, attention, state)
    return OpLaunch(shape.op.name, _whole_grid(shape, grid, batch), (threads, 1, 1), shared_bytes, args)


def fused_geometry(shape: ShapeKey, batch: int, row_elements: Three, stride_bytes: Three) -> OpLaunch:
    """Return the launch of BIAS_RELU_SCALE (fused.cu) for `batch` requests.

    shape: of one of the three commands, whose m and n are equal. stride_bytes: the first, A's, is that of both vectors.
    """
    grid, threads, shared_bytes = _features(shape, shape.m)
    args = _args(shape, row_elements, stride_bytes, None, None)
    return OpLaunch("BIAS_RELU_SCALE", _whole_grid(shape, grid, batch), (threads, 1, 1), shared_bytes, args)


def gemv_geometry(
    shape: ShapeKey,
    batch: int,
    row_elements: Three,
    stride_bytes: Three,
    warps: int,
    name: str = "gemv",
) -> OpLaunch:
    """Return the launch of GEMMs of up to 8 columns, whose kernel is compiled with N = shape.n.

    name: of the kernel and its file: gemv, or for quantised weights gemv_quantised or gemv_quantised_rows. warps: 1, 2,
    4 or 8 of a block's 8 warps share a row of A; the 8 or 16 warps of a block of gemv_quantised_rows share 16 rows.
    """
    is_tensor = name == TENSOR_GEMV
    allowed = TENSOR_WARPS if is_tensor else (1, 2, 4, 8)
    if shape.op is not Op.GEMM or shape.n > GEMV_MOST_COLUMNS or warps not in allowed:
        raise ValueError(f"no GEMV: {shape}, {name} with {warps} warps")
    rows, of_block = (TENSOR_ROWS, warps) if is_tensor else (GEMV_WARPS // warps, GEMV_WARPS)
    grid = (-(-shape.m // rows), 1)
    args = _args(shape, row_elements, stride_bytes, None, None)
    return OpLaunch(name, _whole_grid(shape, grid, batch), (of_block * WARP, 1, 1), 0, args)


def quantising_geometry(shape: ShapeKey, row_elements: Three) -> OpLaunch:
    """Return the launch that quantises the inputs of a GEMM as its weight is, per channel or per tensor."""
    blocks, values = (shape.n, shape.k) if shape.packing.scales is Scales.channel else (1, shape.n * shape.k)
    if shape.packing.scales is Scales.block or (blocks < shape.n and row_elements[1] != shape.k):
        raise ValueError(f"no quantised inputs: {shape}, {shape.packing}, columns {row_elements[1]} apart")
    threads = _threads(values // _width(shape), MOST_QUANTISING_THREADS)
    args = _args(shape, row_elements, (0, 0, 0), None, None)
    return OpLaunch("quantise_inputs", (blocks, 1, 1), (threads, 1, 1), 0, args)


def _args(
    shape: ShapeKey, rows: Three, strides: Three, attention: Attention | None, state: SeqAddresses | None
) -> Table:
    args = np.zeros(len(ARGS), np.int64)
    args[:9] = (shape.m, shape.n, shape.k, *rows, *strides)
    if attention is not None:
        heads = attention.q_heads, attention.kv_heads, attention.head_dim
        args[9:16] = (*heads, attention.ctx, attention.page_tokens, attention.pages_a_request, attention.qk_norm)
        args[19:].view(np.float64)[0] = attention.theta
    if state is not None:
        args[16:19] = (state.positions, state.table, state.requests)
    return args


def _whole_grid(shape: ShapeKey, grid: tuple[int, int], batch: int) -> Three:
    if batch > MOST_IN_YZ:
        raise ConfigError("batching.max_batch", batch, f"a launch of {shape} takes at most {MOST_IN_YZ} commands")
    return *grid, batch


Blocks = tuple[tuple[int, int], int, int]  # grid in x and y, threads per block, shared bytes


def _width(shape: ShapeKey) -> int:
    """Return the number of elements in VECTOR_BYTES."""
    return VECTOR_BYTES // shape.dtype.itemsize


def _threads(items: int, most: int) -> int:
    """Return `items` rounded up to whole warps, at most `most`, as the threads of a block."""
    return min(most, -(-items // WARP) * WARP)


def _features(shape: ShapeKey, features: int) -> Blocks:
    """Return a grid whose x is features and whose y is columns. Blocks loop over columns beyond the limit of y."""
    vectors = -(-features // _width(shape))
    threads = _threads(vectors, MOST_THREADS)
    return (-(-vectors // threads), min(shape.n, MOST_IN_YZ)), threads, 0


def _rows(shape: ShapeKey, rows: int, features: int) -> Blocks:
    """Return a grid of one block per row."""
    return (rows, 1), _threads(-(-features // _width(shape)), MOST_ROW_THREADS), 0


def _plain(shape: ShapeKey) -> Blocks:
    if shape.op is Op.NORM:
        return _rows(shape, shape.n, shape.m)
    if shape.op is Op.TOP_K:
        return (shape.n, 1), WARP, 4 * (shape.k + shape.m)
    if shape.op is Op.EXPERT_MAP:
        return (1, 1), MAP_THREADS, 4 * (shape.k + 1)
    if shape.op is Op.PERMUTE:
        (x, _), threads, _ = _features(shape, shape.k)
        return (x, min(shape.n * shape.m // shape.k, MOST_IN_YZ)), threads, 0
    return _features(shape, shape.m)


def _with_heads(shape: ShapeKey, attention: Attention) -> Blocks:
    """Return the grid of an op of attention, for the largest number of tokens (`ctx`) that a request can have.

    Blocks beyond the request's tokens return at once.
    """
    width, head_dim = _width(shape), attention.head_dim
    kept = attention.kv_heads * head_dim
    tiles = attention.kv_heads * -(-shape.n * (attention.q_heads // attention.kv_heads) // QUERIES)
    if shape.op is Op.SLOT_MAP:
        return (1, 1), _threads(shape.n, MOST_THREADS), 0
    if shape.op is Op.ROPE:
        half = head_dim // 2
        vectors = (attention.q_heads + attention.kv_heads) * -(-half // width) + -(-kept // width)
        threads = _threads(vectors, MOST_THREADS)
        return (-(-vectors // threads), min(shape.n, MOST_IN_YZ)), threads, 2 * half * 4
    if shape.op is Op.KV_WRITE:
        return _features(shape, 2 * kept)
    if shape.op is Op.SOFTMAX:
        return _rows(shape, shape.n * attention.q_heads, attention.ctx)
    if shape.op is Op.QK:
        keys = ATTENTION_THREADS // KEY_LANES * KEYS
        shared_bytes = QUERIES * -(-head_dim // width) * VECTOR_BYTES
        return (tiles, -(-attention.ctx // keys)), ATTENTION_THREADS, shared_bytes
    if shape.op is Op.AV:
        return (tiles, -(-head_dim // (AV_LANES * width))), ATTENTION_THREADS, 0
    return _plain(shape)

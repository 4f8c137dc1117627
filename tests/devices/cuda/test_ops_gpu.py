"""Our own kernels against NumPy's version of each op: every element, and nothing else is touched.

On a GPU; and on the host, where threads run one after the other in any order (cuda_on_host). Operands have rows and
commands apart, with poison in between; offsets and sizes that 16-byte loads do and do not fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support.cuda_on_host import can_build
from support.steps.placed import HostKernels, Kernels, Placed, assert_same, placed
from support.steps.programs import NORM_EPSILON

from launchopt.command import COLLECTIVES, Dtype, Op, ShapeKey
from launchopt.devices.arenas import SeqState
from launchopt.devices.cpu.ops import Sequences, apply
from launchopt.devices.cuda.op_kernels import SeqAddresses, fused_geometry, geometry
from launchopt.streams.chains.attention import Attention, AttentionShape


class OnGpu:
    ops, fused = Kernels("ops"), Kernels("fused")

    @staticmethod
    def state(*args: Any, **more: Any) -> SeqState:
        import cupy

        return SeqState(cupy, *args, **more)

    @staticmethod
    def address(array: Any) -> int:
        return int(array.data.ptr)

    @staticmethod
    def get(array: Any) -> Any:
        return array.get()


class OnHost:
    ops = HostKernels("ops", [op.name for op in Op if op not in (Op.GEMM, *COLLECTIVES)])
    fused = HostKernels("fused", ["BIAS_RELU_SCALE"])

    @staticmethod
    def state(*args: Any, **more: Any) -> SeqState:
        return SeqState(np, *args, **more)

    @staticmethod
    def address(array: Any) -> int:
        return int(array.ctypes.data)

    @staticmethod
    def get(array: Any) -> Any:
        return array


gpu = pytest.param(OnGpu, marks=pytest.mark.gpu, id="gpu")
host = pytest.param(OnHost, marks=pytest.mark.skipif(not can_build(), reason="needs g++"), id="host")
on_each = pytest.mark.parametrize("where", [gpu, host])
on_gpu = pytest.mark.parametrize("where", [gpu])  # tests that would take too long on a host
in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
# features, padding, offset: rows of whole 16-byte vectors; below, rows that are not
FITS = [(64, 0, 0), (4096, 64, 8), (8, 8, 0), (4104, 8, 16), (20_000, 0, 0)]
MISFITS = [(1, 0, 0), (7, 0, 0), (65, 3, 1), (64, 1, 0), (64, 0, 1), (4097, 0, 0), (4100, 4, 0), (9001, 0, 5)]
EPSILON = {"NORM_EPSILON": f"{NORM_EPSILON}f"}
PLAIN = [Op.BIAS, Op.RELU, Op.SCALE, Op.NORM, Op.ADD, Op.SILU_MUL]


def rows_of(*operands: Placed) -> Any:
    return tuple(operand.row_elements for operand in operands)


def strides_of(*operands: Placed) -> Any:
    return tuple(operand.stride_bytes for operand in operands)


@on_each
@in_each_dtype
@pytest.mark.parametrize("op", PLAIN, ids=lambda op: op.name)
@pytest.mark.parametrize(("m", "padding", "offset"), FITS + MISFITS)
@pytest.mark.parametrize(("n", "batch"), [(1, 1), (3, 4)])
def test_ops_without_a_state(
    where: Any, op: Op, dtype: Dtype, m: int, padding: int, offset: int, n: int, batch: int
) -> None:
    generator = np.random.default_rng(m)
    k = 2 * m if op is Op.SILU_MUL else m
    shared = op is not Op.ADD
    a = placed(dtype, 1 if shared else batch, (1 if shared else n, m), padding, offset).fill(generator, dtype)
    b, c = (placed(dtype, batch, (n, size), padding, offset) for size in (k, m))
    b.fill(generator, dtype)
    shape = ShapeKey(m, n, k, dtype, op)
    launch = geometry(shape, batch, rows_of(a, b, c), strides_of(a, b, c))
    *unchanged, found = where.ops.launch(launch, [a, b, c], 0, dtype, **EPSILON)
    for after, before in zip(unchanged, (a, b), strict=True):
        assert (after.view(np.uint8) == before.flat.view(np.uint8)).all()
    apply(op, a.stack(batch), b.view, c.view, dtype, None, NORM_EPSILON)
    assert_same(found, c.flat, dtype, 2 if dtype is not Dtype.fp32 else 16, scale=0.01)


@on_gpu
def test_more_columns_than_a_grid_has_blocks(where: Any) -> None:
    b, c = placed(Dtype.fp16, 1, (70_000, 8)), placed(Dtype.fp16, 1, (70_000, 8))
    b.fill(np.random.default_rng(0), Dtype.fp16)
    shape = ShapeKey(8, 70_000, 8, Dtype.fp16, Op.RELU)
    *_, found = where.ops.launch(geometry(shape, 1, rows_of(b, b, c), (0, 0, 0)), [b, b, c], 0, Dtype.fp16)
    assert (found == np.maximum(b.flat, 0)).all()


@on_each
@in_each_dtype
@pytest.mark.parametrize(("m", "padding", "offset"), FITS + MISFITS)
def test_fused(where: Any, dtype: Dtype, m: int, padding: int, offset: int) -> None:
    generator, batch, n = np.random.default_rng(m), 3, 2
    bias, scale = (placed(dtype, 1, (1, m), 0, offset).fill(generator, dtype) for _ in range(2))
    b, c = (placed(dtype, batch, (n, m), padding, offset) for _ in range(2))
    b.fill(generator, dtype)
    shape = ShapeKey(m, n, m, dtype, Op.BIAS)
    launch = fused_geometry(shape, batch, rows_of(bias, b, c), strides_of(bias, b, c))
    *_, found = where.fused.launch(launch, [bias, scale, b, c], None, dtype)
    apply(Op.BIAS, bias.stack(batch), b.view, c.view, dtype)
    apply(Op.RELU, c.view, c.view, c.view, dtype)
    apply(Op.SCALE, scale.stack(batch), c.view, c.view, dtype)
    assert_same(found, c.flat, dtype, 0 if dtype is Dtype.fp32 else 4)  # three launches round three times


@dataclass
class Layer:
    """One layer's attention on both devices, step by step. Each op on the GPU gets the same inputs as on the CPU."""

    where: Any
    attention: Attention
    dtype: Dtype
    padding: int = 0
    offset: int = 0
    outputs: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        attention = self.attention
        self.state = SeqState(np, attention, attention.requests, seed=3)
        self.there = self.where.state(attention, attention.requests, seed=3)
        pool = attention.pages_total, 2, attention.page_tokens, attention.kv_heads, attention.head_dim
        self.pool = placed(self.dtype, 1, pool, 0, self.offset)
        self.generator = np.random.default_rng(attention.ctx)

    def step(self, first: int, requests: int, n: int) -> None:
        """Run a step of n columns for the `requests` requests from `first` on, as one batch."""
        attention, batch = self.attention, requests
        width, kept = attention.q_heads * attention.head_dim, 2 * attention.kv_width
        scores = attention.q_heads * attention.ctx

        def rows(features: int) -> Placed:
            return placed(self.dtype, batch, (n, features), self.padding, self.offset)

        slots = Placed(np.int32, batch, (1, n), self.padding)
        qkv, turned, raw, soft, out = map(rows, (width + kept, width + kept, scores, scores, width))
        qkv.fill(self.generator, self.dtype)
        self._do(Op.SLOT_MAP, 1, 1, slots, slots, slots, first, batch, n, 0)
        gains = placed(self.dtype, 1, (1, 2 * attention.head_dim), 0, self.offset).fill(self.generator, self.dtype)
        self._do(Op.ROPE, width + kept, width + kept, gains, qkv, turned, first, batch, n, 8)
        self._do(Op.KV_WRITE, kept, width + kept, slots, turned, self.pool, first, batch, n, 0)
        self._do(Op.QK, scores, width + kept, self.pool, turned, raw, first, batch, n, 16)
        self._do(Op.SOFTMAX, scores, scores, raw, raw, soft, first, batch, n, 16)
        self._do(Op.AV, width, scores, self.pool, soft, out, first, batch, n, 16)

    def _do(
        self, op: Op, m: int, k: int, a: Placed, b: Placed, c: Placed, first: int, batch: int, n: int, units: float
    ) -> None:
        """Run one op and compare. units: allowed error in roundings to storage; fp32 has more, by the order of sums."""
        attention, dtype = self.attention, self.dtype
        positions, table = map(self.where.address, (self.there.positions, self.there.table))
        addresses = SeqAddresses(positions, table, attention.requests)
        shape = ShapeKey(m, n, k, dtype, op)
        launch = geometry(shape, batch, rows_of(a, b, c), strides_of(a, b, c), attention, addresses)
        before = c.copy()
        *_, found = self.where.ops.launch(launch, [a, b, c], first, dtype, **EPSILON)
        seen = [operand.stack(batch) for operand in (a, b, c)]
        if op is Op.SLOT_MAP:
            seen = [stack[:, 0] for stack in seen]
        if op is Op.KV_WRITE:
            seen[0] = seen[0][:, 0]
        sequences = Sequences(range(first, first + batch), attention, self.state)
        apply(op, *seen, dtype, sequences, NORM_EPSILON)
        assert (before.view(np.uint8) != c.flat.view(np.uint8)).any()
        half = dtype is not Dtype.fp32
        assert_same(found, c.flat, dtype, (units and 2) if half else 4 * units, scale=0.5)
        assert (self.where.get(self.there.positions) == self.state.positions).all()


# q_heads, kv_heads, head_dim, page
HEADS = [(4, 4, 64, None), (8, 2, 128, 16), (14, 2, 8, 5), (3, 1, 6, 7), (9, 1, 80, None), (2, 2, 256, 64)]


def with_heads(where: Any, heads: tuple[int, int, int, int | None]) -> Any:
    return pytest.param(*where.values, heads, marks=where.marks, id=f"{where.id}-{heads}")


@in_each_dtype
@pytest.mark.parametrize(
    ("where", "heads"),
    [*(with_heads(gpu, each) for each in HEADS), with_heads(host, (6, 2, 8, 5)), with_heads(host, (3, 1, 6, None))],
)
@pytest.mark.parametrize(("padding", "offset"), [(0, 0), (8, 16), (3, 1)])
def test_a_prompt_in_chunks_then_tokens(
    where: Any, dtype: Dtype, heads: tuple[int, int, int, int | None], padding: int, offset: int
) -> None:
    q_heads, kv_heads, head_dim, page = heads
    attention = Attention.of(AttentionShape(q_heads, kv_heads, head_dim, 43, page), 4)
    layer = Layer(where, attention, dtype, padding, offset)
    steps = ((1, 1, 21), (0, 4, 1), (2, 2, 5), (1, 1, 17), (0, 4, 2), (1, 1, 1))
    for first, requests, n in steps if where is OnGpu else steps[:3]:
        layer.step(first, requests, n)


@on_each
@in_each_dtype
@pytest.mark.parametrize(("head_dim", "padding", "offset"), [(16, 8, 16), (6, 3, 1)])
def test_heads_of_queries_and_keys_are_normed(
    where: Any, dtype: Dtype, head_dim: int, padding: int, offset: int
) -> None:
    attention = Attention.of(AttentionShape(6, 2, head_dim, 12, 5, qk_norm=True), 2)
    layer = Layer(where, attention, dtype, padding, offset)
    layer.step(1, 1, 3)
    layer.step(0, 2, 1)


@on_gpu
@in_each_dtype
@pytest.mark.parametrize(("ctx", "page", "chunks"), [(2304, 16, (1300, 700, 1, 1)), (4097, None, (4095, 1))])
def test_long_requests(where: Any, dtype: Dtype, ctx: int, page: int | None, chunks: tuple[int, ...]) -> None:
    layer = Layer(where, Attention.of(AttentionShape(4, 2, 32, ctx, page), 2), dtype)
    for n in chunks:
        layer.step(1, 1, n)


@on_each
@in_each_dtype
def test_far_positions_turn_as_exactly_as_near_ones(where: Any, dtype: Dtype) -> None:
    layer = Layer(where, Attention.of(AttentionShape(2, 1, 64, 200_000, None), 1), dtype)
    for state in (layer.state, layer.there):
        state.positions[...] = 199_990
    qkv, turned = (placed(dtype, 1, (10, 256)) for _ in range(2))
    qkv.fill(layer.generator, dtype)
    layer._do(Op.ROPE, 256, 256, qkv, qkv, turned, 0, 1, 10, 8)


@on_each
def test_what_does_not_exist_is_left_alone(where: Any) -> None:
    """A batch is padded with requests that do not exist. A step has more tokens than a request can have."""
    layer = Layer(where, Attention.of(AttentionShape(2, 1, 16, 6, 4), 3), Dtype.fp16)
    layer.step(1, 4, 2)
    assert layer.state.positions[1].tolist() == [0, 2, 2]
    layer.step(0, 3, 5)
    assert layer.state.positions[1].tolist() == [5, 7, 7]

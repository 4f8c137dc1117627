"""Our own kernels on a GPU against NumPy's version of each op: every element, and nothing else is touched.

Operands have rows and commands apart, with poison in between; offsets and sizes that 16-byte loads do and do not fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from placed import Kernels, Placed, assert_same, placed

from launchopt.command import Dtype, Op, ShapeKey
from launchopt.devices.cpu_ops import apply
from launchopt.devices.op_kernels import SeqAddresses, fused_geometry, geometry
from launchopt.devices.seq_state import SeqState
from launchopt.workloads.attention import Attention, AttentionShape

pytestmark = pytest.mark.gpu

OPS, FUSED = Kernels("ops"), Kernels("fused")
in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
# features, padding, offset: what fits 16 bytes, and what does not
FITS = [(64, 0, 0), (4096, 64, 8), (8, 8, 0), (4104, 8, 16), (20_000, 0, 0)]
MISFITS = [(1, 0, 0), (7, 0, 0), (65, 3, 1), (64, 1, 0), (64, 0, 1), (4097, 0, 0), (4100, 4, 0), (9001, 0, 5)]
PLAIN = [Op.BIAS, Op.RELU, Op.SCALE, Op.NORM, Op.ADD, Op.SILU_MUL]


def rows_of(*operands: Placed) -> Any:
    return tuple(operand.row_elements for operand in operands)


def strides_of(*operands: Placed) -> Any:
    return tuple(operand.stride_bytes for operand in operands)


@in_each_dtype
@pytest.mark.parametrize("op", PLAIN, ids=lambda op: op.name)
@pytest.mark.parametrize(("m", "padding", "offset"), FITS + MISFITS)
@pytest.mark.parametrize(("n", "batch"), [(1, 1), (3, 4)])
def test_ops_without_a_state(op: Op, dtype: Dtype, m: int, padding: int, offset: int, n: int, batch: int) -> None:
    generator = np.random.default_rng(m)
    k = 2 * m if op is Op.SILU_MUL else m
    shared = op is not Op.ADD
    a = placed(dtype, 1 if shared else batch, (1 if shared else n, m), padding, offset).fill(generator, dtype)
    b, c = (placed(dtype, batch, (n, size), padding, offset) for size in (k, m))
    b.fill(generator, dtype)
    shape = ShapeKey(m, n, k, dtype, op)
    launch = geometry(shape, batch, rows_of(a, b, c), strides_of(a, b, c))
    *unchanged, found = OPS.launch(launch, [a, b, c], 0, dtype)
    for after, before in zip(unchanged, (a, b), strict=True):
        assert (after.view(np.uint8) == before.flat.view(np.uint8)).all()
    apply(op, a.stack(batch), b.view, c.view, dtype)
    assert_same(found, c.flat, dtype, 2 if dtype is not Dtype.fp32 else 16, scale=0.01)


def test_more_columns_than_a_grid_has_blocks() -> None:
    b, c = placed(Dtype.fp16, 1, (70_000, 8)), placed(Dtype.fp16, 1, (70_000, 8))
    b.fill(np.random.default_rng(0), Dtype.fp16)
    shape = ShapeKey(8, 70_000, 8, Dtype.fp16, Op.RELU)
    *_, found = OPS.launch(geometry(shape, 1, rows_of(b, b, c), (0, 0, 0)), [b, b, c], 0, Dtype.fp16)
    assert (found == np.maximum(b.flat, 0)).all()


@in_each_dtype
@pytest.mark.parametrize(("m", "padding", "offset"), FITS + MISFITS)
def test_fused(dtype: Dtype, m: int, padding: int, offset: int) -> None:
    generator, batch, n = np.random.default_rng(m), 3, 2
    bias, scale = (placed(dtype, 1, (1, m), 0, offset).fill(generator, dtype) for _ in range(2))
    b, c = (placed(dtype, batch, (n, m), padding, offset) for _ in range(2))
    b.fill(generator, dtype)
    shape = ShapeKey(m, n, m, dtype, Op.BIAS)
    launch = fused_geometry(shape, batch, rows_of(bias, b, c), strides_of(bias, b, c))
    *_, found = FUSED.launch(launch, [bias, scale, b, c], None, dtype)
    apply(Op.BIAS, bias.stack(batch), b.view, c.view, dtype)
    apply(Op.RELU, c.view, c.view, c.view, dtype)
    apply(Op.SCALE, scale.stack(batch), c.view, c.view, dtype)
    assert_same(found, c.flat, dtype, 0 if dtype is Dtype.fp32 else 4)  # three launches round three times


@dataclass
class Layer:
    """One layer's attention on both devices, step by step: each op on the GPU from the inputs that the CPU had."""

    attention: Attention
    dtype: Dtype
    padding: int = 0
    offset: int = 0
    outputs: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        import cupy

        attention = self.attention
        self.state = SeqState(np, attention, attention.requests, seed=3)
        self.on_gpu = SeqState(cupy, attention, attention.requests, seed=3)
        pool = attention.pages_total, 2, attention.page_tokens, attention.kv_heads, attention.head_dim
        self.pool = placed(self.dtype, 1, pool, 0, self.offset)
        self.generator = np.random.default_rng(attention.ctx)

    def step(self, first: int, requests: int, n: int) -> None:
        """A step of n columns of `requests` requests from `first` on, as one batch."""
        attention, batch = self.attention, requests
        width, kept = attention.q_heads * attention.head_dim, 2 * attention.kv_width
        scores = attention.q_heads * attention.ctx

        def rows(features: int) -> Placed:
            return placed(self.dtype, batch, (n, features), self.padding, self.offset)

        slots = Placed(np.int32, batch, (1, n), self.padding)
        qkv, turned, raw, soft, out = map(rows, (width + kept, width + kept, scores, scores, width))
        qkv.fill(self.generator, self.dtype)
        self._do(Op.SLOT_MAP, 1, 1, slots, slots, slots, first, batch, n, 0)
        self._do(Op.ROPE, width + kept, width + kept, qkv, qkv, turned, first, batch, n, 8)
        self._do(Op.KV_WRITE, kept, width + kept, slots, turned, self.pool, first, batch, n, 0)
        self._do(Op.QK, scores, width + kept, self.pool, turned, raw, first, batch, n, 16)
        self._do(Op.SOFTMAX, scores, scores, raw, raw, soft, first, batch, n, 16)
        self._do(Op.AV, width, scores, self.pool, soft, out, first, batch, n, 16)

    def _do(
        self, op: Op, m: int, k: int, a: Placed, b: Placed, c: Placed, first: int, batch: int, n: int, units: float
    ) -> None:
        """`units`: roundings to storage that the result may be off; of fp32 the order of sums makes more of them."""
        attention, dtype = self.attention, self.dtype
        addresses = SeqAddresses(self.on_gpu.positions.data.ptr, self.on_gpu.table.data.ptr, attention.requests)
        shape = ShapeKey(m, n, k, dtype, op)
        launch = geometry(shape, batch, rows_of(a, b, c), strides_of(a, b, c), attention, addresses)
        before = c.copy()
        *_, found = OPS.launch(launch, [a, b, c], first, dtype)
        seen = [operand.stack(batch) for operand in (a, b, c)]
        if op is Op.SLOT_MAP:
            seen = [stack[:, 0] for stack in seen]
        if op is Op.KV_WRITE:
            seen[0] = seen[0][:, 0]
        apply(op, *seen, dtype, range(first, first + batch), attention, self.state)
        assert (before.view(np.uint8) != c.flat.view(np.uint8)).any()
        half = dtype is not Dtype.fp32
        assert_same(found, c.flat, dtype, (units and 2) if half else 4 * units, scale=0.5)
        assert (self.on_gpu.positions.get() == self.state.positions).all()


# q_heads, kv_heads, head_dim, page
HEADS = [(4, 4, 64, None), (8, 2, 128, 16), (14, 2, 8, 5), (3, 1, 6, 7), (9, 1, 80, None), (2, 2, 256, 64)]


@in_each_dtype
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize(("padding", "offset"), [(0, 0), (8, 16), (3, 1)])
def test_a_prompt_in_chunks_then_tokens(
    dtype: Dtype, heads: tuple[int, int, int, int | None], padding: int, offset: int
) -> None:
    q_heads, kv_heads, head_dim, page = heads
    attention = Attention.of(AttentionShape(q_heads, kv_heads, head_dim, 43, page), 4)
    layer = Layer(attention, dtype, padding, offset)
    for first, requests, n in ((1, 1, 21), (0, 4, 1), (2, 2, 5), (1, 1, 17), (0, 4, 2), (1, 1, 1)):
        layer.step(first, requests, n)


@in_each_dtype
@pytest.mark.parametrize(("ctx", "page", "chunks"), [(2304, 16, (1300, 700, 1, 1)), (4097, None, (4095, 1))])
def test_long_requests(dtype: Dtype, ctx: int, page: int | None, chunks: tuple[int, ...]) -> None:
    layer = Layer(Attention.of(AttentionShape(4, 2, 32, ctx, page), 2), dtype)
    for n in chunks:
        layer.step(1, 1, n)


@in_each_dtype
def test_far_positions_turn_as_exactly_as_near_ones(dtype: Dtype) -> None:
    layer = Layer(Attention.of(AttentionShape(2, 1, 64, 200_000, None), 1), dtype)
    for state in (layer.state, layer.on_gpu):
        state.positions[...] = 199_990
    qkv, turned = (placed(dtype, 1, (10, 256)) for _ in range(2))
    qkv.fill(layer.generator, dtype)
    layer._do(Op.ROPE, 256, 256, qkv, qkv, turned, 0, 1, 10, 8)


def test_what_does_not_exist_is_left_alone() -> None:
    """A batch filled up with requests beyond the last; a step with more tokens than a request can have."""
    layer = Layer(Attention.of(AttentionShape(2, 1, 16, 6, 4), 3), Dtype.fp16)
    layer.step(1, 4, 2)
    assert layer.state.positions[1].tolist() == [0, 2, 2]
    layer.step(0, 3, 5)
    assert layer.state.positions[1].tolist() == [5, 7, 7]

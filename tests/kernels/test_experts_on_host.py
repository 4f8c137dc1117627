"""kernels/experts/routing.cuh on the host: NumPy's version of each op of a layer with experts gives the same.

On a GPU the same comparison needs `-m gpu`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cuda_on_host import built, can_build, launch
from support.steps.placed import HostKernels, Kernels, Placed, assert_same, placed

from launchopt.command import EXPERT_OPS, Dtype, Op, ShapeKey
from launchopt.devices.arenas import from_float32
from launchopt.devices.cpu.expert_ops import apply
from launchopt.devices.cuda.op_kernels import geometry

OPS = sorted(EXPERT_OPS)
gpu = pytest.param(Kernels("ops"), marks=pytest.mark.gpu, id="gpu")
host = pytest.param(
    HostKernels("ops", [op.name for op in OPS]),
    marks=pytest.mark.skipif(not can_build(), reason="needs g++"),
    id="host",
)
on_each = pytest.mark.parametrize("where", [gpu, host])
in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
LAYERS = [(16, 4, 3), (128, 8, 5), (1, 1, 2), (33, 33, 1), (100, 1, 70), (40, 3, 33)]  # experts, top_k, columns
WORD = np.dtype(np.int32)


def chosen_of(experts: int, top_k: int, columns: int) -> Any:
    generator = np.random.default_rng(experts)
    order = generator.permuted(np.tile(np.arange(experts, dtype=np.int32), (columns, 1)), axis=1)
    return np.sort(order[:, :top_k], axis=1)


def row_of(operand: Placed, dtype: Dtype) -> int:
    """Elements of the dtype from one row of words to the next."""
    return operand.row_elements * (4 if operand.flat.dtype == WORD else dtype.itemsize) // dtype.itemsize


def same(where: Any, shape: ShapeKey, operands: list[Placed], views: Any, units: float) -> None:
    """Check C of a kernel against NumPy's, and that nothing else is written. views: of A, B and C for `apply`."""
    rows = tuple(row_of(operand, shape.dtype) for operand in operands)
    made = geometry(shape, 1, rows, (0, 0, 0))  # type: ignore[arg-type]
    *unchanged, found = where.launch(made, operands, 0, shape.dtype)
    for after, before in zip(unchanged, operands, strict=False):
        assert (after.view(np.uint8) == before.flat.view(np.uint8)).all()
    apply(shape, *views)
    assert_same(found, operands[2].flat, shape.dtype, units)


@on_each
@in_each_dtype
@pytest.mark.parametrize(("experts", "top_k", "columns"), LAYERS)
def test_top_k(where: Any, dtype: Dtype, experts: int, top_k: int, columns: int) -> None:
    generator = np.random.default_rng(1)
    bias, logits = (placed(dtype, 1, (columns, experts), 3) for _ in "ab")
    logits.fill(generator, dtype)
    chosen = chosen_of(experts, top_k, columns)
    biases = np.zeros((columns, experts), np.float32)
    np.put_along_axis(biases, chosen, 64.0, axis=1)
    bias.view[0] = from_float32(biases, dtype)
    table = Placed(WORD, 1, (columns, 2 * top_k), 2)
    shape = ShapeKey(top_k, columns, experts, dtype, Op.TOP_K)
    rows = tuple(row_of(operand, dtype) for operand in (bias, logits, table))
    *_, found = where.launch(geometry(shape, 1, rows, (0, 0, 0)), [bias, logits, table], 0, dtype)  # type: ignore[arg-type]
    apply(shape, bias.view, logits.view, table.view)
    assert (found[table.between] == -1).all()
    got, wanted = table.view_of(found)[0], table.view[0]
    assert (got[:, :top_k] == chosen).all()
    assert (wanted[:, :top_k] == chosen).all()
    weights, expected = (each[:, top_k:].copy().view(np.float32) for each in (got, wanted))
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)


@on_each
def test_without_a_bias_the_largest_logits_win(where: Any) -> None:
    logits, bias = placed(Dtype.fp32, 1, (9, 50)), placed(Dtype.fp32, 1, (9, 50))
    logits.fill(np.random.default_rng(2), Dtype.fp32)
    logits.view[0, 8] = -np.inf  # no number is chosen twice
    bias.view[...] = 0
    table = Placed(WORD, 1, (9, 12))
    shape = ShapeKey(6, 9, 50, Dtype.fp32, Op.TOP_K)
    *_, found = where.launch(geometry(shape, 1, (50, 50, 12), (0, 0, 0)), [bias, logits, table], 0, Dtype.fp32)
    wanted = np.sort(np.argsort(-logits.view[0], axis=1, kind="stable")[:, :6], axis=1)
    assert (found.reshape(9, 12)[:, :6] == wanted).all()


@on_each
@pytest.mark.parametrize(("experts", "top_k", "columns"), LAYERS)
def test_map(where: Any, experts: int, top_k: int, columns: int) -> None:
    dtype = Dtype.bf16
    table = Placed(WORD, 1, (columns, 2 * top_k), 4)
    table.view[0, :, :top_k] = chosen_of(experts, top_k, columns)
    mapped = Placed(WORD, 1, (columns * top_k + experts + 1,))
    shape = ShapeKey(top_k, columns, experts, dtype, Op.EXPERT_MAP)
    same(where, shape, [table, table, mapped], (table.view, table.view, mapped.view), 0)


@on_each
def test_a_map_of_memory_that_nobody_wrote_writes_nothing_else(where: Any) -> None:
    table, mapped = Placed(WORD, 1, (5, 8)), Placed(WORD, 1, (5 * 4 + 9,), 0, 64)
    shape = ShapeKey(4, 5, 8, Dtype.bf16, Op.EXPERT_MAP)
    made = geometry(shape, 1, (16, 16, 2), (0, 0, 0))
    *_, found = where.launch(made, [table, table, mapped], 0, Dtype.bf16)
    assert (found[mapped.between] == -1).all()


@pytest.mark.skipif(not can_build(), reason="needs g++")
@pytest.mark.parametrize("pdl", [0, 1])
def test_operands_are_found_through_a_table(pdl: int) -> None:
    given = np.arange(-6, 6, dtype=np.float32)
    out = np.zeros(12, np.float32)
    at = np.array([0, given.ctypes.data, out.ctypes.data], np.int64)
    made = geometry(ShapeKey(12, 1, 12, Dtype.fp32, Op.RELU), 1, (12, 12, 12), (0, 0, 0))
    words = np.concatenate([[at.ctypes.data, 0, 0, 0], made.args.view(np.int64)]).astype(np.int64)
    call = (
        "struct Given { char *a, *b, *c; i64 request; Args p; }; const Given& given = *(const Given*)arguments; "
        "RELU(given.a, given.b, given.c, given.request, given.p)"
    )
    library = built("ops", call, DTYPE=0, INDIRECT=1, PDL=pdl)
    launch(library, made.grid, made.block[0], made.shared_bytes, words.ctypes.data)
    assert (out == np.maximum(given, 0)).all()


@on_each
@in_each_dtype
@pytest.mark.parametrize("features", [64, 7, 130])
@pytest.mark.parametrize(("top_k", "columns"), [(4, 3), (1, 1), (8, 5)])
def test_permutation_and_weighted_sum(where: Any, dtype: Dtype, features: int, top_k: int, columns: int) -> None:
    generator, total = np.random.default_rng(3), top_k * columns
    rows = generator.permutation(total).astype(np.int32)
    mapped = Placed(WORD, 1, (total,))
    mapped.view[0] = rows
    given, gathered = placed(dtype, 1, (columns, features), 2), placed(dtype, 1, (total, features), 6)
    given.fill(generator, dtype)
    shape = ShapeKey(top_k * features, columns, features, dtype, Op.PERMUTE)
    views = mapped.view.reshape(1, columns, top_k), given.view, gathered.view
    same(where, shape, [mapped, given, gathered], views, 0)

    table = Placed(WORD, 1, (columns * (2 * top_k + 3) + total,))  # rows of 2 * top_k + 3 words, and the map
    words = table.view[0, : columns * (2 * top_k + 3)].reshape(columns, -1)
    words[:, top_k : 2 * top_k] = generator.random((columns, top_k), np.float32).view(np.int32)
    table.view[0, -total:] = rows
    out = placed(dtype, 1, (columns, features), 1)
    gathered.fill(generator, dtype)
    shape = ShapeKey(features, columns, top_k * features, dtype, Op.COMBINE)
    lda = (2 * top_k + 3) * 4 // dtype.itemsize
    made = geometry(shape, 1, (lda, gathered.row_elements, out.row_elements), (0, 0, 0))
    *_, found = where.launch(made, [table, gathered, out], 0, dtype)
    apply(shape, table.view, gathered.view, out.view)
    assert_same(found, out.flat, dtype, 2 if dtype is not Dtype.fp32 else 16)

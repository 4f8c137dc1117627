"""kernels/step_elementwise.cu on the host: add with norm, and rotary embedding with KV write, of several requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cuda_on_host import built, can_build, launch
from support.steps.programs import NORM_EPSILON, stream_of

from launchopt.command import Dtype, Op
from launchopt.devices.arenas import SeqState, from_float32, to_float32
from launchopt.devices.cpu.ops import Place, keep, norm, rotated
from launchopt.devices.cuda.op_kernels import ARGS, SeqAddresses, geometry
from launchopt.kernels.shared import ADD_NORM

pytestmark = pytest.mark.skipif(not can_build(), reason="needs g++")

ADD_CALL = (
    "struct Given { char *a, *b, *c, *gain; AddNorm p; }; const Given& given = *(const Given*)arguments; "
    "ADD_NORM(given.a, given.b, given.c, given.gain, given.p)"
)
ROPE_CALL = (
    "struct Given { char *a, *b, *c; i64 request; Args p; }; const Given& given = *(const Given*)arguments; "
    "ROPE_KV(given.a, given.b, given.c, given.request, given.p)"
)
each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)


def random(dtype: Dtype, *shape: int) -> Any:
    return from_float32(np.random.default_rng(7).standard_normal(shape).astype(np.float32), dtype)


@each_dtype
@pytest.mark.parametrize("pdl", [0, 1])
@pytest.mark.parametrize(("features", "threads", "columns"), [(64, 32, 1), (70, 32, 2), (600, 64, 1), (1100, 64, 3)])
def test_add_and_norm(dtype: Dtype, pdl: int, features: int, threads: int, columns: int) -> None:
    requests, row = 3, features + 6
    lanes = random(dtype, requests, 4, columns, row)  # of each request: two operands, their sum, the norm
    gain = random(dtype, features)
    args = np.zeros(1, ADD_NORM)
    args["m"] = features
    for name in ("lda", "ldb", "ldc", "ldn"):
        args[name] = row
    for name in ("stride_a", "stride_b", "stride_c"):
        args[name] = lanes.strides[0]
    args["to_norm"] = lanes.strides[1]
    operands = [lanes[0, i].ctypes.data for i in range(3)] + [gain.ctypes.data]
    words = np.array([*operands, *args.view(np.int64)], np.int64)
    before = lanes.copy()
    macros = {"DTYPE": int(dtype), "NORM_EPSILON": f"{NORM_EPSILON}f", "PDL": pdl}
    library = built("step_elementwise", ADD_CALL, races=False, **macros)
    launch(library, (columns, 1, requests), threads, 0, words.ctypes.data, seed=pdl)
    wide = to_float32(before[:, 0, :, :features], dtype) + to_float32(before[:, 1, :, :features], dtype)
    assert (lanes[:, 2, :, :features] == from_float32(wide, dtype)).all()
    expected = norm(to_float32(lanes[:, 2, :, :features], dtype), to_float32(gain, dtype), NORM_EPSILON)
    got = to_float32(lanes[:, 3, :, :features], dtype)
    np.testing.assert_allclose(got, expected, rtol=2 * dtype.unit_roundoff + 1e-5, atol=1e-7)
    untouched = np.ones(lanes.shape, bool)
    untouched[:, 2:, :, :features] = False
    assert (lanes[untouched] == before[untouched]).all(), "written beside the rows"


@each_dtype
@pytest.mark.parametrize("name", ["layer", "paged"])
def test_rotary_embedding_and_kv_write(dtype: Dtype, name: str) -> None:
    stream = stream_of(name, [(0, 9)] * 3, dtype, layers=1)
    attention = stream.attention
    assert attention is not None
    shape = next(shape for shape in stream.shapes if shape.op is Op.ROPE)
    state = SeqState(np, attention, stream.requests, seed=3)
    state.positions[0] = (0, 5, attention.ctx - 1)
    size = (attention.pages_total, 2, attention.page_tokens, attention.kv_heads, attention.head_dim)
    pool, given, out = random(dtype, *size), random(dtype, 3, shape.k), random(dtype, 3, shape.m)
    kept, before = pool.copy(), out.copy()
    address = SeqAddresses(state.positions.ctypes.data, state.table.ctypes.data, stream.requests)
    strides = (0, given.strides[0], out.strides[0])
    made = geometry(shape, 3, (0, shape.k, shape.m), strides, attention, address)
    gains = random(dtype, 1, 2 * attention.head_dim)  # of the norms of heads, which "paged" has
    made.args[ARGS.index("qk_norm")] = gains.ctypes.data if attention.qk_norm else 0
    words = np.array([pool.ctypes.data, given.ctypes.data, out.ctypes.data, 0, *made.args], np.int64)
    macros = {"DTYPE": int(dtype), "NORM_EPSILON": f"{stream.norm_epsilon}f", "PDL": 1}
    library = built("step_elementwise", ROPE_CALL, **macros)
    launch(library, made.grid, made.block[0], made.shared_bytes, words.ctypes.data)
    for request in range(3):
        place = Place(attention, state, request, stream.norm_epsilon)
        turned = rotated(place, gains, given[request : request + 1], dtype)
        keep(place, turned, kept)
        expected, got = to_float32(turned[0], dtype), to_float32(out[request], dtype)
        np.testing.assert_allclose(got, expected, rtol=2 * dtype.unit_roundoff, atol=8 * dtype.unit_roundoff)
    assert not (out == before).all()
    np.testing.assert_allclose(
        to_float32(pool, dtype), to_float32(kept, dtype), rtol=2 * dtype.unit_roundoff, atol=8 * dtype.unit_roundoff
    )

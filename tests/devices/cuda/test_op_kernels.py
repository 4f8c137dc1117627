"""The geometry of our own kernels: every element has a thread, every argument its word. No GPU is needed."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchopt.command import COLLECTIVES, Dtype, Op, ShapeKey
from launchopt.devices.cuda import op_kernels as ok
from launchopt.devices.cuda.op_kernels import (
    TENSOR_GEMV,
    TENSOR_WARPS,
    SeqAddresses,
    fused_geometry,
    gemv_geometry,
    geometry,
)
from launchopt.errors import ConfigError
from launchopt.kernels import source
from launchopt.streams.chains.attention import Attention, AttentionShape

ROWS, STRIDES = (1, 2, 3), (4, 5, 6)
MOST_BLOCKS_X, MOST_SHARED_BYTES = 2**31 - 1, 48 << 10
PLAIN = [Op.BIAS, Op.RELU, Op.SCALE, Op.ADD, Op.SILU_MUL]
properties = settings(deadline=None, max_examples=100)
dtypes = st.sampled_from(Dtype)


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    kv_heads, group = draw(st.integers(1, 16)), draw(st.integers(1, 9))
    page = draw(st.none() | st.integers(1, 300))
    shape = AttentionShape(
        kv_heads * group, kv_heads, 2 * draw(st.integers(1, 128)), draw(st.integers(1, 70_000)), page
    )
    return Attention.of(shape, draw(st.integers(1, 9)))


def sizes_of(op: Op, attention: Attention) -> tuple[int, int]:
    """Return m and k of the op."""
    kept, width = 2 * attention.kv_width, attention.q_heads * attention.head_dim
    scores = attention.q_heads * attention.ctx
    return {
        Op.SLOT_MAP: (1, 1),
        Op.ROPE: (width + kept, width + kept),
        Op.KV_WRITE: (kept, width + kept),
        Op.QK: (scores, width + kept),
        Op.SOFTMAX: (scores, scores),
        Op.AV: (width, scores),
    }[op]


def check_limits(launch: ok.OpLaunch) -> None:
    x, y, z = launch.grid
    assert 1 <= x <= MOST_BLOCKS_X
    assert 1 <= y <= ok.MOST_IN_YZ
    assert 1 <= z <= ok.MOST_IN_YZ
    threads, *rest = launch.block
    assert rest == [1, 1]
    assert threads % ok.WARP == 0
    assert ok.WARP <= threads <= 512
    assert launch.shared_bytes <= MOST_SHARED_BYTES


@properties
@given(st.sampled_from([*PLAIN, Op.NORM]), dtypes, st.integers(1, 100_000), st.integers(1, 70_000), st.integers(1, 99))
def test_every_feature_has_a_thread(op: Op, dtype: Dtype, m: int, n: int, batch: int) -> None:
    launch = geometry(ShapeKey(m, n, m, dtype, op), batch, ROWS, STRIDES)
    check_limits(launch)
    assert launch.function_name == op.name
    x, y, z = launch.grid
    width = ok.VECTOR_BYTES // dtype.itemsize
    if op is Op.NORM:
        assert (x, y) == (n, 1)
    else:
        covered = x * launch.block[0] * width
        assert m <= covered < m + launch.block[0] * width
        assert y == min(n, ok.MOST_IN_YZ)
    assert z == batch


@properties
@given(
    st.sampled_from([Op.SLOT_MAP, Op.ROPE, Op.KV_WRITE, Op.QK, Op.SOFTMAX, Op.AV]),
    dtypes,
    st.integers(1, 9000),
    attentions(),
)
def test_every_head_and_position_has_a_thread(op: Op, dtype: Dtype, n: int, attention: Attention) -> None:
    m, k = sizes_of(op, attention)
    launch = geometry(ShapeKey(m, n, k, dtype, op), 3, ROWS, STRIDES, attention, SeqAddresses(1, 2, 9))
    check_limits(launch)
    x, y, z = launch.grid
    width, queries = ok.VECTOR_BYTES // dtype.itemsize, n * attention.q_heads // attention.kv_heads
    assert z == 3
    if op in (Op.QK, Op.AV):
        assert x % attention.kv_heads == 0, "each kv head has as many tiles"
        assert queries <= x // attention.kv_heads * ok.QUERIES < queries + ok.QUERIES
        assert launch.block[0] == ok.ATTENTION_THREADS
    if op is Op.QK:
        assert attention.ctx <= y * ok.ATTENTION_THREADS // ok.KEY_LANES * ok.KEYS
        assert launch.shared_bytes >= ok.QUERIES * attention.head_dim * dtype.itemsize
    elif op is Op.AV:
        assert attention.head_dim <= y * ok.AV_LANES * width
    elif op is Op.SOFTMAX:
        assert (x, y) == (n * attention.q_heads, 1)
    elif op is Op.KV_WRITE:
        assert m <= x * launch.block[0] * width
    elif op is Op.ROPE:
        assert launch.shared_bytes == attention.head_dim * 4
    else:
        assert (x, y) == (1, 1), "one block reads and writes what is next"


def test_arguments_are_the_struct_word_by_word() -> None:
    attention = Attention.of(AttentionShape(8, 2, 16, 50, 7, 1234.5), 3)
    shape = ShapeKey(400, 5, 192, Dtype.fp16, Op.QK)
    args = geometry(shape, 2, ROWS, STRIDES, attention, SeqAddresses(70, 80, 3)).args
    assert args.dtype == np.int64
    values = dict(zip(ok.ARGS, args.tolist(), strict=True))
    assert [values[name] for name in ("m", "n", "k")] == [400, 5, 192]
    assert [values[f"ld{role}"] for role in "abc"] == list(ROWS)
    assert [values[f"stride_{role}"] for role in "abc"] == list(STRIDES)
    assert [values[name] for name in ("q_heads", "kv_heads", "head_dim", "ctx")] == [8, 2, 16, 50]
    assert [values[name] for name in ("page_tokens", "pages", "positions", "table", "requests")] == [7, 8, 70, 80, 3]
    assert args[-1:].view(np.float64)[0] == 1234.5
    assert values["qk_norm"] == 0
    assert not geometry(ShapeKey(4, 1, 4, Dtype.fp32, Op.RELU), 1, ROWS, STRIDES).args[9:].any()


def test_sources_are_whole_and_hold_a_kernel_for_every_op() -> None:
    for name in ("ops", "fused.cu", "gemv"):
        assert "#include" not in source(name)
        assert source(name).count("struct Args") == 1
    kernels = set(re.findall(r"^OP(?:_OF)?\(([A-Z_]+)", source("ops"), re.MULTILINE))
    assert kernels == {op.name for op in Op} - {"GEMM", *(op.name for op in COLLECTIVES)}
    with pytest.raises(FileNotFoundError):
        source("nothing")


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
def test_gemv_has_a_warp_or_more_for_every_row(warps: int) -> None:
    launch = gemv_geometry(ShapeKey(1001, 3, 64, Dtype.bf16), 5, ROWS, STRIDES, warps)
    assert launch.function_name == "gemv"
    assert launch.grid == (-(-1001 * warps // 8), 1, 5)
    assert launch.block == (256, 1, 1)
    assert launch.args[:9].tolist() == [1001, 3, 64, *ROWS, *STRIDES]


@pytest.mark.parametrize("warps", TENSOR_WARPS)
def test_all_warps_of_a_block_share_16_rows_of_tensor_cores(warps: int) -> None:
    launch = gemv_geometry(ShapeKey(1001, 3, 64, Dtype.bf16), 5, ROWS, STRIDES, warps, TENSOR_GEMV)
    assert (launch.function_name, launch.grid, launch.block) == (TENSOR_GEMV, (63, 1, 5), (32 * warps, 1, 1))


def test_fused() -> None:
    launch = fused_geometry(ShapeKey(4096, 2, 4096, Dtype.fp32, Op.BIAS), 3, ROWS, STRIDES)
    assert (launch.function_name, launch.grid, launch.block) == ("BIAS_RELU_SCALE", (4, 2, 3), (256, 1, 1))


def test_what_cannot_be_launched() -> None:
    with pytest.raises(ValueError, match="no op of"):
        geometry(ShapeKey(4, 1, 4, Dtype.fp32), 1, ROWS, STRIDES)
    with pytest.raises(ConfigError, match="at most 65535"):
        geometry(ShapeKey(4, 1, 4, Dtype.fp32, Op.RELU), 65_536, ROWS, STRIDES)
    with pytest.raises(ValueError, match="no GEMV"):
        gemv_geometry(ShapeKey(4, 9, 4, Dtype.fp32), 1, ROWS, STRIDES, 1)
    with pytest.raises(ValueError, match="no GEMV"):
        gemv_geometry(ShapeKey(4, 1, 4, Dtype.fp32), 1, ROWS, STRIDES, 3)
    with pytest.raises(ValueError, match="gemv_quantised_rows with 4 warps"):
        gemv_geometry(ShapeKey(4, 1, 4, Dtype.bf16), 1, ROWS, STRIDES, 4, TENSOR_GEMV)

"""Ops on the CPU against their definitions in float64: attention as a whole, with a mask over all of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.steps.programs import NORM_EPSILON

from launchopt.command import Dtype, Op
from launchopt.devices.arenas import STORAGE, SeqState, from_float32, to_float32
from launchopt.devices.cpu.ops import Sequences, apply
from launchopt.streams.chains.attention import Attention, AttentionShape

Floats = NDArray[np.float64]
properties = settings(deadline=None, max_examples=60)
dtypes = st.sampled_from(Dtype)


def stored(values: Any, dtype: Dtype) -> Any:
    return from_float32(np.ascontiguousarray(values, np.float32), dtype)


def exact(values: Any, dtype: Dtype) -> Floats:
    return to_float32(values, dtype).astype(np.float64)


def poisoned(shape: tuple[int, ...], dtype: Dtype) -> Any:
    array = np.empty(shape, STORAGE[dtype])
    array.view(np.uint8).fill(0xFF)
    return array


def is_poison(array: Any) -> bool:
    return bool((np.ascontiguousarray(array).view(np.uint8) == 0xFF).all())


EXPECTED: dict[Op, Any] = {
    Op.BIAS: lambda a, b: b + a,
    Op.RELU: lambda a, b: np.maximum(b, 0),
    Op.SCALE: lambda a, b: b * a,
    Op.NORM: lambda a, b: b * a / np.sqrt((b**2).mean(axis=-1, keepdims=True) + NORM_EPSILON),
    Op.ADD: lambda a, b: a + b,
    Op.SILU_MUL: lambda a, b: (
        b[..., : b.shape[-1] // 2] / (1 + np.exp(-b[..., : b.shape[-1] // 2])) * np.split(b, 2, -1)[1]
    ),
}


@properties
@given(st.sampled_from(sorted(EXPECTED)), dtypes, st.integers(1, 3), st.integers(1, 4), st.integers(1, 70), st.data())
def test_ops_without_a_state(op: Op, dtype: Dtype, commands: int, n: int, m: int, data: st.DataObject) -> None:
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    a_rows = n if op is Op.ADD else 1
    a = stored(generator.standard_normal((commands, a_rows, m)), dtype)
    b = stored(3 * generator.standard_normal((commands, n, 2 * m if op is Op.SILU_MUL else m)), dtype)
    c = poisoned((commands, n, m), dtype)
    apply(op, a, b, c, dtype, None, NORM_EPSILON)
    expected = EXPECTED[op](exact(a, dtype), exact(b, dtype))
    np.testing.assert_allclose(exact(c, dtype), expected, rtol=8 * dtype.unit_roundoff, atol=1e-6)


def test_a_shut_gate_is_no_warning_and_a_missing_number_stays_one() -> None:
    b = np.array([[[-1e4, np.nan, 2, 3]]], np.float32)
    c = np.ones((1, 1, 2), np.float32)
    apply(Op.SILU_MUL, b, b, c, Dtype.fp32)
    assert c[0, 0, 0] == 0
    assert np.isnan(c[0, 0, 1])
    c = np.ones((1, 1, 4), np.float32)
    apply(Op.RELU, b, b, c, Dtype.fp32)
    np.testing.assert_array_equal(c[0, 0], [0, np.nan, 2, 3])


@dataclass
class Layer:
    """One layer's attention over a cache, step by step."""

    attention: Attention
    dtype: Dtype
    seed: int = 0

    def __post_init__(self) -> None:
        self.state = SeqState(np, self.attention, self.attention.requests, self.seed)
        sizes = self.attention.page_tokens, self.attention.kv_heads, self.attention.head_dim
        self.pool = poisoned((1, self.attention.pages_total, 2, *sizes), self.dtype)

    def step(self, request: int, qkv: Any) -> dict[str, Any]:
        """Run a step of len(qkv) columns; return each op's output."""
        attention, n = self.attention, len(qkv)
        width, scores = attention.q_heads * attention.head_dim, attention.q_heads * attention.ctx
        slots = np.full((1, n), -7, np.int32)
        turned, raw, soft = (poisoned((1, n, size), self.dtype) for size in (qkv.shape[1], scores, scores))
        out = poisoned((1, n, width), self.dtype)

        def do(op: Op, a: Any, b: Any, c: Any) -> None:
            apply(op, a, b, c, self.dtype, Sequences([request], attention, self.state))

        do(Op.SLOT_MAP, slots, slots, slots)
        do(Op.ROPE, qkv[None], qkv[None], turned)
        do(Op.KV_WRITE, slots, turned, self.pool)
        do(Op.QK, self.pool, turned, raw)
        do(Op.SOFTMAX, raw, raw, soft)
        do(Op.AV, self.pool, soft, out)
        found = {"slots": slots, "turned": turned, "raw": raw, "soft": soft, "out": out}
        return {name: array[0] for name, array in found.items()}


def full_attention(attention: Attention, qkv: Floats) -> Floats:
    """Return the outputs of all tokens of a request, [tokens, q_heads * head_dim]. Complex numbers rotate pairs."""
    tokens, heads, dim = len(qkv), attention.q_heads + 2 * attention.kv_heads, attention.head_dim
    x = qkv.reshape(tokens, heads, 2, dim // 2)
    angles = np.outer(np.arange(tokens), attention.theta ** (-2 * np.arange(dim // 2) / dim))
    turned = (x[:, :, 0] + 1j * x[:, :, 1]) * np.exp(1j * angles)[:, None]
    q, k, _ = np.split(np.concatenate([turned.real, turned.imag], -1), [attention.q_heads, -attention.kv_heads], axis=1)
    v = x[:, -attention.kv_heads :].reshape(tokens, attention.kv_heads, dim)
    group = attention.q_heads // attention.kv_heads
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    scores = np.einsum("jhd,thd->hjt", q, k) / np.sqrt(dim)
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    result: Floats = np.einsum("hjt,thd->jhd", powers / powers.sum(-1, keepdims=True), v).reshape(tokens, -1)
    return result


@st.composite
def layers(draw: st.DrawFn) -> tuple[Layer, list[list[int]]]:
    """Draw a layer, and for each request the numbers of columns of its steps."""
    steps = draw(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=3))
    kv_heads, group, half = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    ctx = max(map(sum, steps)) + draw(st.integers(0, 3))
    shape = AttentionShape(kv_heads * group, kv_heads, 2 * half, ctx, draw(st.none() | st.integers(1, 7)), 500.0)
    return Layer(Attention.of(shape, len(steps)), draw(dtypes), draw(st.integers(0, 9))), steps


@properties
@given(layers())
def test_prompts_and_single_tokens_are_attention_over_the_whole_request(case: tuple[Layer, list[list[int]]]) -> None:
    layer, steps = case
    attention, dtype = layer.attention, layer.dtype
    width = (attention.q_heads + 2 * attention.kv_heads) * attention.head_dim
    generator = np.random.default_rng(len(steps))
    qkv = [stored(generator.standard_normal((sum(own), width)), dtype) for own in steps]
    found: list[list[Any]] = [[] for _ in steps]
    for step in range(max(map(len, steps))):
        for request, own in enumerate(steps):
            if step < len(own):
                first = sum(own[:step])
                found[request].append(layer.step(request, qkv[request][first : first + own[step]])["out"])
    for request, rows in enumerate(qkv):
        out = exact(np.concatenate(found[request]), dtype)
        expected = full_attention(attention, exact(rows, dtype))
        np.testing.assert_allclose(out, expected, rtol=0, atol=60 * dtype.unit_roundoff * np.abs(expected).max())
    assert layer.state.positions[1].tolist() == [sum(own) for own in steps]


@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
def test_what_a_column_does_not_see_is_not_touched(page: int | None, dtype: Dtype) -> None:
    layer = Layer(Attention.of(AttentionShape(4, 2, 6, 11, page), 3), dtype)
    generator = np.random.default_rng(3)
    for start, n in ((0, 5), (5, 1), (6, 3)):
        found = layer.step(1, stored(generator.standard_normal((n, 48)), dtype))
        for name in ("raw", "soft"):
            for j, row in enumerate(found[name].reshape(n, 4, 11)):
                seen = start + j + 1
                assert is_poison(row[:, seen:])
                assert np.isfinite(exact(row[:, :seen], dtype)).all()
        np.testing.assert_allclose(np.nansum(exact(found["soft"], dtype), axis=1), 4, rtol=0.02)
    pages = layer.pool[0, np.delete(np.arange(layer.attention.pages_total), layer.state.table[1])]
    assert is_poison(pages), "another request's pages"


def test_slots_follow_the_page_table() -> None:
    layer = Layer(Attention.of(AttentionShape(1, 1, 2, 10, 4), 5), Dtype.fp32, seed=7)
    table = layer.state.table
    assert sorted(table.reshape(-1).tolist()) == list(range(15))
    layer.step(3, np.ones((3, 6), np.float32))
    slots = layer.step(3, np.ones((4, 6), np.float32))["slots"]
    assert slots.tolist() == [4 * table[3, token // 4] + token % 4 for token in range(3, 7)]
    assert layer.state.positions[:, 3].tolist() == [3, 7]
    layer.state.reset()
    assert not layer.state.positions.any()
    assert layer.step(3, np.ones((1, 6), np.float32))["slots"][0] == 4 * table[3, 0]


def test_a_contiguous_cache_is_one_page_a_request_in_turn() -> None:
    layer = Layer(Attention.of(AttentionShape(1, 1, 2, 10), 5), Dtype.fp32, seed=7)
    assert layer.state.table.tolist() == [[0], [1], [2], [3], [4]]
    assert layer.step(2, np.ones((2, 6), np.float32))["slots"].tolist() == [20, 21]


def test_more_tokens_than_a_request_can_have_are_nowhere() -> None:
    layer = Layer(Attention.of(AttentionShape(2, 1, 2, 4), 2), Dtype.fp32)
    found = layer.step(0, np.ones((6, 8), np.float32))
    assert found["slots"].tolist() == [0, 1, 2, 3, -1, -1]
    np.testing.assert_allclose(found["out"], 1)
    assert is_poison(layer.pool[0, 1])


def test_a_request_that_does_not_exist_is_skipped() -> None:
    layer = Layer(Attention.of(AttentionShape(2, 1, 2, 4), 2), Dtype.fp32)
    found = layer.step(2, np.ones((1, 8), np.float32))
    assert found["slots"].tolist() == [-7]
    assert all(is_poison(found[name]) for name in ("turned", "raw", "soft", "out"))
    assert is_poison(layer.pool)
    assert not layer.state.positions.any()


def test_a_stack_of_commands_of_several_requests() -> None:
    attention = Attention.of(AttentionShape(2, 1, 4, 6), 3)
    one, many = Layer(attention, Dtype.fp32), Layer(attention, Dtype.fp32)
    qkv = np.random.default_rng(0).standard_normal((3, 2, 16)).astype(np.float32)
    slots, turned = np.zeros((3, 2), np.int32), np.zeros_like(qkv)
    common = (Dtype.fp32, Sequences([0, 1, 2], attention, many.state))
    apply(Op.SLOT_MAP, slots, slots, slots, *common)
    apply(Op.ROPE, qkv, qkv, turned, *common)
    apply(Op.KV_WRITE, slots, turned, many.pool.repeat(1, 0)[[0] * 3], *common)  # writes to a copy
    shared = np.lib.stride_tricks.as_strided(many.pool[0], (3, *many.pool.shape[1:]), (0, *many.pool.strides[1:]))
    apply(Op.KV_WRITE, slots, turned, shared, *common)
    for request in range(3):
        found = one.step(request, qkv[request])
        assert (found["slots"] == slots[request]).all()
        assert (found["turned"] == turned[request]).all()
    assert (one.pool.view(np.uint32) == many.pool.view(np.uint32)).all()

"""The configurations that are timed for a shape, and the operands of the timing: what holds for any shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.quantised import PACKINGS

from launchopt.command import Dtype, ShapeKey
from launchopt.devices.triton import tuning as tt
from launchopt.weights.packing import BLOCK, Packing, Scales

properties = settings(deadline=None, max_examples=100)
sizes = st.one_of(st.sampled_from([1, 7, 16, 64, 1000, 1024, 4096, 8192]), st.integers(1, 20_000))
shapes = st.builds(ShapeKey, sizes, st.integers(1, tt.MOST_COLUMNS), sizes, st.sampled_from(Dtype))
KIBI = 1 << 10


@properties
@given(shapes)
def test_configs_are_a_dozen_that_fit(shape: ShapeKey) -> None:
    found = tt.configs(shape)
    assert 1 <= len(found) <= 13
    assert len(set(found)) == len(found)
    for config in found:
        for size in (config.rows, config.depth):
            assert size == tt.power_of_two(size)
        least = tt.LEAST_DOT if config.dot else 1
        assert least <= config.rows <= max(least, tt.power_of_two(shape.m))
        assert least <= config.depth <= max(least, tt.power_of_two(shape.k))
        assert config.stages == 1 or config.depth < shape.k  # one block of k has no next one to load meanwhile
        if not config.dot:
            assert config.rows * config.depth * shape.n <= tt.MOST_SUMS * tt.WARP * config.warps


@properties
@given(st.sampled_from(PACKINGS), st.integers(1, 20_000), st.integers(1, tt.MOST_COLUMNS), st.sampled_from(Dtype))
def test_configs_of_quantised_weights_read_whole_blocks(packing: Packing, m: int, n: int, dtype: Dtype) -> None:
    found = tt.configs(ShapeKey(m, n, 1280, dtype, packing=packing))
    assert 1 <= len(found) == len(set(found)) <= 20
    assert any(config.dot for config in found) == (dtype is not Dtype.fp32)
    for config in found:
        assert config.depth == tt.power_of_two(config.depth)
        if config.dot:
            assert 1280 % config.depth == 0 or packing.scales is not Scales.block
            assert config.depth <= BLOCK or packing.scales is not Scales.block
            assert config.depth * packing.bits // 8 >= tt.LEAST_DOT


def test_what_was_best_on_an_h200_is_tried() -> None:
    micro, small, wide = (ShapeKey(m, 1, k, Dtype.fp32) for m, k in ((64, 8192), (256, 256), (1024, 1024)))
    assert tt.Config(1, 2048, 8, 1) in tt.configs(micro)
    assert tt.Config(2, 2048, 4, 1) in tt.configs(micro)
    assert tt.Config(64, 64, 4, 1) in tt.configs(small)
    assert tt.Config(16, 256, 4, 1) in tt.configs(small)
    assert tt.Config(4, 1024, 4, 1) in tt.configs(wide)


@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
def test_several_columns_are_tried_both_ways(dtype: Dtype) -> None:
    for n in (2, 5, 16):
        assert {config.dot for config in tt.configs(ShapeKey(1024, n, 1024, dtype))} == {False, True}
    assert not any(config.dot for config in tt.configs(ShapeKey(1024, 1, 1024, dtype)))


def test_one_command_or_many() -> None:
    assert tt.tuned_counts(1) == [1]
    assert tt.tuned_counts(512) == [1, 512]
    assert [tt.tuned_for(count, 512) for count in (1, 22, 23, 512)] == [1, 1, 512, 512]
    for limit in (1, 2, 3, 4, 16):
        assert {tt.tuned_for(count, limit) for count in range(1, limit + 1)} <= set(tt.tuned_counts(limit))


@properties
@given(
    st.integers(0, 1 << 20),
    st.integers(1, 64),
    st.integers(1, 3000),
    st.integers(0, 1 << 16),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 9),
)
def test_operands_stay_inside_and_apart(
    address: int, units: int, size: int, arena_bytes: int, shared: bool, count: int, turns: int
) -> None:
    slot, arena_bytes = 256 * units, max(arena_bytes, size)
    operand = tt.Operand.spread(address, arena_bytes, slot, size, shared)
    taken = [list(operand.taken(turn, count)) for turn in range(turns)]
    for given_out in {first for addresses in taken for first in addresses}:
        assert address <= given_out <= address + arena_bytes - size
        assert (given_out - address) % slot == 0
    if shared:
        assert all(len(set(addresses)) == 1 for addresses in taken)
    in_order = [first for addresses in taken for first in (addresses[:1] if shared else addresses)]
    once = in_order[: operand.slots]
    assert len(set(once)) == len(once)  # no operand is used twice before all were used
    assert np.all(np.diff(sorted(once)) >= size)


def test_tables_hold_a_then_b_then_c_of_each_launch() -> None:
    a, b, c = tt.Operand(1000, 10, 3), tt.Operand(2000, 20, 100, shared=True), tt.Operand(3000, 30, 2)
    assert tt.pointer_tables((a, b, c), 2, 2).tolist() == [
        [[1000, 1010], [2000, 2000], [3000, 3030]],
        [[1020, 1000], [2020, 2020], [3000, 3030]],
    ]


def test_outputs_of_a_chain_need_room_for_their_rows() -> None:
    shape = ShapeKey(100, 3, 64, Dtype.fp32)
    assert tt.scratch_bytes(shape, 100, 2) == 2 * 1280  # 1200, in whole units
    assert tt.scratch_bytes(shape, 128, 2) == 2 * 1536  # two rows of 512, and 400
    assert tt.scratch(64, shape, 128, 2) == tt.Operand(64, 1536, 2)


def test_time_of_tuning_is_bounded() -> None:
    large, small = ShapeKey(4096, 1, 4096, Dtype.fp32), ShapeKey(64, 1, 64, Dtype.fp16)
    assert tt.turns(small, 1) == tt.TURNS
    assert tt.turns(large, 512) == tt.LEAST_TURNS
    assert tt.turns(large, 8) * 8 * large.bytes <= tt.TIMED_BYTES

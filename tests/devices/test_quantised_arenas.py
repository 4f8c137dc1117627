"""Arenas of quantised weights: what the seed gives, what the check of operands finds, and what weights stand for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.quantised import PACKINGS

from launchopt.command import Dtype
from launchopt.devices.arenas import Arenas
from launchopt.streams.operands import ArenaKey
from launchopt.types import Array
from launchopt.verify.operands import OperandCheck
from launchopt.weights.packing import Packing, Scales, WeightFormat
from launchopt.weights.quantiser import quantised

SEED, SLOTS = 7, 9


def filled(packing: Packing, dtype: Dtype = Dtype.bf16, rows: int = 130, cols: int = 256) -> tuple[Arenas, ArenaKey]:
    key = ArenaKey("a", rows, cols, dtype, packing)
    arenas = Arenas(np, {key: SLOTS, ArenaKey("c", 33, 1, dtype): 5})
    arenas.fill(SEED)
    arenas.poison()
    return arenas, key


@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_the_seed_gives_the_weights_of_a_run_without_quantisation_rounded(packing: Packing, dtype: Dtype) -> None:
    arenas, key = filled(packing, dtype)
    plain = Arenas(np, {key.plain: SLOTS, ArenaKey("c", 33, 1, dtype): 5})
    plain.fill(SEED)
    weights = plain.matrices(key.plain, np.arange(SLOTS))
    expected = quantised(np, weights, packing)
    np.testing.assert_array_equal(arenas.arrays[key][:, : expected.shape[1]], expected)
    step = 2 * packing.unit_roundoff * np.abs(weights).max()
    assert np.abs(arenas.matrices(key, np.arange(SLOTS)) - weights).max() <= step


def test_weights_do_not_depend_on_how_many_are_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = Packing(WeightFormat.int4, Scales.block)
    whole, key = filled(packing)
    for chunk in (1000, 130 * 256, 100_000):  # less than a slot, a slot, and two that end within a chunk
        monkeypatch.setattr("launchopt.devices.arenas.CHUNK_ELEMENTS", chunk)
        parts, _ = filled(packing)
        np.testing.assert_array_equal(parts.arrays[key], whole.arrays[key])


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_quantised_operands_pass_the_check_again_and_again(packing: Packing) -> None:
    check = OperandCheck(filled(packing)[0], SEED)
    assert [check.fault() for _ in range(3)] == [None] * 3


def a_code(slots: Array, key: ArenaKey) -> None:
    slots[3, 77] ^= 0x10


def a_scale(slots: Array, key: ArenaKey) -> None:
    slots[3, key.packing.scales_at(key.rows, key.cols) + 1] ^= 0x01


@pytest.mark.parametrize("change", [a_code, a_scale])
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_a_changed_code_or_scale_is_found(packing: Packing, change: Callable[[Array, ArenaKey], None]) -> None:
    arenas, key = filled(packing)
    check = OperandCheck(arenas, SEED)
    assert check.fault() is None
    change(arenas.arrays[key], key)
    assert check.fault() == (
        f"operands are not what the seed gives: 1 values of weights 130x256 {packing} from slot 3 on"
    )


def test_a_generator_that_gives_no_random_weights_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    arenas, key = filled(Packing(WeightFormat.int4, Scales.block))
    zeros = quantised(np, np.zeros((SLOTS, 130, 256), np.float32), key.packing, np.empty_like(arenas.arrays[key]))
    arenas.arrays[key][...] = zeros
    monkeypatch.setattr(arenas, "expected", lambda *_: [(slice(0, zeros.size), zeros.reshape(-1))])
    assert "operands are not random" in str(OperandCheck(arenas, SEED).fault())

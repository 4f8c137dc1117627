"""Arenas hold what the seed gives as soon as `fill` returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cuda.fake_cupy import FakeCupy

from launchopt.command import Dtype
from launchopt.devices.arenas import POISON_BYTE, Arenas
from launchopt.streams.operands import ArenaKey


@pytest.mark.parametrize("dtype", list(Dtype), ids=lambda dtype: dtype.name)
def test_on_a_gpu_fill_waits_for_all_inputs(dtype: Dtype) -> None:
    cupy: Any = FakeCupy()
    arenas = Arenas(cupy, {ArenaKey(role, 8, 16, dtype): 4 for role in "abc"})
    for array in arenas.arrays.values():
        array.view(np.uint8).fill(POISON_BYTE)
    written = [flat for _, flat in arenas.inputs()]
    waits = []
    cupy.on_wait = lambda: waits.append([(flat.view(np.uint8) == POISON_BYTE).all() for flat in written])
    arenas.fill(seed=3)
    assert waits == [[False, False]], "one wait, behind the last write"

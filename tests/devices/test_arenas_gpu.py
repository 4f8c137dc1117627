"""Arenas of a GPU hold what the seed gives as soon as `fill` returns, whatever other streams then write elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from launchopt.command import Dtype
from launchopt.devices.arenas import Arenas
from launchopt.streams.operands import ArenaKey
from launchopt.verify.operands import OperandCheck

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

WEIGHTS = ArenaKey("a", 64, 8192, Dtype.fp32)
SLOTS = 512  # 1 GiB, so that the GPU is still filling when the last launch has been submitted
DROPPED_BYTES = 2048  # small enough to fit into whatever the generator of random values leaves behind


def test_what_another_stream_writes_into_new_memory_right_after_fill_changes_no_operand() -> None:
    other = cupy.cuda.Stream(non_blocking=True)
    arenas = Arenas(cupy, {WEIGHTS: SLOTS})
    arenas.fill(seed=7)
    taken = [cupy.empty(DROPPED_BYTES, np.uint8) for _ in range(512)]
    for each in taken:
        each.data.memset_async(0xFF, each.nbytes, other)
    cupy.cuda.Device().synchronize()
    assert OperandCheck(arenas, seed=7).fault() is None

"""The stand-in for a GPU's memory knows where each array ends, also while several threads allocate."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from support.cuda.fake_memory import allocated, require_inside

THREADS, ROUNDS = 8, 1000


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Collect garbage and change threads as often as Python allows."""
    interval, *thresholds = sys.getswitchinterval(), *gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


class Cycle:
    """An object that only the garbage collector frees, which runs Python code then."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        """Give another thread the time to run."""
        for _ in range(20):
            pass


@pytest.mark.usefixtures("many_switches")
def test_threads_check_operands_while_others_allocate() -> None:
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for size in rng.integers(1, 400, ROUNDS).tolist():
            kept = [allocated(np.zeros(size)) for _ in range(10)]
            Cycle()
            require_inside(kept[0].ctypes.data, kept[0].nbytes)

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(work, range(THREADS))) == [None] * THREADS


def test_an_operand_that_reaches_beyond_its_memory_is_named() -> None:
    array = allocated(np.zeros(8))
    require_inside(array.ctypes.data + 8, 56)
    with pytest.raises(AssertionError, match="an operand of 64 bytes ends 8 bytes behind its memory"):
        require_inside(array.ctypes.data + 8, 64)

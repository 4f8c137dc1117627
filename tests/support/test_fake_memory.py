"""The stand-in for a GPU's memory knows where each array ends, also while another thread allocates."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from support.cuda.fake_memory import OnGpu, allocated, require_inside


@pytest.fixture
def allocating() -> Iterator[list[OnGpu]]:
    """Allocate whenever garbage is collected, as another thread may, which runs then; collect all the time."""
    made, thresholds = list[OnGpu](), gc.get_threshold()

    def allocate(phase: str, info: dict[str, int]) -> None:
        made.append(allocated(np.zeros(1)))

    gc.callbacks.append(allocate)
    gc.set_threshold(1)
    yield made
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(allocate)


def test_operands_are_checked_while_another_thread_allocates(allocating: list[OnGpu]) -> None:
    known = [allocated(np.zeros(size)) for size in range(1, 100)]
    before, kept = len(allocating), list[list[int]]()
    for array in known:
        kept.append([array.size])  # so that garbage is collected: what is freed at once does not count
        require_inside(array.ctypes.data, array.nbytes)
    assert len(allocating) > before


def test_an_operand_that_reaches_beyond_its_memory_is_named() -> None:
    array = allocated(np.zeros(8))
    require_inside(array.ctypes.data + 8, 56)
    with pytest.raises(AssertionError, match="an operand of 64 bytes ends 8 bytes behind its memory"):
        require_inside(array.ctypes.data + 8, 64)

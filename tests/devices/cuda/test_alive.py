"""When the loop asks whether a device is alive (seldom, and only if a step takes long), and how it asks CUDA."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cuda.fake_cuda import fake_cuda

from launchopt.devices.feedback.landing import QUIET_NS, FlightWord, is_quiet

START_NS = 10**15
NEARLY_NS = QUIET_NS - 1


def cursor_of(landed: int, took_off: int) -> NDArray[np.int64]:
    return np.array([landed, took_off, 0, 0], np.int64)


def test_it_is_asked_after_long_silence_and_not_again_at_once() -> None:
    cursor = cursor_of(0, 1)
    now_ns, results = START_NS, []
    for _ in range(6):
        results.append(is_quiet(now_ns, 5, cursor))
        now_ns += QUIET_NS // 2
    assert results == [False, False, True, False, True, False]


@pytest.mark.parametrize(("landed", "launches"), [(1, 5), (0, 6)], ids=["a step landed", "something was launched"])
def test_whatever_happens_ends_the_silence(landed: int, launches: int) -> None:
    cursor = cursor_of(0, 2)
    assert not is_quiet(START_NS, 5, cursor)
    cursor[FlightWord.FIRST] += landed
    assert not is_quiet(START_NS + QUIET_NS, launches, cursor)
    assert not is_quiet(START_NS + QUIET_NS + NEARLY_NS, launches, cursor)
    assert is_quiet(START_NS + 2 * QUIET_NS, launches, cursor)


def test_nobody_asks_while_nothing_is_under_way() -> None:
    cursor = cursor_of(3, 3)
    for wait in range(4):
        assert not is_quiet(START_NS + wait * QUIET_NS, 5, cursor)
    cursor[FlightWord.STOP_AT] += 1
    assert not is_quiet(START_NS + 3 * QUIET_NS + NEARLY_NS, 5, cursor), "silence begins when a step takes off"


@pytest.mark.parametrize(("status", "is_lost"), [(0, False), (600, False), (700, True), (719, True)])
def test_cuda_is_asked_without_waiting(status: int, is_lost: bool) -> None:
    """CuPy's `streamQuery` returns CUDA's status at once and raises nothing; only a lost GPU is an error."""
    with fake_cuda() as device:
        runtime = device.cupy.cuda.runtime
        runtime.streamQuery = {device.stream.ptr: status}.__getitem__
        device.marks = SimpleNamespace(resident=None, ahead=None)
        if not is_lost:
            device.check_alive()
            return
        with pytest.raises(runtime.CUDARuntimeError) as caught:
            device.check_alive()
        assert caught.value.status == status

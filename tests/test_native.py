"""What compiled code reaches by hand: the clock, the atomics, a call by address."""

from __future__ import annotations

import ctypes
import platform
import re
import threading
import time
from typing import Any

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError
from numpy.typing import NDArray

from launchopt.native import (
    call_matmul,
    call_words,
    compiled,
    cpu_pause,
    load_acquire,
    load_word,
    monotonic_ns,
    store_fence,
    store_release,
    store_word,
)

MATMUL = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 16)


@compiled
def clock() -> int:
    cpu_pause()
    return int(monotonic_ns())


@compiled
def load(array: NDArray[np.uint64], index: int) -> Any:
    return load_acquire(array, index)


@compiled
def store(array: NDArray[np.uint64], index: int, value: np.uint64) -> None:
    store_release(array, index, value)


@compiled
def matmul(address: int, arguments: Any) -> Any:
    return call_matmul(address, arguments)


@compiled
def words(address: int, arguments: Any) -> Any:
    return call_words(address, arguments)


@compiled
def write(address: int, value: Any) -> None:
    store_word(address, value)


@compiled
def store_both(array: NDArray[np.uint64], first: np.uint64, second: np.uint64) -> None:
    array[0] = first
    store_fence()
    array[1] = second
    store_fence()


@compiled
def read(address: int) -> Any:
    return load_word(address)


@compiled
def await_change(address: int, before: int) -> Any:
    while load_word(address) == before:
        cpu_pause()
    return load_word(address)


def test_clock_is_pythons() -> None:
    clock()
    before_ns = time.monotonic_ns()
    read_ns = clock()
    after_ns = time.monotonic_ns()
    assert before_ns <= read_ns <= after_ns


@pytest.mark.parametrize("step", [1, 3])
def test_atomics_touch_the_element_named_and_no_other(step: int) -> None:
    """Also where the array is a strided view."""
    memory = np.arange(100, 100 + 5 * step, dtype=np.uint64)
    array = memory[::step]
    expected = memory.copy()
    for index in range(5):
        assert load(array, index) == 100 + index * step
        value = np.uint64(2**63 + index)
        store(array, index, value)
        expected[index * step] = value
        assert memory.tolist() == expected.tolist()
        assert load(array, index) == value


@pytest.mark.parametrize("status", [0, 7, -1])
def test_matmul_is_called_with_its_arguments_in_order(status: int) -> None:
    calls: list[tuple[int, ...]] = []

    def record(*arguments: int) -> int:
        calls.append(arguments)
        return status

    callback = MATMUL(record)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    sent = tuple((i + 1) * 0x0123_4567_89AB * (-1) ** i for i in range(16))
    assert matmul(address, sent) == status
    assert calls == [sent]


def test_matmul_takes_16_arguments() -> None:
    with pytest.raises(TypingError):
        matmul(1, (1,) * 15)


@pytest.mark.parametrize("status", [0, 700, -1])
@pytest.mark.parametrize("count", [1, 4, 20])
def test_a_function_of_words_is_called_with_them_in_order(count: int, status: int) -> None:
    calls: list[tuple[int, ...]] = []

    def record(*arguments: int) -> int:
        calls.append(arguments)
        return status

    callback = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * count)(record)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    sent = tuple((i + 1) * 0x0123_4567_89AB * (-1) ** i for i in range(count))
    assert words(address, sent) == status
    assert calls == [sent]


@pytest.mark.parametrize("value", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_a_word_is_written_where_it_is_to_be_and_nowhere_else(value: int) -> None:
    memory = np.full(3, 7, np.int64)
    write(memory.ctypes.data + 8, value)
    assert memory.tolist() == [7, value, 7]
    write(memory.ctypes.data + 8, np.int32(value % 1000))
    assert memory.tolist() == [7, value % 1000, 7]


@pytest.mark.parametrize("value", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_a_word_is_read_from_where_it_is(value: int) -> None:
    memory = np.array([7, value, 9], np.int64)
    assert [read(memory.ctypes.data + 8 * i) for i in range(3)] == memory.tolist()


def test_a_word_that_others_write_is_read_anew() -> None:
    """A loop around it ends; the compiler may not read once and go on with that."""
    memory, found = np.array([5], np.int64), list[int]()
    await_change(memory.ctypes.data, 6)  # compiled, before another thread is to change it
    waiter = threading.Thread(target=lambda: found.append(await_change(memory.ctypes.data, 5)), daemon=True)
    waiter.start()
    memory[0] = -3
    waiter.join(60)
    assert found == [-3]


def test_stores_before_a_fence_and_after_it_arrive() -> None:
    """It has no value and takes none."""
    memory = np.full(3, 7, np.uint64)
    for i in range(100):
        store_both(memory, np.uint64(i), np.uint64(2**64 - 1 - i))
        assert memory.tolist() == [i, 2**64 - 1 - i, 7]


def test_a_fence_of_this_machine() -> None:
    """x86 code has a fence of stores, for memory that combines writes; other machines have a full fence."""
    anew = njit(store_both.py_func)  # type: ignore[attr-defined]  # machine code of the cache cannot be looked at
    anew(np.zeros(3, np.uint64), np.uint64(1), np.uint64(2))
    (code,) = anew.inspect_asm().values()
    if platform.machine() == "x86_64":
        assert len(re.findall(r"\bsfence\b", code)) >= 2


@pytest.mark.parametrize("stores", [1, 3, 1000])
def test_what_is_stored_before_a_fence_is_seen_before_what_comes_after_it(stores: int) -> None:
    """By another thread: who sees the second word sees the first one of the same round, or a later one."""
    memory = np.zeros(3, np.uint64)
    store_both(memory, np.uint64(0), np.uint64(0))
    load(memory, 1)

    def go_on() -> None:
        for i in range(1, stores + 1):
            store_both(memory, np.uint64(i), np.uint64(i))

    writer = threading.Thread(target=go_on, daemon=True)
    writer.start()
    seen = 0
    until_s = time.monotonic() + 60
    while seen < stores and time.monotonic() < until_s:
        seen = int(load(memory, 1))
        assert int(load(memory, 0)) >= seen
    writer.join(60)
    assert seen == stores

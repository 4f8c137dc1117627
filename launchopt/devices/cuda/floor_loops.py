"""Compiled loops for measuring floors: bursts of one call, of one launch, and launches one by one.

In: addresses of C functions, or a context and a plan of `lt_launch`. Out: CLOCK_MONOTONIC ns. No Python runs between
two calls. A burst is to be shorter than the queue of a GPU, or it waits there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cfunc, types
from numpy.typing import NDArray

from launchopt.devices.cublaslt.launch import KERNEL_STATUS, OK, STREAM, launch
from launchopt.native import call_words, compiled, monotonic_ns
from launchopt.types import Int, Table

Words = tuple[Int, ...]


@compiled
def call_burst(function: Int, arguments: Words, count: Int) -> tuple[Int, Int]:
    """ns that `count` calls of a C function took, and 0; or 0, and the first status that is not 0."""
    start_ns = monotonic_ns()
    for _ in range(count):
        status = call_words(function, arguments)
        if status != OK:
            return 0, np.int64(status)
    return monotonic_ns() - start_ns, np.int64(OK)


@compiled
def launch_burst(context: Table, plan: Table, operands: Table, count: Int) -> tuple[Int, Int]:
    """The same for launches; operands: A, B, C and the fourth parameter of a kernel."""
    start_ns = monotonic_ns()
    for _ in range(count):
        status = launch(context, plan, operands[0], operands[1], operands[2], operands[3])
        if status != OK:
            return 0, np.int64(status)
    return monotonic_ns() - start_ns, np.int64(OK)


@compiled
def lone_launches(context: Table, plan: Table, operands: Table, synchronize: Int, times: NDArray[np.int64]) -> Int:
    """A launch for each row of `times`, each waited for by the C function `synchronize`; returns the first bad status.

    times [launches, 3]: before the launch, after its call, and when its result was known.
    """
    for i in range(len(times)):
        times[i, 0] = monotonic_ns()
        status = np.int64(launch(context, plan, operands[0], operands[1], operands[2], operands[3]))
        times[i, 1] = monotonic_ns()
        if status == OK:
            status = np.int64(KERNEL_STATUS * call_words(synchronize, (context[STREAM],)))
        times[i, 2] = monotonic_ns()
        if status != OK:
            return status
    return np.int64(OK)


@compiled
def clock_burst(count: Int) -> Int:
    """ns that reading the clock `count` times took."""
    start_ns = monotonic_ns()
    last_ns = start_ns
    for _ in range(count):
        last_ns = monotonic_ns()
    return last_ns - start_ns


@cache
def _empty() -> Any:
    def nothing() -> int:
        return 0

    return cfunc(types.int32())(nothing)


def empty_function() -> int:
    """Address of a C function that does nothing and returns 0, whatever it is called with."""
    return int(_empty().address)

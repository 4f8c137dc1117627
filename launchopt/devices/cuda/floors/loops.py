"""Compiled loops that measure floors: bursts of calls or launches, and launches with a wait after each.

They take addresses of C functions, or a context and a plan (devices.cublaslt.launch). Times are CLOCK_MONOTONIC ns. No
Python runs between two calls. A burst must have fewer launches than a GPU's launch queue holds, or the host would wait.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cfunc, types

from launchopt.devices.cublaslt.launch import KERNEL_STATUS, OK, launch
from launchopt.devices.cublaslt.launch_tables import ContextWord
from launchopt.devices.launch_breakdown import LaunchTime
from launchopt.native import call_words, compiled, monotonic_ns
from launchopt.types import Int, Table

Arguments = tuple[Int, ...]


@compiled
def call_burst(function: Int, arguments: Arguments, count: Int) -> tuple[Int, Int]:
    """Call a C function `count` times. Return the total ns and OK, or 0 and the first status that is not OK."""
    start_ns = monotonic_ns()
    for _ in range(count):
        status = call_words(function, arguments)
        if status != OK:
            return 0, np.int64(status)
    return monotonic_ns() - start_ns, np.int64(OK)


@compiled
def launch_burst(context: Table, plan: Table, operands: Table, count: Int) -> tuple[Int, Int]:
    """Launch `count` times. Return the total ns and OK, or 0 and the first status that is not OK.

    operands: A, B, C and the request.
    """
    start_ns = monotonic_ns()
    for _ in range(count):
        status = launch(context, plan, operands[0], operands[1], operands[2], operands[3])
        if status != OK:
            return 0, np.int64(status)
    return monotonic_ns() - start_ns, np.int64(OK)


@compiled
def lone_launches(context: Table, plan: Table, operands: Table, synchronize: Int, times: Table) -> Int:
    """Launch once per row of `times`, and wait for each launch; return the first status that is not OK, else OK.

    times: [launches, LaunchTime], to fill in. synchronize: address of cuStreamSynchronize.
    """
    for i in range(len(times)):
        times[i, LaunchTime.ENTERED_NS] = monotonic_ns()
        status = np.int64(launch(context, plan, operands[0], operands[1], operands[2], operands[3]))
        times[i, LaunchTime.RETURNED_NS] = monotonic_ns()
        if status == OK:
            status = np.int64(KERNEL_STATUS * call_words(synchronize, (context[ContextWord.STREAM],)))
        times[i, LaunchTime.KNOWN_NS] = monotonic_ns()
        if status != OK:
            return status
    return np.int64(OK)


@compiled
def clock_burst(count: Int) -> Int:
    """Return the total ns of `count` readings of CLOCK_MONOTONIC."""
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
    """Return the address of a C function that ignores its arguments and returns 0."""
    return int(_empty().address)

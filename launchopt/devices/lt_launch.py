"""Compiled loops over `cublasLtMatmul`: what one launch costs here is what it costs a C program.

The loops read command records, look their operands' addresses up, call the library through its address, take
the time before and after, and note both. No Python runs between two launches. Tables are int64:

    shapes[shape]   addresses of the three arenas, bytes a slot, slots a move, first row of the shape's plans
    plans[row]      cuBLASLt objects for one batch size: description, layouts of A, B and C, algorithm, workspace
    context         what all launches share: function, handle, scalars, workspace, stream
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.devices.runs import run_end, slots_of
from launchopt.native import Int, call_matmul, compiled, monotonic_ns
from launchopt.recorder import LaunchFacts, note

# Columns of `shapes`. For a packed batch the bases are the scratch's, and the slots 0.
BASE_A, BASE_B, BASE_C, BYTES_A, BYTES_B, BYTES_C, MOVE_A, MOVE_B, MOVE_C, PLAN0, PACKED0 = range(11)
SHAPE_COLUMNS = 11
# Columns of `plans`.
DESCRIPTION, LAYOUT_A, LAYOUT_B, LAYOUT_C, ALGORITHM, WORKSPACE_BYTES = range(6)
PLAN_COLUMNS = 6
# Words of `context`.
FUNCTION, HANDLE, ALPHA, BETA, WORKSPACE, STREAM = range(6)
CONTEXT_WORDS = 6

SINGLE, STRIDED = 0, 1  # recorder.Strategy, as plain integers for compiled code
OK, TOO_MANY_LAUNCHES = 0, -1

Table = NDArray[np.int64]


@compiled
def matmul(context: Table, plans: Table, row: int, a: int, b: int, c: int) -> Int:
    """C = A @ B by the plan in `row`; returns cuBLASLt's status."""
    plan = plans[row]
    return call_matmul(
        context[FUNCTION],
        (
            context[HANDLE],
            plan[DESCRIPTION],
            context[ALPHA],
            a,
            plan[LAYOUT_A],
            b,
            plan[LAYOUT_B],
            context[BETA],
            c,
            plan[LAYOUT_C],
            c,
            plan[LAYOUT_C],
            plan[ALGORITHM],
            context[WORKSPACE],
            plan[WORKSPACE_BYTES],
            context[STREAM],
        ),
    )


@compiled
def launch_bare(words: NDArray[np.uint64], shape_index: int, tables: tuple[Table, Table, Table]) -> Int:
    """The floor: one launch for each of `words`, nothing timed or noted. What a tight C loop costs."""
    shapes, plans, context = tables
    shape = shapes[shape_index]
    for i in range(len(words)):
        slot_a, slot_b, slot_c = slots_of(words, i)
        a = shape[BASE_A] + slot_a * shape[BYTES_A]
        b = shape[BASE_B] + slot_b * shape[BYTES_B]
        c = shape[BASE_C] + slot_c * shape[BYTES_C]
        status = matmul(context, plans, shape[PLAN0] + 1, a, b, c)
        if status != OK:
            return status
    return OK


@compiled
def launch_each(
    words: NDArray[np.uint64],
    shape_of: NDArray[np.int32],
    first: int,
    stop: int,
    tables: tuple[Table, Table, Table],
    records: tuple[Table, Table, Table],
    batch: int,
    reason: int,
    flush_ns: int,
) -> Int:
    """One launch for each of words[first:stop]; returns the first status that is not 0."""
    shapes, plans, context = tables
    launches, commands, cursor = records
    for i in range(first, stop):
        shape = shapes[shape_of[i]]
        slot_a, slot_b, slot_c = slots_of(words, i)
        start_ns = monotonic_ns()
        status = matmul(
            context,
            plans,
            shape[PLAN0] + 1,
            shape[BASE_A] + slot_a * shape[BYTES_A],
            shape[BASE_B] + slot_b * shape[BYTES_B],
            shape[BASE_C] + slot_c * shape[BYTES_C],
        )
        end_ns = monotonic_ns()
        if status != OK:
            return status
        what: LaunchFacts = (batch + i, int(shape_of[i]), SINGLE, reason, flush_ns)
        note(launches, commands, cursor, words, i, i + 1, what, start_ns, end_ns)
    return OK


@compiled
def launch_run(
    words: NDArray[np.uint64],
    shape_index: int,
    first: int,
    stop: int,
    tables: tuple[Table, Table, Table],
    records: tuple[Table, Table, Table],
    batch: int,
    reason: int,
    flush_ns: int,
) -> Int:
    """One launch for words[first:stop], which lie evenly spaced; returns its status."""
    shapes, plans, context = tables
    launches, commands, cursor = records
    shape = shapes[shape_index]
    slot_a, slot_b, slot_c = slots_of(words, first)
    start_ns = monotonic_ns()
    status = matmul(
        context,
        plans,
        shape[PLAN0] + (stop - first),
        shape[BASE_A] + slot_a * shape[BYTES_A],
        shape[BASE_B] + slot_b * shape[BYTES_B],
        shape[BASE_C] + slot_c * shape[BYTES_C],
    )
    end_ns = monotonic_ns()
    strategy = SINGLE if stop - first == 1 else STRIDED
    what: LaunchFacts = (batch, int(shape_index), strategy, reason, flush_ns)
    note(launches, commands, cursor, words, first, stop, what, start_ns, end_ns)
    return status


@compiled
def count_runs(words: NDArray[np.uint64], shape_index: int, shapes: Table, most: int) -> Int:
    """How many evenly spaced runs `words` is made of; stops counting past `most`."""
    shape = shapes[shape_index]
    runs, first = 0, 0
    while first < len(words) and runs <= most:
        first = run_end(words, first, shape[MOVE_A], shape[MOVE_B], shape[MOVE_C])
        runs += 1
    return runs


@compiled
def launch_strided(
    words: NDArray[np.uint64],
    shape_index: int,
    most: int,
    tables: tuple[Table, Table, Table],
    records: tuple[Table, Table, Table],
    batch: int,
    reason: int,
    flush_ns: int,
) -> Int:
    """One launch a run; TOO_MANY_LAUNCHES, with nothing launched, where that takes more than `most`."""
    shapes = tables[0]
    if most < len(words) and count_runs(words, shape_index, shapes, most) > most:
        return TOO_MANY_LAUNCHES
    shape = shapes[shape_index]
    first = 0
    while first < len(words):
        stop = run_end(words, first, shape[MOVE_A], shape[MOVE_B], shape[MOVE_C])
        status = launch_run(words, shape_index, first, stop, tables, records, batch, reason, flush_ns)
        if status != OK:
            return status
        first = stop
    return OK

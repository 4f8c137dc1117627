"""Compiled loops over `cublasLtMatmul` and `cuLaunchKernelEx`: what one launch costs here it costs a C program.

The loops read command records, look their operands' addresses up, call the library through its address, take
the time before and after, and note both. No Python runs between two launches. Tables are int64:

    shapes[shape]     addresses of the three arenas, bytes a slot, slots a move, first row of the shape's plans
    plans[row]        what launches one batch size: cuBLASLt's description, layouts of A, B and C, algorithm and
                      workspace; or (KIND is KERNEL) a launch configuration, a function, its parameters; or
                      (RESIDENT) the queue of a kernel that runs already: nothing is launched then
    contexts[stream]  what all launches of a stream share: functions, handle, scalars, workspace, stream
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import W_SLOT_C_REQUEST
from launchopt.devices.resident.ring import post
from launchopt.devices.runs import HIGH, run_end, slots_of
from launchopt.native import call_matmul, call_words, compiled, monotonic_ns, store_fence, store_word
from launchopt.recording.recorder import LaunchFacts, note
from launchopt.types import Int, Table

# Columns of `shapes`. For a packed batch the bases are the scratch's, and the slots 0.
BASE_A, BASE_B, BASE_C, BYTES_A, BYTES_B, BYTES_C, MOVE_A, MOVE_B, MOVE_C, PLAN0, PACKED0 = range(11)
ONE_IS, MANY_ARE = range(11, 13)  # recorder.Strategy of a launch of one command, and of several
SHAPE_COLUMNS = 13
# Columns of `plans`, of a GEMM.
DESCRIPTION, LAYOUT_A, LAYOUT_B, LAYOUT_C, ALGORITHM, WORKSPACE_BYTES, KIND = range(7)
PLAN_COLUMNS = 7
MATMUL, KERNEL, RESIDENT = range(3)  # KIND
# Columns of `plans`, of a kernel: addresses of its CUlaunchConfig, of the array of pointers to its parameters, and of
# the first four of these (A, B, C, request), which are written before each launch.
CONFIG, KERNEL_FUNCTION, PARAMETERS, OPERANDS = range(4)
# Columns of `plans`, of what a resident kernel does: address of its queue, the shape's number there, whether A and B
# change places.
QUEUE, NUMBER, SWAPPED = range(3)
CONFIG_STREAM_BYTES = 32  # of CUlaunchConfig.hStream, behind seven unsigned ints (cuda.h)
# Words of a context.
FUNCTION, HANDLE, ALPHA, BETA, WORKSPACE, STREAM, LAUNCH_FUNCTION = range(7)
CONTEXT_WORDS = 7

SINGLE, STRIDED = 0, 1  # recorder.Strategy, as plain integers for compiled code
OK, TOO_MANY_LAUNCHES = 0, -1
KERNEL_STATUS = 1 << 16  # what a kernel launch returns is multiplied by this, to be told from cuBLASLt's
MOST_POSTED = 64  # commands timed and noted together: to post one takes a fraction of two looks at the clock


class LaunchTables(NamedTuple):
    """The tables that launches work from."""

    shapes: Table
    plans: Table
    contexts: Table


class Flush(NamedTuple):
    """What the launches of one batch have in common in the recording."""

    batch: Int  # its number
    reason: Int  # FlushReason
    flush_ns: Int


TableArrays = tuple[Table, Table, Table]  # the fields of LaunchTables, as Python passes them
FlushFields = tuple[int, int, int]  # the fields of Flush, likewise


@compiled
def launch(context: Table, plan: Table, a: Int, b: Int, c: Int, request: Int) -> Int:
    """C from A and B by `plan`, one row of `plans`, in a context; returns the library's status.

    `request`: whose command it is, or the first of those in a batch (only kernels look at it).
    """
    if plan[KIND] == RESIDENT:
        if plan[SWAPPED] != 0:
            return post(plan[QUEUE], b, a, c, request, plan[NUMBER])
        return post(plan[QUEUE], a, b, c, request, plan[NUMBER])
    if plan[KIND] == KERNEL:
        store_word(plan[CONFIG] + CONFIG_STREAM_BYTES, context[STREAM])
        store_word(plan[OPERANDS], a)
        store_word(plan[OPERANDS] + 8, b)
        store_word(plan[OPERANDS] + 16, c)
        store_word(plan[OPERANDS] + 24, request)
        arguments = (plan[CONFIG], plan[KERNEL_FUNCTION], plan[PARAMETERS], np.int64(0))
        return KERNEL_STATUS * call_words(context[LAUNCH_FUNCTION], arguments)
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
def launch_at(words: NDArray[np.uint64], i: int, shape: Table, size: int, plans: Table, contexts: Table) -> Int:
    """Launch words[i] and the `size` - 1 that follow it evenly spaced, on the stream of its request."""
    slot_a, slot_b, slot_c = slots_of(words, i)
    request = np.int64(words[i, W_SLOT_C_REQUEST] >> HIGH)
    return launch(
        contexts[request & (len(contexts) - 1)],
        plans[shape[PLAN0] + size],
        shape[BASE_A] + slot_a * shape[BYTES_A],
        shape[BASE_B] + slot_b * shape[BYTES_B],
        shape[BASE_C] + slot_c * shape[BYTES_C],
        request,
    )


@compiled
def launch_bare(words: NDArray[np.uint64], shape_index: int, tables: Any) -> Int:
    """The floor: one launch for each of `words`, nothing timed or noted. What a tight C loop costs."""
    shapes, plans, contexts = tables
    shape = shapes[shape_index]
    for i in range(len(words)):
        status = launch_at(words, i, shape, 1, plans, contexts)
        if status != OK:
            return status
    return OK


@compiled
def _end_of_block(shape_of: NDArray[np.int32], first: int, stop: int, shapes: Table, plans: Table) -> Int:
    """Where those end that are noted together with `first`: of its shape, if a resident kernel takes them; or alone."""
    end = first + 1
    if plans[shapes[shape_of[first], PLAN0] + 1, KIND] == RESIDENT:
        while end < min(stop, first + MOST_POSTED) and shape_of[end] == shape_of[first]:
            end += 1
    return end


@compiled
def launch_each(
    words: NDArray[np.uint64],
    shape_of: NDArray[np.int32],
    first: int,
    stop: int,
    tables: Any,
    recording: Any,
    flush: Any,
) -> Int:
    """One launch for each of words[first:stop]; returns the first status that is not 0.

    A row of the recording each; of what is posted to a resident kernel, one for up to MOST_POSTED.
    """
    shapes, plans, contexts = tables
    number, reason, flush_ns = flush
    at, status = first, OK
    while at < stop and status == OK:
        shape = shapes[shape_of[at]]
        begun, end = at, _end_of_block(shape_of, at, stop, shapes, plans)
        start_ns = monotonic_ns()
        while at < end:
            status = launch_at(words, at, shape, 1, plans, contexts)
            if status != OK:
                break
            at += 1
        if plans[shape[PLAN0] + 1, KIND] == RESIDENT:
            store_fence()
        end_ns = monotonic_ns()
        if at > begun:
            facts = LaunchFacts(number + begun, int(shape_of[begun]), shape[ONE_IS], reason, flush_ns)
            note(recording, words, begun, at, facts, start_ns, end_ns)
    return status


@compiled
def launch_run(
    words: NDArray[np.uint64],
    shape_index: int,
    first: int,
    stop: int,
    tables: Any,
    recording: Any,
    flush: Any,
) -> Int:
    """One launch for words[first:stop], which lie evenly spaced; returns its status."""
    shapes, plans, contexts = tables
    number, reason, flush_ns = flush
    start_ns = monotonic_ns()
    status = launch_at(words, first, shapes[shape_index], stop - first, plans, contexts)
    end_ns = monotonic_ns()
    strategy = shapes[shape_index, ONE_IS] if stop - first == 1 else shapes[shape_index, MANY_ARE]
    facts = LaunchFacts(number, int(shape_index), strategy, reason, flush_ns)
    note(recording, words, first, stop, facts, start_ns, end_ns)
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
    tables: Any,
    recording: Any,
    flush: Any,
) -> Int:
    """One launch a run; TOO_MANY_LAUNCHES, with nothing launched, where that takes more than `most`."""
    shapes = tables[0]
    if most < len(words) and count_runs(words, shape_index, shapes, most) > most:
        return TOO_MANY_LAUNCHES
    shape = shapes[shape_index]
    first = 0
    while first < len(words):
        stop = run_end(words, first, shape[MOVE_A], shape[MOVE_B], shape[MOVE_C])
        status = launch_run(words, shape_index, first, stop, tables, recording, flush)
        if status != OK:
            return status
        first = stop
    return OK

"""Compiled loops that launch by `cublasLtMatmul` or `cuLaunchKernelEx`, at the cost of the same loop in C.

The loops read command records, compute the addresses of their operands and call the library function by its address.
They record the time before and after each call. No Python runs between two launches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from launchopt.devices.cublaslt.launch_tables import (
    ContextWord,
    KernelColumn,
    PlanColumn,
    PlanKind,
    ResidentColumn,
    ShapeColumn,
    TableArrays,
)
from launchopt.devices.resident.ring import post
from launchopt.devices.runs import run_end
from launchopt.native import call_matmul, call_words, compiled, monotonic_ns, store_fence, store_word
from launchopt.recording.launch_rows import LaunchFacts, RecordingArrays
from launchopt.recording.row_writer import note
from launchopt.records import request_of, slots_of
from launchopt.types import Int, ShapeIndices, Table, Words

CONFIG_STREAM_BYTES = 32  # byte offset of CUlaunchConfig.hStream, after seven unsigned ints and padding (cuda.h)
OK, TOO_MANY_LAUNCHES = 0, -1
KERNEL_STATUS = 1 << 16  # a CUresult is multiplied by this factor, to distinguish it from a status of cuBLASLt
MOST_POSTED = 64  # posted commands timed together, since posting one takes less time than reading the clock twice


class Flush(NamedTuple):
    """Facts about a flush, which are recorded for each launch of its batch."""

    batch: Int  # number of the batch
    reason: Int  # FlushReason
    flush_ns: Int  # CLOCK_MONOTONIC


FlushFields = tuple[int, int, int]  # the fields of Flush, as Python passes them


@compiled
def _launch_kernel(context: Table, plan: Table, a: Int, b: Int, c: Int, request: Int) -> Int:
    operands = plan[KernelColumn.OPERANDS]
    store_word(plan[KernelColumn.CONFIG] + CONFIG_STREAM_BYTES, context[ContextWord.STREAM])
    store_word(operands, a)
    store_word(operands + 8, b)
    store_word(operands + 16, c)
    store_word(operands + 24, request)
    function, parameters = plan[KernelColumn.FUNCTION], plan[KernelColumn.PARAMETERS]
    arguments = (plan[KernelColumn.CONFIG], function, parameters, np.int64(0))
    return KERNEL_STATUS * call_words(context[ContextWord.LAUNCH_FUNCTION], arguments)


@compiled
def _launch_matmul(context: Table, plan: Table, a: Int, b: Int, c: Int) -> Int:
    return call_matmul(
        context[ContextWord.FUNCTION],
        (
            context[ContextWord.HANDLE],
            plan[PlanColumn.DESCRIPTION],
            context[ContextWord.ALPHA],
            a,
            plan[PlanColumn.LAYOUT_A],
            b,
            plan[PlanColumn.LAYOUT_B],
            context[ContextWord.BETA],
            c,
            plan[PlanColumn.LAYOUT_C],
            c,
            plan[PlanColumn.LAYOUT_C],
            plan[PlanColumn.ALGORITHM],
            context[ContextWord.WORKSPACE],
            plan[PlanColumn.WORKSPACE_BYTES],
            context[ContextWord.STREAM],
        ),
    )


@compiled
def launch(context: Table, plan: Table, a: Int, b: Int, c: Int, request: Int) -> Int:
    """Launch one batch by a row of `plans`, or post it to the persistent kernel; return the library's status.

    a, b, c: addresses of the operands of the first command, or of tables of pointers. request: request of the first
    command; only our own kernels read it.
    """
    if plan[PlanColumn.KIND] == PlanKind.RESIDENT:
        queue, number = plan[ResidentColumn.QUEUE], plan[ResidentColumn.NUMBER]
        if plan[ResidentColumn.SWAPPED] != 0:
            return post(queue, b, a, c, request, number)
        return post(queue, a, b, c, request, number)
    if plan[PlanColumn.KIND] == PlanKind.KERNEL:
        return _launch_kernel(context, plan, a, b, c, request)
    return _launch_matmul(context, plan, a, b, c)


@compiled
def launch_at(words: Words, i: Int, shape: Table, size: Int, plans: Table, contexts: Table) -> Int:
    """Launch the `size` evenly spaced commands from words[i] on, on the CUDA stream of the first one's request."""
    slot_a, slot_b, slot_c = slots_of(words, i)
    request = request_of(words, i)
    return launch(
        contexts[request & (len(contexts) - 1)],
        plans[shape[ShapeColumn.PLAN0] + size],
        shape[ShapeColumn.BASE_A] + slot_a * shape[ShapeColumn.BYTES_A],
        shape[ShapeColumn.BASE_B] + slot_b * shape[ShapeColumn.BYTES_B],
        shape[ShapeColumn.BASE_C] + slot_c * shape[ShapeColumn.BYTES_C],
        request,
    )


@compiled
def launch_bare(words: Words, shape_index: int, tables: TableArrays) -> Int:
    """Make one launch per command without timing or recording it, as a C loop would; return the first bad status."""
    shapes, plans, contexts = tables
    shape = shapes[shape_index]
    for i in range(len(words)):
        status = launch_at(words, i, shape, 1, plans, contexts)
        if status != OK:
            return status
    return OK


@compiled
def _is_posted(shape: Table, plans: Table) -> bool:
    """Return whether single commands of a shape are posted to the persistent kernel."""
    return bool(plans[shape[ShapeColumn.PLAN0] + 1, PlanColumn.KIND] == PlanKind.RESIDENT)


@compiled
def _end_of_block(shape_of: ShapeIndices, first: Int, stop: Int, shapes: Table, plans: Table) -> Int:
    """Return one past the last command that is timed and recorded together with command `first`.

    Up to MOST_POSTED adjacent commands of one shape are recorded together if they are posted to the persistent kernel.
    Any other command is recorded alone.
    """
    end = first + 1
    if _is_posted(shapes[shape_of[first]], plans):
        while end < min(stop, first + MOST_POSTED) and shape_of[end] == shape_of[first]:
            end += 1
    return end


@compiled
def launch_each(
    words: Words,
    shape_of: ShapeIndices,
    first: Int,
    stop: Int,
    tables: TableArrays,
    recording: RecordingArrays,
    flush: FlushFields,
) -> Int:
    """Make and record one launch for each of words[first:stop]; return the first status that is not 0.

    Each launch gets one row of the recording. Up to MOST_POSTED commands that are posted to the persistent kernel share
    a row. tables, recording, flush: a LaunchTables, a Recording and a Flush, or their fields. The command words[i] is
    batch number flush.batch + i.
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
        if _is_posted(shape, plans):
            store_fence()
        end_ns = monotonic_ns()
        if at > begun:
            index, strategy = int(shape_of[begun]), shape[ShapeColumn.ONE_IS]
            facts = LaunchFacts(number + begun, index, strategy, reason, flush_ns)
            note(recording, words, begun, at, facts, start_ns, end_ns)
    return status


@compiled
def launch_run(
    words: Words,
    shape_index: Int,
    first: Int,
    stop: Int,
    tables: TableArrays,
    recording: RecordingArrays,
    flush: FlushFields,
) -> Int:
    """Make and record one launch for words[first:stop], which must be evenly spaced; return its status.

    Arguments as for `launch_each`.
    """
    shapes, plans, contexts = tables
    number, reason, flush_ns = flush
    shape = shapes[shape_index]
    start_ns = monotonic_ns()
    status = launch_at(words, first, shape, stop - first, plans, contexts)
    end_ns = monotonic_ns()
    strategy = shape[ShapeColumn.ONE_IS] if stop - first == 1 else shape[ShapeColumn.MANY_ARE]
    facts = LaunchFacts(number, int(shape_index), strategy, reason, flush_ns)
    note(recording, words, first, stop, facts, start_ns, end_ns)
    return status


@compiled
def count_runs(words: Words, shape_index: int, shapes: Table, most: int) -> Int:
    """Return the number of runs of commands with evenly spaced slots in `words`; counting stops at `most` + 1."""
    shape = shapes[shape_index]
    runs, first = 0, 0
    while first < len(words) and runs <= most:
        first = run_end(words, first, shape[ShapeColumn.MOVE_A], shape[ShapeColumn.MOVE_B], shape[ShapeColumn.MOVE_C])
        runs += 1
    return runs


@compiled
def launch_strided(
    words: Words, shape_index: Int, most: Int, tables: TableArrays, recording: RecordingArrays, flush: FlushFields
) -> Int:
    """Make and record one launch for each run of consecutive commands in `words` whose slots are evenly spaced.

    Return the first status that is not 0. Such a run of ops that read sequences also has consecutive requests.
    Return TOO_MANY_LAUNCHES, and launch nothing, if there are more than `most` runs. Arguments as for `launch_each`.
    """
    shapes, _, _ = tables
    if most < len(words) and count_runs(words, shape_index, shapes, most) > most:
        return TOO_MANY_LAUNCHES
    shape = shapes[shape_index]
    first = 0
    while first < len(words):
        stop = run_end(words, first, shape[ShapeColumn.MOVE_A], shape[ShapeColumn.MOVE_B], shape[ShapeColumn.MOVE_C])
        status = launch_run(words, shape_index, first, stop, tables, recording, flush)
        if status != OK:
            return status
        first = stop
    return OK

"""Compiled loops over `cublasLtMatmul` and `cuLaunchKernelEx`: one launch here costs what it costs a C program.

The loops read command records, look up the addresses of their operands and call the library through its address. They
take the time before and after each call, and note both. No Python runs between two launches.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from launchopt.devices.resident.ring import post
from launchopt.devices.runs import run_end
from launchopt.native import call_matmul, call_words, compiled, monotonic_ns, store_fence, store_word
from launchopt.recording.launch_rows import LaunchFacts, RecordingArrays, note
from launchopt.records import request_of, slots_of
from launchopt.types import Int, ShapeIndices, Table, Words

CONFIG_STREAM_BYTES = 32  # of CUlaunchConfig.hStream, behind seven unsigned ints (cuda.h)
OK, TOO_MANY_LAUNCHES = 0, -1
KERNEL_STATUS = 1 << 16  # factor of the status of a kernel launch, which tells it from a status of cuBLASLt
MOST_POSTED = 64  # commands timed and noted together: to post one takes a fraction of two looks at the clock


class ShapeColumn(enum.IntEnum):
    """Columns of `LaunchTables.shapes`, a row a shape. For a packed batch the bases are the scratch's, the slots 0."""

    BASE_A = 0  # addresses of the arenas
    BASE_B = 1
    BASE_C = 2
    BYTES_A = 3  # from a slot to the next
    BYTES_B = 4
    BYTES_C = 5
    MOVE_A = 6  # slots from a command of a batch to the next
    MOVE_B = 7
    MOVE_C = 8
    PLAN0 = 9  # row of `plans` for a batch of no command; a batch of n commands has row PLAN0 + n
    PACKED0 = 10  # the same for packed batches
    ONE_IS = 11  # Strategy of a launch of one command
    MANY_ARE = 12  # Strategy of a launch of several


BASES = slice(int(ShapeColumn.BASE_A), int(ShapeColumn.BASE_C) + 1)
BYTES = slice(int(ShapeColumn.BYTES_A), int(ShapeColumn.BYTES_C) + 1)
MOVES = slice(int(ShapeColumn.MOVE_A), int(ShapeColumn.MOVE_C) + 1)


class PlanColumn(enum.IntEnum):
    """Columns of `LaunchTables.plans`, a row a batch size of a shape. Those before KIND are of cuBLASLt's plans."""

    DESCRIPTION = 0
    LAYOUT_A = 1
    LAYOUT_B = 2
    LAYOUT_C = 3
    ALGORITHM = 4
    WORKSPACE_BYTES = 5
    KIND = 6  # PlanKind


class PlanKind(enum.IntEnum):
    """What launches a batch."""

    MATMUL = 0  # cublasLtMatmul
    KERNEL = 1  # cuLaunchKernelEx
    RESIDENT = 2  # the persistent kernel, to which commands are posted: nothing is launched


class KernelColumn(enum.IntEnum):
    """Columns of a plan whose kind is KERNEL: addresses."""

    CONFIG = 0  # of the CUlaunchConfig
    FUNCTION = 1
    PARAMETERS = 2  # of the array of pointers to the parameters
    OPERANDS = 3  # of the first four parameters (A, B, C, request), which are written before each launch


class ResidentColumn(enum.IntEnum):
    """Columns of a plan whose kind is RESIDENT."""

    QUEUE = 0  # address of the persistent kernel's queue
    NUMBER = 1  # of the shape in that kernel
    SWAPPED = 2  # whether A and B change places


class ContextWord(enum.IntEnum):
    """Words of a row of `LaunchTables.contexts`: what all launches of a stream have in common."""

    FUNCTION = 0  # address of cublasLtMatmul
    HANDLE = 1
    ALPHA = 2  # address of alpha
    BETA = 3
    WORKSPACE = 4  # address of the workspace
    STREAM = 5
    LAUNCH_FUNCTION = 6  # address of cuLaunchKernelEx


class LaunchTables(NamedTuple):
    """The tables that launches work from."""

    shapes: Table  # [shapes, ShapeColumn]
    plans: Table  # [rows, PlanColumn]
    contexts: Table  # [a power of two of streams, ContextWord]


class Flush(NamedTuple):
    """What the launches of one batch have in common in the recording."""

    batch: Int  # its number
    reason: Int  # FlushReason
    flush_ns: Int


TableArrays = tuple[Table, Table, Table]  # the fields of LaunchTables, as Python passes them
FlushFields = tuple[int, int, int]  # the fields of Flush, likewise


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
    """Compute C from A and B, given by address, by one row of `plans` in a context; return the library's status.

    request: whose command it is, or the first of those in a batch. Only kernels read it.
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
    """Launch words[i] and the `size` - 1 records that follow evenly spaced, on the stream of the request."""
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
    """Make one launch for each of `words`, and neither time nor note it: what a tight C loop costs."""
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
    """Return one past the last command that is noted together with `first`.

    These are commands of its shape, where the persistent kernel takes them; else it is noted alone.
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
    """Make one launch for each of words[first:stop]; return the first status that is not 0.

    Each launch has a row of the recording. What is posted to the persistent kernel has one for up to MOST_POSTED
    commands. tables, recording, flush: a LaunchTables, a Recording and a Flush, or their fields. The batch of words[i]
    has number flush.batch + i.
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
    """Make one launch for words[first:stop], which lie evenly spaced; return its status. Arguments as `launch_each`."""
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
    """Return how many evenly spaced runs `words` is made of; past `most` just more than that."""
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
    """Make one launch for each evenly spaced run of `words`; return the first status that is not 0.

    TOO_MANY_LAUNCHES, and nothing is launched, where that takes more than `most`. Arguments as `launch_each`.
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

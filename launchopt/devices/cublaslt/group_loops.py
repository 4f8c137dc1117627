"""Compiled loops of a grouped GEMM: sort a batch by shape, fill in pointers and groups, upload them, and launch once.

The launch is one call of `cublasGemmGroupedBatchedEx`, by the function's address: this module loads no CUDA library.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.buckets import classify_words
from launchopt.command import WORDS
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import ContextWord, ShapeColumn, TableArrays
from launchopt.devices.cublaslt.pointer_loops import UploadWord, upload_words
from launchopt.native import call_words, compiled, monotonic_ns
from launchopt.recording.launch_rows import Facts, RecordingArrays
from launchopt.recording.row_writer import note
from launchopt.records import slots_of
from launchopt.types import Int, ShapeIndices, Table, Words


class GroupRow(enum.IntEnum):
    """Rows of two int32 tables: facts (M to LDC, one column per shape) and groups (all rows, one column per group)."""

    M = 0
    N = 1
    K = 2
    LDA = 3
    LDB = 4
    LDC = 5
    SIZE = 6  # number of commands in the group


SIZE = int(GroupRow.SIZE)


class GroupedCallWord(enum.IntEnum):
    """Words of `GroupedCall.words`: arguments that all calls of cublasGemmGroupedBatchedEx share.

    Each array has one element per group.
    """

    FUNCTION = 0  # address of cublasGemmGroupedBatchedEx
    HANDLE = 1  # cublasHandle_t
    TRANSPOSED = 2  # address of an array of CUBLAS_OP_T, for A
    PLAIN = 3  # address of an array of CUBLAS_OP_N, for B
    ALPHAS = 4  # address of an array of ones
    BETAS = 5  # address of an array of zeros
    TYPE = 6  # cudaDataType_t of the operands
    COMPUTE = 7  # cublasComputeType_t


class GroupedCall(NamedTuple):
    """The arrays with which a batch is launched."""

    staged: Table  # pinned memory for the pointers to operands
    upload: Table  # words of `pointer_loops.upload_words`, which copies the pointers to the device
    words: Table  # [GroupedCallWord]
    addresses: Table  # [GroupRow]: address of each row of the table of groups


GroupedCallFields = tuple[Table, Table, Table, Table]  # the fields of GroupedCall, as Python passes them
GroupTable = NDArray[np.int32]  # [GroupRow, shapes or groups]: one column per shape or group
# The hash table of shapes, shape indices, ends, sorted records, facts of shapes, and groups.
SortingFields = tuple[Words, ShapeIndices, Table, Words, GroupTable, GroupTable]


@compiled
def sort_by_shape(words: Words, shape_of: ShapeIndices, counts: Table, out: Words) -> None:
    """Copy records sorted by shape to `out`. counts: set to one past the last record of each shape in `out`."""
    counts[:] = 0
    for i in range(len(words)):
        counts[shape_of[i]] += 1
    before = 0
    for shape in range(len(counts)):
        before, counts[shape] = before + counts[shape], before
    for i in range(len(words)):
        at = counts[shape_of[i]]
        counts[shape_of[i]] = at + 1
        for w in range(WORDS):
            out[at, w] = words[i, w]


@compiled
def fill_groups(out: Words, ends: Table, shapes: Table, staged: Table, facts: GroupTable, groups: GroupTable) -> Int:
    """Fill in the pointers (`staged`) and `groups` of sorted commands; return the number of groups.

    ends: one past the last record of each shape. facts: rows M to LDC (`GroupRow`) of each shape.
    """
    count, first, used = ends[len(ends) - 1], 0, 0
    for index in range(len(ends)):
        shape = shapes[index]
        for i in range(first, ends[index]):
            slot_a, slot_b, slot_c = slots_of(out, i)
            staged[i] = shape[ShapeColumn.BASE_A] + slot_a * shape[ShapeColumn.BYTES_A]
            staged[count + i] = shape[ShapeColumn.BASE_B] + slot_b * shape[ShapeColumn.BYTES_B]
            staged[2 * count + i] = shape[ShapeColumn.BASE_C] + slot_c * shape[ShapeColumn.BYTES_C]
        if ends[index] > first:
            for fact in range(SIZE):
                groups[fact, used] = facts[fact, index]
            groups[SIZE, used] = ends[index] - first
            used += 1
        first = ends[index]
    return used


@compiled
def launch_grouped(
    words: Words,
    sorting: SortingFields,
    tables: TableArrays,
    recording: RecordingArrays,
    facts: Facts,
    call: GroupedCallFields,
) -> Int:
    """Launch all of `words` by one call and record it; return the first status that is not 0."""
    shape_table, shape_of, ends, out, shape_facts, groups = sorting
    shapes, _, contexts = tables
    given = GroupedCall(*call)
    start_ns, count = monotonic_ns(), len(words)
    classify_words(words, shape_table, shape_of)
    sort_by_shape(words, shape_of, ends, out)
    used = fill_groups(out, ends, shapes, given.staged, shape_facts, groups)
    status = upload_words(given.upload, 3 * count, contexts[0, ContextWord.STREAM])
    if status != 0:
        return lt.KERNEL_STATUS * status
    table, kind, at = given.upload[UploadWord.TO], given.words[GroupedCallWord.TYPE], given.addresses
    status = call_words(
        given.words[GroupedCallWord.FUNCTION],
        (
            given.words[GroupedCallWord.HANDLE],
            given.words[GroupedCallWord.TRANSPOSED],
            given.words[GroupedCallWord.PLAIN],
            at[GroupRow.M],
            at[GroupRow.N],
            at[GroupRow.K],
            given.words[GroupedCallWord.ALPHAS],
            table,
            kind,
            at[GroupRow.LDA],
            table + 8 * count,
            kind,
            at[GroupRow.LDB],
            given.words[GroupedCallWord.BETAS],
            table + 16 * count,
            kind,
            at[GroupRow.LDC],
            np.int64(used),
            at[GroupRow.SIZE],
            given.words[GroupedCallWord.COMPUTE],
        ),
    )
    end_ns = monotonic_ns()
    note(recording, out, 0, count, facts, start_ns, end_ns)
    return status

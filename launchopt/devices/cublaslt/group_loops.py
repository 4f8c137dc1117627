"""Compiled loops of a grouped GEMM: sort a batch by shape, fill in pointers and groups, upload, and call once.

In: a batch of mixed shapes, and `facts`, a column a shape. Out: one call of `cublasGemmGroupedBatchedEx` by its
address, noted; no CUDA is loaded here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.buckets import classify_words
from launchopt.command import WORDS
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.pointer_loops import UPLOAD_TO, upload_words
from launchopt.native import call_words, compiled, monotonic_ns
from launchopt.recording.recorder import Facts, note
from launchopt.records import slots_of
from launchopt.types import Int, Table

# Rows of `facts` (int32), a column a shape, and of `groups`, a column a group.
M, N, K, LDA, LDB, LDC, SIZE = range(7)
# Words of `call`.
FUNCTION, HANDLE, TRANSPOSED, PLAIN, ALPHAS, BETAS, TYPE, COMPUTE = range(8)


@compiled
def sort_by_shape(
    words: NDArray[np.uint64], shape_of: NDArray[np.int32], counts: Table, out: NDArray[np.uint64]
) -> None:
    """Copy `words` to `out`, shape by shape; `counts` gets the end of each shape's there."""
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
def fill_groups(out: NDArray[np.uint64], ends: Table, shapes: Table, staged: Table, facts: Any, groups: Any) -> Int:
    """Pointers and groups of sorted commands; returns how many groups there are."""
    count, first, used = ends[len(ends) - 1], 0, 0
    for index in range(len(ends)):
        shape = shapes[index]
        for i in range(first, ends[index]):
            slot_a, slot_b, slot_c = slots_of(out, i)
            staged[i] = shape[lt.ShapeColumn.BASE_A] + slot_a * shape[lt.ShapeColumn.BYTES_A]
            staged[count + i] = shape[lt.ShapeColumn.BASE_B] + slot_b * shape[lt.ShapeColumn.BYTES_B]
            staged[2 * count + i] = shape[lt.ShapeColumn.BASE_C] + slot_c * shape[lt.ShapeColumn.BYTES_C]
        if ends[index] > first:
            for fact in range(SIZE):
                groups[fact, used] = facts[fact, index]
            groups[SIZE, used] = ends[index] - first
            used += 1
        first = ends[index]
    return used


@compiled
def launch_grouped(
    words: NDArray[np.uint64],
    sorting: Any,
    tables: Any,
    records: Any,
    facts: Facts,
    staged: Table,
    upload: Table,
    call: Table,
    group_addresses: Table,
) -> Int:
    """One call for all of `words`; returns the first status that is not 0."""
    shape_table, shape_of, ends, out, shape_facts, groups = sorting
    start_ns, count = monotonic_ns(), len(words)
    classify_words(words, shape_table, shape_of)
    sort_by_shape(words, shape_of, ends, out)
    used = fill_groups(out, ends, tables[0], staged, shape_facts, groups)
    status = upload_words(upload, 3 * count, tables[2][0, lt.ContextWord.STREAM])
    if status != 0:
        return lt.KERNEL_STATUS * status
    table, kind, at = upload[UPLOAD_TO], call[TYPE], group_addresses
    status = call_words(
        call[FUNCTION],
        (
            call[HANDLE],
            call[TRANSPOSED],
            call[PLAIN],
            at[M],
            at[N],
            at[K],
            call[ALPHAS],
            table,
            kind,
            at[LDA],
            table + 8 * count,
            kind,
            at[LDB],
            call[BETAS],
            table + 16 * count,
            kind,
            at[LDC],
            np.int64(used),
            at[SIZE],
            call[COMPUTE],
        ),
    )
    end_ns = monotonic_ns()
    note(records, out, 0, count, facts, start_ns, end_ns)
    return status

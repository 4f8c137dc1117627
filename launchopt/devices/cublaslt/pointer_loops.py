"""Compiled loops over a table of pointers: fill it from command records, pad it, upload it, and launch a batch with it.

The table is filled in pinned memory. A function of the driver, called by its address, copies it to the device: this
module loads no CUDA library.
"""

from __future__ import annotations

import enum

import numpy as np

from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import ContextWord, ShapeColumn, TableArrays
from launchopt.native import call_words, compiled, monotonic_ns
from launchopt.recording.launch_rows import Facts, RecordingArrays
from launchopt.recording.row_writer import note
from launchopt.records import slots_of
from launchopt.types import Int, Table, Words


class UploadWord(enum.IntEnum):
    """Words of the argument `upload` of `upload_words`, int64."""

    FUNCTION = 0  # address of the CUDA driver's copy function
    TO = 1  # device address
    FROM = 2  # address of the words in pinned memory


@compiled
def fill_pointers(words: Words, shape: Table, count: int, out: Table) -> None:
    """Write the addresses of A, then B, then C of words[:count] to `out`; shape: a row of `LaunchTables.shapes`."""
    for i in range(count):
        slot_a, slot_b, slot_c = slots_of(words, i)
        out[i] = shape[ShapeColumn.BASE_A] + slot_a * shape[ShapeColumn.BYTES_A]
        out[count + i] = shape[ShapeColumn.BASE_B] + slot_b * shape[ShapeColumn.BYTES_B]
        out[2 * count + i] = shape[ShapeColumn.BASE_C] + slot_c * shape[ShapeColumn.BYTES_C]


@compiled
def fill_pass(words: Words, order: Table, shape_of: Table, shapes: Table, scratch: int, out: Table) -> None:
    """Write the addresses of A, then B, then C of commands of several shapes to `out`.

    order: the command of each place in the table; shape_of: its shape. A command that `words` lacks reads the first
    operands of its shape, and writes to `scratch`.
    """
    count = len(order)
    for i in range(count):
        at, shape = order[i], shapes[shape_of[i]]
        if at < len(words):
            slot_a, slot_b, slot_c = slots_of(words, at)
            out[i] = shape[ShapeColumn.BASE_A] + slot_a * shape[ShapeColumn.BYTES_A]
            out[count + i] = shape[ShapeColumn.BASE_B] + slot_b * shape[ShapeColumn.BYTES_B]
            out[2 * count + i] = shape[ShapeColumn.BASE_C] + slot_c * shape[ShapeColumn.BYTES_C]
        else:
            out[i], out[count + i], out[2 * count + i] = (
                shape[ShapeColumn.BASE_A],
                shape[ShapeColumn.BASE_B],
                scratch,
            )


@compiled
def pad_pointers(out: Table, count: int, size: int, scratch: int) -> None:
    """Spread the pointers in out[:3 * count] (A, then B, then C) over out[:3 * size], for a batch of `size` commands.

    The added commands read the inputs of the first command and write to `scratch`, a device address.
    """
    for operand in range(2, -1, -1):
        for i in range(count - 1, -1, -1):
            out[operand * size + i] = out[operand * count + i]
    for i in range(count, size):
        out[i], out[size + i], out[2 * size + i] = out[0], out[size], scratch


@compiled
def upload_words(upload: Table, words: Int, stream: Int) -> Int:
    """Copy the first `words` 8-byte words from pinned memory to the device; return the driver's status."""
    arguments = (upload[UploadWord.TO], upload[UploadWord.FROM], np.int64(8 * words), stream)
    return call_words(upload[UploadWord.FUNCTION], arguments)


@compiled
def launch_pointers(
    words: Words,
    shape_index: int,
    tables: TableArrays,
    records: RecordingArrays,
    facts: Facts,
    staged: Table,
    upload: Table,
) -> Int:
    """Fill and upload the pointers of all of `words`, then launch them once; return the first status that is not 0.

    staged: pinned memory for the pointers. upload: words for `upload_words`.
    """
    shapes, plans, contexts = tables
    count, shape = len(words), shapes[shape_index]
    start_ns = monotonic_ns()
    fill_pointers(words, shape, count, staged)
    status = upload_words(upload, 3 * count, contexts[0, ContextWord.STREAM])
    if status != 0:
        return lt.KERNEL_STATUS * status
    table = upload[UploadWord.TO]
    plan = plans[shape[ShapeColumn.PLAN0] + count]
    status = lt.launch(contexts[0], plan, table, table + 8 * count, table + 16 * count, 0)
    end_ns = monotonic_ns()
    note(records, words, 0, count, facts, start_ns, end_ns)
    return status

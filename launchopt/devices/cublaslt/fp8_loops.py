"""The compiled loop of fp8 GEMMs: two launches for each command, one of which quantises its inputs.

It calls functions by their addresses: this module loads no CUDA library.
"""

from __future__ import annotations

import numpy as np

from launchopt.devices.cublaslt.launch import OK, FlushFields, launch
from launchopt.devices.cublaslt.launch_tables import ShapeColumn, TableArrays
from launchopt.native import compiled, monotonic_ns
from launchopt.recording.launch_rows import CursorWord, LaunchFacts, RecordingArrays
from launchopt.recording.row_writer import note
from launchopt.records import slots_of
from launchopt.types import Int, ShapeIndices, Table, Words


@compiled
def launch_quantised(
    words: Words,
    shape_of: ShapeIndices,
    first: Int,
    stop: Int,
    tables: TableArrays,
    quantising: tuple[Table, Int],
    recording: RecordingArrays,
    flush: FlushFields,
) -> Int:
    """Launch and record words[first:stop]; return the first status that is not 0.

    Both launches of a command share a row of the recording. tables: the plan of a shape's weight in slot i is in row
    PLAN0 + i. quantising: the plans that quantise inputs, one per shape, and the address of the codes that they write.
    Other arguments as for `launch.launch_each`.
    """
    shapes, plans, contexts = tables
    of_inputs, codes = quantising
    number, reason, flush_ns = flush
    _, _, cursor = recording
    for i in range(first, stop):
        index = int(shape_of[i])
        shape = shapes[index]
        slot_a, slot_b, slot_c = slots_of(words, i)
        start_ns = monotonic_ns()
        inputs = shape[ShapeColumn.BASE_B] + slot_b * shape[ShapeColumn.BYTES_B]
        status = launch(contexts[0], of_inputs[index], np.int64(0), inputs, codes, np.int64(0))
        if status != OK:
            return status
        weight = shape[ShapeColumn.BASE_A] + slot_a * shape[ShapeColumn.BYTES_A]
        output = shape[ShapeColumn.BASE_C] + slot_c * shape[ShapeColumn.BYTES_C]
        plan = plans[shape[ShapeColumn.PLAN0] + slot_a]
        status = launch(contexts[0], plan, weight, codes, output, np.int64(0))
        if status != OK:
            return status
        facts = LaunchFacts(number + i, index, shape[ShapeColumn.ONE_IS], reason, flush_ns)
        note(recording, words, i, i + 1, facts, start_ns, monotonic_ns())
        cursor[CursorWord.EXTRA_CALLS] += 1
    return OK

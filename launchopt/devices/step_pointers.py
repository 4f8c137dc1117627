"""Whole steps of bias, ReLU and scale in one launch, whose kernel finds the operands through tables of pointers.

In: the records of some requests' steps, row by row of the template. Out: one launch, in front of which the tables are
filled and uploaded: A of bias and scale, [2 layers, steps]; C of all three, [3 layers, steps]; B of the first, [steps].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Op
from launchopt.devices import lt_launch as lt
from launchopt.devices.lt_launch import Table
from launchopt.devices.pointers import UPLOAD_TO, upload_words
from launchopt.devices.runs import slots_of
from launchopt.native import Int, compiled, monotonic_ns
from launchopt.recorder import LaunchFacts, note

NODES = (Op.BIAS, Op.RELU, Op.SCALE)
BIAS, RELU = 0, 1  # places in NODES
POINTERS_A_LAYER = 5  # bias and scale; the outputs of all three


def pointers_of_steps(layers: int, size: int) -> int:
    """Words of the tables for `size` steps."""
    return (POINTERS_A_LAYER * layers + 1) * size


@compiled
def fill_steps(words: NDArray[np.uint64], size: int, shapes: Table, out: Table) -> Int:
    """Tables A, C and B, one behind another, for `size` steps; `shapes`: of the three nodes. Returns their words."""
    rows = len(words) // size
    layers = rows // len(shapes)
    for row in range(rows):
        node = row % len(shapes)
        shape, layer = shapes[node], row // len(shapes)
        for member in range(size):
            slot_a, slot_b, slot_c = slots_of(words, row * size + member)
            if node != RELU:
                to = (2 * layer + (node != BIAS)) * size + member
                out[to] = shape[lt.BASE_A] + slot_a * shape[lt.BYTES_A]
            out[(2 * layers + row) * size + member] = shape[lt.BASE_C] + slot_c * shape[lt.BYTES_C]
            if row == 0:
                out[POINTERS_A_LAYER * layers * size + member] = shape[lt.BASE_B] + slot_b * shape[lt.BYTES_B]
    return (POINTERS_A_LAYER * layers + 1) * size


@compiled
def launch_steps(
    words: NDArray[np.uint64],
    size: int,
    shapes: Table,
    plan: Table,
    context: Table,
    records: tuple[Table, Table, Table],
    what: LaunchFacts,
    staged: Table,
    upload: Table,
) -> Int:
    """One launch of `size` steps, by pointers that are staged, uploaded and read by it; returns its status."""
    launches, commands, cursor = records
    start_ns = monotonic_ns()
    count = fill_steps(words, size, shapes, staged)
    status = upload_words(upload, count, context[lt.STREAM])
    if status != 0:
        return lt.KERNEL_STATUS * status
    table, of_a = upload[UPLOAD_TO], 2 * (len(words) // len(shapes))  # pointers to A: size x layers, twice
    status = lt.launch(context, plan, table, table + 8 * (count - size), table + 8 * of_a, 0)
    end_ns = monotonic_ns()
    note(launches, commands, cursor, words, 0, len(words), what, start_ns, end_ns)
    return status

"""Which of the algorithms that cuBLASLt proposes is fastest for a batch through pointers, by trying them.

Its order of preference is made for strided batches, and can be 10% off for pointer arrays. Trying takes some
milliseconds a shape, which belong to the mode's one-time cost.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from launchopt.command import ShapeKey
from launchopt.devices import lt_launch as lt
from launchopt.devices.lt_tables import Row
from launchopt.errors import RunError
from launchopt.workloads.chain import LANE, UNIT_BYTES, ChainStream

PROPOSALS, TRIES = 4, 5


def fastest_by_pointers(device: Any, index: int, shape: ShapeKey, size: int) -> Row:
    """The plan of `size` commands of a device's shape, by the fastest algorithm on its own operands."""
    row = device.base.shapes[index]
    slots = np.arange(size)[:, None] * row[lt.MOVE_A : lt.MOVE_C + 1]
    addresses = row[lt.BASE_A : lt.BASE_C + 1] + slots * row[lt.BYTES_A : lt.BYTES_C + 1]
    if isinstance(device.work, ChainStream):  # inputs and outputs are one arena: spare what is filled
        addresses[:, 2] += int(device.work.table[0, LANE]) * UNIT_BYTES
    table = cupy.asarray(np.ascontiguousarray(addresses.T))
    a, b, c = (int(table[i].data.ptr) for i in range(3))
    device.synchronize()
    best: tuple[float, Row] | None = None
    for choice in range(PROPOSALS):
        try:
            made = device.lt.make(shape, size, None, device.row_elements(shape), None, choice)
        except RunError:
            break
        plan = np.array([*made[0], lt.MATMUL], np.int64)
        took_ms = min(_launch_ms(device, plan, a, b, c) for _ in range(TRIES))
        if best is None or took_ms < best[0]:
            best = took_ms, made
    if best is None:
        raise RunError(f"cuBLASLt has no algorithm for {size} x {shape} {shape.dtype.name} through pointers")
    return best[1]


def _launch_ms(device: Any, plan: Any, a: int, b: int, c: int) -> float:
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record(device.stream)
    device.check(lt.launch(device.base.contexts[0], plan, a, b, c, 0))
    end.record(device.stream)
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end))

"""Find the fastest of the algorithms that cuBLASLt proposes for a full batch, by timing them.

cuBLASLt ranks algorithms for adjacent operands. The ranking can be wrong for arrays of pointers and for columns that
are far apart in memory. Timing takes some milliseconds per shape and is part of the mode's setup.
"""

from __future__ import annotations

from collections.abc import Callable

import cupy
import numpy as np

from launchopt.command import ShapeKey
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import BASES, BYTES, MOVES, PlanKind, ShapeColumn
from launchopt.devices.cublaslt.tables import Row
from launchopt.errors import RunError
from launchopt.types import Table

PROPOSALS = 6  # most algorithms to time
TRIES = 3  # timings per algorithm; the fastest counts
LAUNCHES = 4  # launches of each set of operands per timing
MOST_WEIGHTS = 16  # weights used in turn, so that not every launch reads its weight from the cache

Addresses = tuple[int, int, int]  # addresses of A, B and C, or of tables of pointers to them


def fastest_by_pointers(device: GpuDevice, index: int, shape: ShapeKey, size: int) -> Row:
    """Return the fastest plan of `size` commands of shape number `index` that reads tables of pointers.

    The timed commands use the device's own operands, several times if there are too few.
    """
    row = device.base.shapes[index]
    there = [device.work.arenas[operand.arena] for operand in device.work.operands(shape)]
    slots = np.arange(size)[:, None] * row[MOVES] % np.array(there)
    addresses = row[BASES] + slots * row[BYTES]
    addresses[:, 2] += device.work.spared_bytes
    table = cupy.asarray(np.ascontiguousarray(addresses.T))
    device.synchronize()

    def make(choice: int) -> Row:
        return device.lt.make(shape, size, None, device.row_elements(shape), None, choice)

    a, b, c = (int(table[i].data.ptr) for i in range(3))
    return _fastest(device, make, [(a, b, c)])


def fastest_of_columns(device: GpuDevice, index: int, make: Callable[[int], Row]) -> Row:
    """Return the fastest plan of one GEMM for commands that share a weight.

    index: number of the shape. make(i) returns the plan with the i-th algorithm that cuBLASLt proposes.
    """
    row = device.base.shapes[index].tolist()
    shape = device.work.shapes[index]
    weights = min(MOST_WEIGHTS, device.work.arenas[device.work.operands(shape)[0].arena])
    b, c = row[ShapeColumn.BASE_B], row[ShapeColumn.BASE_C] + device.work.spared_bytes
    return _fastest(
        device, make, [(row[ShapeColumn.BASE_A] + i * row[ShapeColumn.BYTES_A], b, c) for i in range(weights)]
    )


def _fastest(device: GpuDevice, make: Callable[[int], Row], operands: list[Addresses]) -> Row:
    best: tuple[float, Row] | None = None
    for choice in range(PROPOSALS):
        try:
            made = make(choice)
        except RunError:  # no more proposals
            if best is None:
                raise
            break
        plan = np.array([*made[0], PlanKind.MATMUL], np.int64)
        took_ms = _launches_ms(device, plan, operands)
        if best is None or took_ms < best[0]:
            best = took_ms, made
    assert best is not None
    return best[1]


def _launches_ms(device: GpuDevice, plan: Table, operands: list[Addresses]) -> float:
    """Return the GPU ms of LAUNCHES launches of each set of operands, the fastest of TRIES timings.

    They run as a CUDA graph, since the host could not launch them as fast as they run.
    """
    stream, start, end = device.stream, cupy.cuda.Event(), cupy.cuda.Event()
    first_a, first_b, first_c = operands[0]
    # The first launch loads the kernel.
    device.check(lt.launch(device.base.contexts[0], plan, first_a, first_b, first_c, 0))
    stream.synchronize()
    stream.begin_capture(mode=cupy.cuda.runtime.streamCaptureModeRelaxed)
    for a, b, c in operands * LAUNCHES:
        device.check(lt.launch(device.base.contexts[0], plan, a, b, c, 0))
    graph = stream.end_capture()
    graph.upload(stream)
    found = []
    for _ in range(TRIES):
        start.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        found.append(float(cupy.cuda.get_elapsed_time(start, end)))
    return min(found)

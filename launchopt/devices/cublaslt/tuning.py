"""Which of the algorithms that cuBLASLt proposes is fastest for a full batch, by trying them.

Its order of preference is made for operands that lie side by side, and can be off for arrays of pointers and for
columns that lie far apart. Trying takes some milliseconds a shape, which belong to the mode's one-time cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from launchopt.command import ShapeKey
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.tables import Row
from launchopt.errors import RunError
from launchopt.workloads.chain import LANE, UNIT_BYTES, ChainStream

PROPOSALS, TRIES, LAUNCHES = 6, 3, 4
MOST_WEIGHTS = 16  # tried in turn, so that they do not all come from a cache


def fastest_by_pointers(device: Any, index: int, shape: ShapeKey, size: int) -> Row:
    """The plan of `size` commands of a device's shape through pointers, on its own operands, again where these end."""
    row = device.base.shapes[index]
    there = [device.work.arenas[operand.arena] for operand in device.work.operands(shape)]
    slots = np.arange(size)[:, None] * row[lt.MOVE_A : lt.MOVE_C + 1] % np.array(there)
    addresses = row[lt.BASE_A : lt.BASE_C + 1] + slots * row[lt.BYTES_A : lt.BYTES_C + 1]
    addresses[:, 2] += spared_bytes(device)
    table = cupy.asarray(np.ascontiguousarray(addresses.T))
    device.synchronize()

    def make(choice: int) -> Row:
        made: Row = device.lt.make(shape, size, None, device.row_elements(shape), None, choice)
        return made

    return _fastest(device, make, [tuple(int(table[i].data.ptr) for i in range(3))])


def fastest_of_columns(device: Any, index: int, make: Callable[[int], Row]) -> Row:
    """The plan of one GEMM for all commands that share a weight; `make`: of one of the proposals."""
    row = device.base.shapes[index].tolist()
    shape = device.work.shapes[index]
    weights = min(MOST_WEIGHTS, device.work.arenas[device.work.operands(shape)[0].arena])
    b, c = row[lt.BASE_B], row[lt.BASE_C] + spared_bytes(device)
    return _fastest(device, make, [(row[lt.BASE_A] + i * row[lt.BYTES_A], b, c) for i in range(weights)])


def spared_bytes(device: Any) -> int:
    """How far into C's arena outputs may be written: of chains inputs and outputs are one, and inputs come first."""
    return int(device.work.table[0, LANE]) * UNIT_BYTES if isinstance(device.work, ChainStream) else 0


def _fastest(device: Any, make: Callable[[int], Row], operands: list[Any]) -> Row:
    best: tuple[float, Row] | None = None
    for choice in range(PROPOSALS):
        try:
            made = make(choice)
        except RunError:  # no more proposals
            if best is None:
                raise
            break
        plan = np.array([*made[0], lt.MATMUL], np.int64)
        took_ms = _launches_ms(device, plan, operands)
        if best is None or took_ms < best[0]:
            best = took_ms, made
    assert best is not None
    return best[1]


def _launches_ms(device: Any, plan: Any, operands: list[Any]) -> float:
    """Of one launch after another, as a graph: by themselves the host would be slower than most of them."""
    stream, start, end = device.stream, cupy.cuda.Event(), cupy.cuda.Event()
    first_a, first_b, first_c = operands[0]
    device.check(
        lt.launch(device.base.contexts[0], plan, first_a, first_b, first_c, 0)
    )  # a kernel is loaded when first launched
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

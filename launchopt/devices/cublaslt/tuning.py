"""Find the fastest of the algorithms that cuBLASLt proposes for a GEMM, by timing them.

cuBLASLt ranks algorithms for adjacent operands. The ranking can be wrong for arrays of pointers, and for columns that
are far apart in memory. Every mode gets the same tuning: with `tuning=all`, the proposals for single commands and for
the largest batch of each shape are timed, for commands of up to MOST_COLUMNS columns; with `tuning=none`, none are.
Timing takes some milliseconds for each GEMM, once a run, and is part of the setup of the mode that comes first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import cupy
import numpy as np

from launchopt.command import ShapeKey
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import BASES, BYTES, MOVES, PlanKind, ShapeColumn
from launchopt.devices.cublaslt.plans import Gemm
from launchopt.devices.cublaslt.tables import Row
from launchopt.errors import RunError
from launchopt.types import Table

PROPOSALS = 6  # most algorithms to time
TRIES = 3  # timings per algorithm; the fastest counts
LAUNCHES = 4  # launches of each set of operands per timing
MOST_WEIGHTS = 16  # weights used in turn, so that not every launch reads its weight from the cache
MOST_COLUMNS = 16  # columns of a command whose GEMMs are tuned: those of prompts are not, in any mode

Addresses = tuple[int, int, int]  # addresses of A, B and C, or of tables of pointers to them


def is_tuned(device: GpuDevice, shape: ShapeKey, size: int, most: int) -> bool:
    """Return whether the proposals for `size` commands of a shape, of at most `most`, are timed."""
    return device.lt.tunes and shape.n <= MOST_COLUMNS and size in (1, most)


def by_pointers(device: GpuDevice, index: int, size: int, most: int) -> Row:
    """Return the plan of `size` commands of shape number `index` that reads tables of pointers.

    The timed commands use the device's own operands, several times if there are too few.
    """
    row, shape = device.base.shapes[index], device.work.shapes[index]
    gemm = Gemm(shape, size, None, device.row_elements(shape))
    if not is_tuned(device, shape, size, most):
        return device.lt.make(gemm)

    kept = []  # tables of pointers, while they are read

    def operands() -> list[Addresses]:
        there = [device.work.arenas[operand.arena] for operand in device.work.operands(shape)]
        slots = np.arange(size)[:, None] * row[MOVES] % np.array(there)
        addresses = row[BASES] + slots * row[BYTES]
        addresses[:, 2] += device.work.spared_bytes
        kept.append(cupy.asarray(np.ascontiguousarray(addresses.T)))
        device.synchronize()
        a, b, c = (int(kept[0][i].data.ptr) for i in range(3))
        return [(a, b, c)]

    return _fastest(device, gemm, operands)


def by_strides(device: GpuDevice, index: int, gemm: Gemm, size: int, most: int, packed: Addresses | None = None) -> Row:
    """Return the plan of one call for `size` evenly spaced commands of shape number `index`.

    packed: where the operands are if the call does not use those of the arenas.
    """
    if not is_tuned(device, device.work.shapes[index], size, most):
        return device.lt.make(gemm)

    return _fastest(device, gemm, lambda: _in_turn(device, index, size) if packed is None else [packed])


def of_copies(
    device: GpuDevice, index: int, gemm: Gemm, size: int, most: int, inputs: int, outputs: int | None = None
) -> Row:
    """Return the plan of `size` commands of shape number `index` whose inputs are at an address outside of the arenas.

    outputs: the address of their outputs; None: they are in the arena.
    """
    if not is_tuned(device, device.work.shapes[index], size, most):
        return device.lt.make(gemm)

    def operands() -> list[Addresses]:
        return [(a, inputs, c if outputs is None else outputs) for a, _, c in _in_turn(device, index, size)]

    return _fastest(device, gemm, operands)


def _in_turn(device: GpuDevice, index: int, size: int) -> list[Addresses]:
    """Return the operands of calls of `size` commands each, which use the weights of the arena in turn."""
    row, shape = device.base.shapes[index].tolist(), device.work.shapes[index]
    slots = max(1, size * row[ShapeColumn.MOVE_A])  # slots of A of one call
    calls = device.work.arenas[device.work.operands(shape)[0].arena] // slots
    step = slots * row[ShapeColumn.BYTES_A]
    b, c = row[ShapeColumn.BASE_B], row[ShapeColumn.BASE_C] + device.work.spared_bytes
    return [(row[ShapeColumn.BASE_A] + i * step, b, c) for i in range(max(1, min(MOST_WEIGHTS, calls)))]


def _fastest(device: GpuDevice, gemm: Gemm, operands: Callable[[], list[Addresses]]) -> Row:
    """Return the plan with the fastest algorithm. A GEMM of the same sizes and distances is timed only once."""
    plans = device.lt
    if gemm.key not in plans.choices:
        start_ns = time.monotonic_ns()
        plans.choices[gemm.key] = _timed(device, gemm, operands())
        plans.tuning_ns += time.monotonic_ns() - start_ns
    return plans.make(gemm, plans.choices[gemm.key])


def _timed(device: GpuDevice, gemm: Gemm, operands: list[Addresses]) -> int:
    """Return the number of the fastest algorithm."""
    took_ms: list[float] = []
    for choice in range(PROPOSALS):
        try:
            made, _ = device.lt.make(gemm, choice)
        except RunError:  # no more proposals
            if not took_ms:
                raise
            break
        took_ms.append(_launches_ms(device, np.array([*made, PlanKind.MATMUL], np.int64), operands))
    return took_ms.index(min(took_ms))


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

"""Tune and plan Triton kernels for batches of GEMVs or small GEMMs, which find operands through tables of pointers.

C[n, m] = B[n, k] @ A[m, k].T for each command, n up to 16. Program axis 0 is a block of rows of A, axis 1 the command.
Sums are fp32, without TF32. `TritonGemms` compiles about a dozen configurations for each shape. It times each on the
workload's own operands, for a single command and for the largest batch. The fastest one becomes a plan.
"""

from __future__ import annotations

import cupy
import numpy as np

from launchopt.command import ShapeKey
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import ShapeColumn
from launchopt.devices.cublaslt.tables import Row, Tables
from launchopt.devices.triton.kernels import dot_gemm, sum_gemm
from launchopt.devices.triton.plans import TYPES, Loaded, Variant, load_variants
from launchopt.devices.triton.quantised import quantised_variant
from launchopt.devices.triton.timed import ns_a_launch
from launchopt.devices.triton.tuning import (
    Config,
    Operand,
    configs,
    dot_columns,
    pointer_tables,
    scratch,
    scratch_bytes,
    size_bytes,
    tuned_counts,
    tuned_for,
    turns,
)
from launchopt.recording.launch_rows import Strategy

READ_ONCE = "evict_first"  # cache policy for a weight that is not read again soon


def variant(
    shape: ShapeKey,
    row_elements: tuple[int, int, int],
    config: Config,
    shared: bool,
    direct: bool = False,
    capability: int = 0,
) -> Variant:
    """Return the kernel to compile for a shape.

    shared: all commands of a batch have the same A, which the cache should keep. direct: the kernel gets the addresses
    of one command instead of tables of pointers. capability: compute capability, times 10; 0: Triton's interpreter.
    """
    if shape.packing:
        policy = "" if shared else READ_ONCE
        return quantised_variant(shape, row_elements, config, policy, direct, capability)
    constants = {
        **{"M": shape.m, "N": shape.n, "K": shape.k, "LEADING": row_elements, "DTYPE": TYPES[shape.dtype]},
        **{"ROWS": config.rows, "DEPTH": config.depth, "STAGES": config.stages},
        **{"POLICY": "" if shared else READ_ONCE, "DIRECT": direct},
    }
    if not config.dot:
        return Variant(sum_gemm, constants, config.warps)
    return Variant(dot_gemm, constants | {"COLUMNS": dot_columns(shape.n)}, config.warps, config.stages)


class TritonGemms:
    """The fastest kernel for each GEMM shape of the workload that `device` has open."""

    def __init__(self, device: GpuDevice) -> None:
        self._device, self._capability = device, int(cupy.cuda.Device().compute_capability)
        self._limits: dict[ShapeKey, int] = {}
        self._shared: dict[ShapeKey, bool] = {}  # whether all commands of a batch have the same A
        self._kernels: dict[tuple[ShapeKey, int], tuple[Config, Loaded]] = {}
        # By shape and commands of a launch: the fastest configuration, and its GB/s.
        self.chosen: dict[tuple[ShapeKey, int], tuple[Config, float]] = {}

    def tune(self, index: int, limit: int) -> None:
        """Compile and time kernels for shape number `index`; choose the fastest. limit: the largest batch."""
        device = self._device
        shape = device.work.shapes[index]
        shared = bool(device.base.shapes[index, ShapeColumn.MOVE_A] == 0)
        self._limits[shape], self._shared[shape] = limit, shared
        tried = configs(shape)
        kernels = load_variants([self._variant(shape, config) for config in tried])
        usable = [(config, kernel) for config, kernel in zip(tried, kernels, strict=True) if kernel]
        for count in tuned_counts(limit):
            timed = _Timed(device, index, count, shared)
            times = [timed.ns_a_launch(kernel, config) for config, kernel in usable]
            best = times.index(min(times))
            self._kernels[shape, count] = usable[best]
            self.chosen[shape, count] = usable[best][0], count * shape.bytes / times[best]

    def _variant(self, shape: ShapeKey, config: Config, direct: bool = False) -> Variant:
        rows = self._device.row_elements(shape)
        return variant(shape, rows, config, self._shared[shape], direct, self._capability)

    def row(self, shape: ShapeKey, size: int) -> Row:
        """Return the plan of `size` commands in one launch, for `Tables.add`."""
        config, kernel = self._kernels[shape, tuned_for(size, self._limits[shape])]
        return plan_row(self._device, shape, size, config, kernel), str(config).encode()

    def plan_alone(self, tables: Tables, index: int) -> None:
        """Add the plan of a lone command of shape number `index`.

        Its kernel gets the operands' addresses as arguments, so no table of pointers is uploaded.
        """
        device = self._device
        shape = device.work.shapes[index]
        config, _ = self._kernels[shape, 1]
        (kernel,) = load_variants([self._variant(shape, config, direct=True)])
        assert kernel is not None  # it needs as much shared memory as the same kernel with tables, which fits
        row = plan_row(device, shape, 1, config, kernel)
        device.planner.warm(tables, index, tables.add(index, [1], lambda _: (row, b"")))
        tables.shapes[index, ShapeColumn.ONE_IS] = Strategy.triton


def plan_row(device: GpuDevice, shape: ShapeKey, size: int, config: Config, kernel: Loaded) -> list[int]:
    """Return the row of the plans table that launches `kernel` for `size` commands."""
    blocks = -(-shape.m // config.rows)
    return device.kernels.row(kernel.function, kernel.launch((blocks, size, 1)))


class _Timed:
    """Times launches of `count` commands of a shape, each with different operands.

    The launches run as a CUDA graph, so that the host's speed does not matter.
    """

    def __init__(self, device: GpuDevice, index: int, count: int, shared: bool) -> None:
        self._device, self._count = device, count
        self._shape = device.work.shapes[index]
        self._turns = turns(self._shape, count)
        tables = pointer_tables(self._operands(index, shared), count, self._turns)
        with device.stream:
            self._pointers = cupy.asarray(tables)
        device.synchronize()

    def _operands(self, index: int, shared: bool) -> tuple[Operand, Operand, Operand]:
        device, shape, row = self._device, self._shape, self._device.base.shapes[index].tolist()
        lead_a, lead_b, lead_c = device.row_elements(shape)
        a = size_bytes(shape.m, shape.k, lead_a, shape.dtype.itemsize)
        if shape.packing:
            a = shape.packing.end(shape.m, shape.k)
        b = size_bytes(shape.n, shape.k, lead_b, shape.dtype.itemsize)
        arena_bytes_a, arena_bytes_b, _ = (
            device.arenas.arrays[operand.arena].nbytes for operand in device.work.operands(shape)
        )
        self._outputs = cupy.empty(scratch_bytes(shape, lead_c, self._count), np.uint8)
        return (
            Operand.spread(row[ShapeColumn.BASE_A], arena_bytes_a, row[ShapeColumn.BYTES_A], a, shared),
            Operand.spread(row[ShapeColumn.BASE_B], arena_bytes_b, row[ShapeColumn.BYTES_B], b),
            scratch(int(self._outputs.data.ptr), shape, lead_c, self._count),
        )

    def ns_a_launch(self, kernel: Loaded, config: Config) -> float:
        """Return the GPU ns per launch, in the fastest of several timings."""
        device, count = self._device, self._count
        plan = np.array(plan_row(device, self._shape, count, config, kernel), np.int64)
        context, first, step = device.base.contexts[0], int(self._pointers.data.ptr), int(self._pointers.strides[0])

        def launch(turn: int) -> None:
            a = first + turn * step
            device.check(lt.launch(context, plan, a, a + 8 * count, a + 16 * count, 0))

        return ns_a_launch(device.stream, launch, self._turns, self._shape)

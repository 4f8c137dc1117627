"""GEMMs of fp8 weights by inputs that a launch quantises to fp8: what engines call W8A8.

A command has two launches. Our kernel (kernels/quantise_inputs.cu) writes codes and scales of the inputs to memory that
all commands share, since a CUDA stream runs them in order. Then cuBLASLt multiplies. The description of a GEMM has the
addresses of scales, and a weight's scales lie behind its codes. So each slot of the weights has a description, and a
plan, of its own. All are made before the clock starts.
"""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import numpy as np
from numpy.typing import NDArray
from nvmath.bindings import cublasLt

from launchopt.batching.batch import FlushReason
from launchopt.command import ShapeKey
from launchopt.devices.base import GpuDevice
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.fp8_loops import launch_quantised
from launchopt.devices.cublaslt.launch_tables import BASES, PlanColumn, ShapeColumn
from launchopt.devices.cublaslt.plans import Gemm, Scaling
from launchopt.devices.cublaslt.tables import Row
from launchopt.devices.cublaslt.tuning import of_copies
from launchopt.devices.cuda.op_kernels import quantising_geometry
from launchopt.devices.cuda.op_plans import to_launch
from launchopt.types import Table, Words
from launchopt.weights.packing import Scales


class Fp8Gemms:
    """Plans both launches of commands of some shapes, and makes them. codes: the inputs of the last command, as fp8."""

    def __init__(self, device: GpuDevice, shapes: Sequence[ShapeKey]) -> None:
        self._device, self.tables = device, device.base.fork()
        self.codes = cupy.empty(max(shape.packing.end(shape.n, shape.k) for shape in shapes), np.uint8)
        self._quantising: Table = np.zeros((len(shapes), len(PlanColumn)), np.int64)
        for index, shape in enumerate(shapes):
            function = device.kernels.function("quantise_inputs", "quantise_inputs", "", **shape.packing.macros)
            launch = to_launch(quantising_geometry(shape, device.row_elements(shape)))
            self._quantising[index] = device.kernels.row(function, launch)
            a, b, c = self.tables.shapes[index, BASES].tolist()
            self._load(self._quantising[index], 0, b, self._address)  # GEMMs are then timed with codes of inputs
            self._plan_gemms(index, shape)
            first = self.tables.plans[self.tables.shapes[index, ShapeColumn.PLAN0]]
            self._load(first, a, self._address, c)
        device.synchronize()

    @property
    def _address(self) -> int:
        return int(self.codes.data.ptr)

    def _plan_gemms(self, index: int, shape: ShapeKey) -> None:
        """Add a plan for each slot of the weights, all with the algorithm that is the fastest for some of them."""
        device, row, packing = self._device, self._device.base.shapes[index], shape.packing
        first = int(row[ShapeColumn.BASE_A]) + packing.scales_at(shape.m, shape.k)
        modes = cublasLt.MatmulMatrixScale
        mode = int(modes.OUTER_VEC_32F if packing.scales is Scales.channel else modes.SCALAR_32F)
        scaling = Scaling(mode, first, self._address + packing.scales_at(shape.n, shape.k))
        gemm = Gemm(shape, 1, (0, 0, 0), device.row_elements(shape), scaling=scaling)
        fastest, algorithm = of_copies(device, index, gemm, 1, 1, self._address)

        def make(slot: int) -> Row:
            own = scaling._replace(a_address=first + slot * int(row[ShapeColumn.BYTES_A]))
            return device.lt.with_scales(fastest, own), algorithm

        slots = device.work.arenas[device.work.operands(shape)[0].arena]
        self.tables.add(index, range(slots), make)

    def _load(self, plan: Table, a: int, b: int, c: int) -> None:
        """Make a launch once, so that the driver has loaded its kernel. a, b, c: addresses of the operands."""
        self._device.check(lt.launch(self.tables.contexts[0], plan, a, b, c, 0))

    def submit(self, words: Words, shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Make two launches per command. The compiled loop runs from one sampled launch to the next."""
        device, first = self._device, 0
        flush = (device.recorder.next_batch(len(words)), int(FlushReason.full), flush_ns)
        quantising = (self._quantising, self._address)
        while first < len(words):
            stop = min(len(words), first + max(1, device.unmarked_launches))
            device.enter(int(shape_of[first]), 1)
            status = launch_quantised(
                words, shape_of, first, stop, self.tables.arrays, quantising, device.records, flush
            )
            device.check(status)
            device.left()
            first = stop

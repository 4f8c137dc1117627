"""kernel: one launch of our own GEMV kernel per command, in arrival order. It is the reference for mode=pdl.

The kernel, launchopt/kernels/gemv.cu, is for GEMMs of up to 8 columns. Quantised weights have a kernel of their own,
gemv_quantised.cu, which unpacks them in registers. Commands other than GEMMs are launched as in mode=baseline.
"""

from __future__ import annotations

from collections.abc import Mapping

from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device, gpu_of
from launchopt.devices.cublaslt.launch_tables import ShapeColumn
from launchopt.devices.prepared import LaunchPath
from launchopt.modes.base import Mode, Takes
from launchopt.modes.baseline import EachCommand
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chains.chain import Stream

MOST_COLUMNS = 8


class Kernel(Mode):
    """One launch of our own kernel per command."""

    name = "kernel"
    takes = Takes.commands
    compiled_loop = True
    keeps_order = True
    devices = ("cuda",)
    ops = frozenset(Op)
    quantised = ("cuda",)
    early = False  # True: programmatic dependent launch

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. It needs a GEMM, and every GEMM must have few columns."""
        widest = max((shape.n for shape in stream.shapes if shape.op is Op.GEMM), default=0)
        if widest > MOST_COLUMNS:
            return f"is made for up to {MOST_COLUMNS} columns, and this workload has {widest}"
        if not widest:
            return "launches GEMVs, and this workload has none"
        return super().refusal(kind, stream)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> EachCommand:
        """Compile the kernel for each shape."""
        gpu = gpu_of(device)
        tables = gpu.base.fork()
        for index, shape in enumerate(limits):
            gpu.name_ranges(self.name, index, [1])
            if shape.op is not Op.GEMM:
                gpu.planner.plan_strided(tables, index, [1])
                continue
            gpu.planner.plan_gemv(tables, index, [1], self.early)
            tables.shapes[index, ShapeColumn.ONE_IS] = Strategy.kernel
        return EachCommand(self, gpu, LaunchPath(packable_bytes=[0] * len(limits), tables=tables))

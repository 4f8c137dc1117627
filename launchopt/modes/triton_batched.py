"""triton_batched: one launch of a Triton kernel per batch, for GEMVs and small GEMMs of up to 16 columns.

Weights may be quantised. The kernel then unpacks codes in registers.

The kernel finds each command's operands through a table of pointers, as in mode=pointer_array: 24 bytes per command,
filled and uploaded inside the launch. A batch of one command is launched with its addresses. The tile sizes of each
shape are tuned once, on the workload's own operands. Compilation and tuning count as setup; they take less time if
Triton's disk cache has the kernels. The compiled loops launch the kernel, not Triton's own launcher. Commands other
than GEMMs are launched as in mode=batched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device, GpuDevice, gpu_of
from launchopt.devices.prepared import LaunchPath
from launchopt.devices.triton.tuning import MOST_COLUMNS, scratch_bytes
from launchopt.errors import ConfigError
from launchopt.modes.base import Mode
from launchopt.modes.pointer_array import Launch, PreparedPointers
from launchopt.streams.chains.chain import Stream
from launchopt.weights.packing import WeightFormat

if TYPE_CHECKING:
    from launchopt.devices.triton.gemm import TritonGemms

FP8_SINCE = 89  # compute capability that converts fp8, times 10
MOST_COMMANDS = 65_535  # CUDA's limit on the blocks of a grid in y


class TritonBatched(Mode):
    """One launch per batch, with operands anywhere."""

    name = "triton_batched"
    devices = ("cuda",)
    ops = frozenset(Op)
    quantised = ("cuda",)
    packages = ("triton",)
    extra = "torch"

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. It needs a GEMM, and every GEMM must have few columns."""
        widest = max((shape.n for shape in stream.shapes if shape.op is Op.GEMM), default=0)
        if not widest:
            return "launches GEMMs of few columns, and this workload has none"
        if widest > MOST_COLUMNS:
            return f"is made for up to {MOST_COLUMNS} columns, and this workload has {widest}"
        return super().refusal(kind, stream)

    @classmethod
    def quantised_refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot compute with quantised weights, or None if it can."""
        return None if kind in cls.quantised else super().quantised_refusal(kind, stream)

    @classmethod
    def capability_refusal(cls, stream: Stream, capability: int) -> str | None:
        """Return why a GPU of this compute capability, times 10, cannot convert the codes of weights; or None."""
        if stream.packing.format is not WeightFormat.fp8 or capability >= FP8_SINCE:
            return None
        able = "use workload.weights=int8 or int4, or mode=kernel"
        return f"Triton reads fp8 on compute capability 8.9 or newer, and this GPU has {capability / 10}: {able}"

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Return the bytes for the outputs of the tuning launches."""
        sizes = [
            scratch_bytes(shape, stream.operands(shape)[2].row_elements, limit)
            for shape, limit in limits.items()
            if shape.op is Op.GEMM
        ]
        return max(sizes, default=0)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedTriton:
        """Tune each GEMM shape, plan every batch size of every shape."""
        from launchopt.devices.cublaslt.pointer_arrays import LtPointers
        from launchopt.devices.triton.gemm import TritonGemms
        from launchopt.recording.launch_rows import Strategy

        if max(limits.values()) > MOST_COMMANDS:
            why = f"a launch of mode={self.name} takes at most {MOST_COMMANDS} commands"
            raise ConfigError("batching.max_batch", max(limits.values()), why)
        gpu = gpu_of(device)
        gemms, tables = TritonGemms(gpu), gpu.base.fork()
        for index, (shape, limit) in enumerate(limits.items()):
            gpu.name_ranges(self.name, index, range(1, limit + 1))
            if shape.op is Op.GEMM:
                gemms.tune(index, limit)
                gemms.plan_alone(tables, index)
            else:
                gpu.planner.plan_strided(tables, index, range(1, limit + 1))
        pointers = LtPointers(gpu, limits, gemms.row, Strategy.triton)
        return PreparedTriton(self, gpu, list(limits), pointers.submit, LaunchPath(tables=tables), gemms)


class PreparedTriton(PreparedPointers):
    """Launches batches as mode=pointer_array does, with tuned kernels."""

    def __init__(
        self,
        mode: Mode,
        gpu: GpuDevice,
        shapes: list[ShapeKey],
        launch: Launch,
        path: LaunchPath,
        gemms: TritonGemms,
    ) -> None:
        super().__init__(mode, gpu, shapes, launch, path)
        self.gemms = gemms

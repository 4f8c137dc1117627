"""fused_epilogue: one GEMM with cuBLASLt's epilogue computes GEMM, bias and ReLU for all requests of a step.

The mode takes whole steps. The outputs of GEMM and bias stay inside the launch: they are not written to memory and not
verified. The output of ReLU is verified against a float64 reference computed from the launch's inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device, gpu_of, is_host
from launchopt.modes.base import Mode, PreparedSteps, Takes
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chain import Stream
from launchopt.streams.program import INPUT

if TYPE_CHECKING:
    from launchopt.devices.cpu.fused_steps import Compute, CpuSteps
    from launchopt.devices.steps.stage_table import Fused
    from launchopt.devices.steps.stages import LtSteps

GEMM_BIAS_RELU = (Op.GEMM, Op.BIAS, Op.RELU)


def is_made_of(stream: Stream, ops: tuple[Op, ...]) -> bool:
    """Return whether a layer of the workload is exactly `ops`, each with the previous op's output as its input."""
    if stream.program is None or stream.program.prologue:
        return False
    nodes = stream.program.layer
    before = [INPUT, *(node.name for node in nodes[:-1])]
    return tuple(node.op for node in nodes) == ops and [node.b for node in nodes] == before


class FusedEpilogue(Mode):
    """One launch per linear layer."""

    name = "fused_epilogue"
    takes = Takes.steps
    unwritten = frozenset({"gemm", "bias"})

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. Each layer must be GEMM, bias and ReLU, in this order."""
        if not is_made_of(stream, GEMM_BIAS_RELU):
            return "fuses GEMM, bias and ReLU in a row: this workload has none"
        return super().refusal(kind, stream)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedSteps:
        """Plan the GEMM of every layer, with the address of its bias."""
        if is_host(device):
            from launchopt.devices.cpu.fused_steps import CpuSteps

            return PreparedSteps(self, device, CpuSteps(device, limits, Strategy.fused, _groups_on_cpu).launch)
        gpu = gpu_of(device)
        from launchopt.devices.steps.fused import epilogue_gemm, prepared_steps

        def fusions(steps: LtSteps, of_kind: int, replica: int) -> Sequence[Fused]:
            rows = len(steps.indices(of_kind))
            return [epilogue_gemm(steps, of_kind, start, replica) for start in starts(rows)]

        return PreparedSteps(self, gpu, prepared_steps(gpu, limits, fusions).launch)


def starts(rows: int) -> range:
    """Return the first row of each group of three. The row of an LM head behind them is in no group."""
    return range(0, rows - rows % 3, 3)


def _groups_on_cpu(steps: CpuSteps, kind: int) -> dict[int, tuple[int, Compute]]:
    return {start: (start + 3, steps.epilogue(start)) for start in starts(len(steps.rows))}

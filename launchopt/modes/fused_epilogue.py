"""fused_epilogue: GEMM, bias and ReLU of all requests in step as one GEMM with cuBLASLt's epilogue.

Takes whole steps. What the GEMM and the bias give stays inside the launch: it is not written, and not checked by
itself; the ReLU's output is, against float64 from what went in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device, gpu_of, is_host
from launchopt.modes.base import Mode, PreparedSteps, Takes
from launchopt.recording.launch_rows import Strategy
from launchopt.workloads.chain import Stream
from launchopt.workloads.program import INPUT

if TYPE_CHECKING:
    from launchopt.devices.cpu.fused_steps import Compute, CpuSteps
    from launchopt.devices.steps.stages import Fused, LtSteps

GEMM_BIAS_RELU = (Op.GEMM, Op.BIAS, Op.RELU)


def is_made_of(stream: Stream, ops: tuple[Op, ...]) -> bool:
    """A layer of the stream's program is these ops, each on what the one before gives, and nothing else."""
    if stream.program is None or stream.program.prologue:
        return False
    nodes = stream.program.layer
    before = [INPUT, *(node.name for node in nodes[:-1])]
    return tuple(node.op for node in nodes) == ops and [node.b for node in nodes] == before


class FusedEpilogue(Mode):
    """One launch a linear layer."""

    name = "fused_epilogue"
    summary = "one GEMM with bias and ReLU in its epilogue"
    takes = Takes.steps
    unwritten = frozenset({"gemm", "bias"})

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """As any; the three must be there."""
        if not is_made_of(stream, GEMM_BIAS_RELU):
            return "fuses GEMM, bias and ReLU in a row: this workload has none"
        return super().refusal(kind, stream)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedSteps:
        """Plan the GEMM of every layer, which knows its bias."""
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
    """First row of each group of three; an LM head behind them stays by itself."""
    return range(0, rows - rows % 3, 3)


def _groups_on_cpu(steps: CpuSteps, kind: int) -> dict[int, tuple[int, Compute]]:
    return {start: (start + 3, steps.epilogue(start)) for start in starts(len(steps.rows))}

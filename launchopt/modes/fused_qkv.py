"""fused_qkv: one GEMM with a merged weight computes q, k and v for all requests of a step.

The mode takes whole steps, so that the three projections come together. Their weights are adjacent in memory, and so
are their outputs: the merged GEMM reads and writes the same bytes as three GEMMs. Other rows are launched as in
mode=coalesced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launchopt.command import ShapeKey
from launchopt.devices.base import Device, gpu_of, is_host
from launchopt.modes.base import Mode, PreparedSteps, Takes
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chain import ChainStream, Stream, chain_of

if TYPE_CHECKING:
    from launchopt.devices.cpu.fused_steps import Compute, CpuSteps
    from launchopt.devices.steps.stage_table import Fused
    from launchopt.devices.steps.stages import LtSteps


def merged_rows(stream: ChainStream, kind: int) -> list[tuple[int, int]]:
    """Return the first row, and one past the last, of each group of GEMMs that a kind of step can merge."""
    found: list[tuple[int, int]] = []
    own = stream.rows(kind)
    for names in stream.program.merged:
        starts = [i for i, row in enumerate(own) if row.name == names[0]]
        found += [(start, start + len(names)) for start in starts]
    return sorted(found)


class FusedQkv(Mode):
    """One launch for q, k and v."""

    name = "fused_qkv"
    takes = Takes.steps

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. It must have q, k and v as separate GEMMs."""
        if stream.program is None or not stream.program.merged:
            return "merges q, k and v, and this workload does not have them as separate GEMMs"
        return super().refusal(kind, stream)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedSteps:
        """Plan the merged GEMMs of every kind of step."""
        if is_host(device):
            from launchopt.devices.cpu.fused_steps import CpuSteps

            return PreparedSteps(self, device, CpuSteps(device, limits, Strategy.fused, self._merge_on_cpu).launch)
        gpu = gpu_of(device)
        stream = chain_of(gpu.work)
        from launchopt.devices.steps.fused import merged_gemm, prepared_steps

        def fusions(steps: LtSteps, of_kind: int, replica: int) -> Sequence[Fused]:
            return [merged_gemm(steps, of_kind, *group) for group in merged_rows(stream, of_kind)]

        return PreparedSteps(self, gpu, prepared_steps(gpu, limits, fusions).launch)

    @staticmethod
    def _merge_on_cpu(steps: CpuSteps, kind: int) -> dict[int, tuple[int, Compute]]:
        """Return, by the first row of each group, one past its last row and the function that computes it."""
        return {start: (stop, steps.merged(start, stop)) for start, stop in merged_rows(steps.stream, kind)}

"""fused_qkv: q, k and v of all requests in step as one GEMM with a merged weight; every other row as in coalesced.

Takes whole steps, so that the three are at hand together. Their weights lie side by side in memory, and so do their
outputs: the merged GEMM reads and writes exactly the bytes that the three do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launchopt.batching.batcher import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device
from launchopt.modes.base import Mode, Takes
from launchopt.recording.recorder import Strategy
from launchopt.workloads.chain import ChainStream, Stream


def merged_rows(stream: ChainStream, kind: int) -> list[tuple[int, int]]:
    """First row, and one past the last, of each group of GEMMs that may be one, in a kind of steps."""
    found: list[tuple[int, int]] = []
    own = stream.rows(kind)
    for names in stream.program.merged:
        starts = [i for i, row in enumerate(own) if row.name == names[0]]
        found += [(start, start + len(names)) for start in starts]
    return sorted(found)


class FusedQkv(Mode):
    """One launch for q, k and v."""

    name = "fused_qkv"
    summary = "one GEMM for q, k and v of all requests in step"
    takes = Takes.steps

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """As any; q, k and v must be there, and apart."""
        if not isinstance(stream, ChainStream) or not stream.program.merged:
            return "merges q, k and v, and this workload has none apart"
        return super().refusal(kind, stream)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Plan the merged GEMMs of every kind of step."""
        any_device: Any = device
        if device.info.kind == "cpu":
            from launchopt.devices.cpu.fused_steps import CpuSteps

            self._steps: Any = CpuSteps(any_device, limits, Strategy.fused, self._merge_on_cpu)
            return
        from launchopt.devices.steps.fused import merged_gemm, prepared_steps

        def fusions(steps: Any, of_kind: int, replica: int) -> Sequence[Any]:
            return [merged_gemm(steps, of_kind, *group) for group in merged_rows(any_device.work, of_kind)]

        self._steps = prepared_steps(any_device, limits, fusions)

    @staticmethod
    def _merge_on_cpu(steps: Any, kind: int) -> dict[int, tuple[int, Any]]:
        """For the first row of each group one past its last, and what computes the group."""
        return {start: (stop, steps.merged(start, stop)) for start, stop in merged_rows(steps.stream, kind)}

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """One launch a row, or a group of rows."""
        self._steps.launch(batch, flush_ns)

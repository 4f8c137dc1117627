"""fused_epilogue: GEMM, bias and ReLU of all requests in step as one GEMM with cuBLASLt's epilogue.

Takes whole steps. What the GEMM and the bias give stays inside the launch: it is not written, and not checked by
itself; the ReLU's output is, against float64 from what went in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launchopt.batching.batcher import Batch
from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device
from launchopt.modes.base import Mode, Takes
from launchopt.recording.recorder import Strategy
from launchopt.workloads.chain import ChainStream, Stream
from launchopt.workloads.program import INPUT

GEMM_BIAS_RELU = (Op.GEMM, Op.BIAS, Op.RELU)


def is_made_of(stream: Stream, ops: tuple[Op, ...]) -> bool:
    """A layer of the stream's program is these ops, each on what the one before gives, and nothing else."""
    if not isinstance(stream, ChainStream) or stream.program.prologue:
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

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Plan the GEMM of every layer, which knows its bias."""
        any_device: Any = device
        if device.info.kind == "cpu":
            from launchopt.devices.cpu.fused_steps import CpuSteps

            self._steps: Any = CpuSteps(any_device, limits, Strategy.fused, _groups_on_cpu)
            return
        from launchopt.devices.steps.fused import epilogue_gemm, prepared_steps

        def fusions(steps: Any, of_kind: int, replica: int) -> Sequence[Any]:
            rows = len(steps.indices(of_kind))
            return [epilogue_gemm(steps, of_kind, start, replica) for start in starts(rows)]

        self._steps = prepared_steps(any_device, limits, fusions)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """One launch a layer."""
        self._steps.launch(batch, flush_ns)


def starts(rows: int) -> range:
    """First row of each group of three; an LM head behind them stays by itself."""
    return range(0, rows - rows % 3, 3)


def _groups_on_cpu(steps: Any, kind: int) -> dict[int, tuple[int, Any]]:
    return {start: (start + 3, steps.epilogue(start)) for start in starts(len(steps.rows))}

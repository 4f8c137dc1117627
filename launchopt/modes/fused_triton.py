"""fused_triton: one Triton kernel launch a step of bias, ReLU and scale, for all requests in step and all layers.

For workload=elementwise_chain. The kernel stores what bias and ReLU give as well, though the next op has it at hand: every
mode leaves the same outputs behind, and all are checked. Operands are found through a table of pointers, filled and
uploaded within the launch. mode=fused_elementwise is the same with a CUDA kernel of our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launchopt.batcher import Batch
from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device, Stream
from launchopt.modes.base import Mode, Takes
from launchopt.workloads.chain import ChainStream
from launchopt.workloads.program import INPUT

FUSED = (Op.BIAS, Op.RELU, Op.SCALE)


class FusedTriton(Mode):
    """One launch a batch of steps."""

    name = "fused_triton"
    summary = "one Triton kernel launch for the bias, ReLU and scale of whole steps"
    takes = Takes.steps
    devices = ("cuda",)
    packages = ("triton",)
    extra = "torch"

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """As any; steps must be of these three ops."""
        return super().refusal(kind, stream) or elementwise_refusal(stream)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Compile the kernel, plan every number of requests."""
        from launchopt.devices.triton_elementwise import TritonSteps

        self._steps = TritonSteps(device, limits)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """One launch."""
        steps: Any = batch
        self._steps.submit(steps, flush_ns)


def elementwise_refusal(stream: Stream) -> str | None:
    """Why steps of `stream` are not bias, ReLU and scale, layer by layer, and nothing else; None: they are."""
    assert isinstance(stream, ChainStream)
    program = stream.program
    before = (INPUT, *(node.name for node in program.layer))
    fits = tuple(node.op for node in program.layer) == FUSED and not program.prologue and stream.vocab is None
    if fits and all(node.b == name for node, name in zip(program.layer, before, strict=False)):
        return None
    return "fuses bias, ReLU and scale, and this workload's steps have other ops"

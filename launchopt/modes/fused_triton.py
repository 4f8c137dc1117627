"""fused_triton: one Triton kernel launch a step of bias, ReLU and scale, for all requests in step and all layers.

For workload=elementwise_chain. The kernel stores what bias and ReLU give as well, though the next op has it at hand:
the same outputs are left behind as by one launch a command, to the bit, and all of them are checked. Operands are found
through a table of pointers, filled and uploaded within the launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launchopt.batcher import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device, Stream
from launchopt.modes.base import Mode, Takes
from launchopt.modes.fused_elementwise import BIAS_RELU_SCALE, REFUSAL
from launchopt.workloads.chain import ChainStream
from launchopt.workloads.program import INPUT, Program


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
        if not (isinstance(stream, ChainStream) and _is_chain_of_three(stream.program)):
            return REFUSAL
        if stream.vocab is not None:
            return "launches no LM head, and with a sampling there is one"
        return super().refusal(kind, stream)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Compile the kernel, plan every number of requests."""
        from launchopt.devices.triton_elementwise import TritonSteps

        self._steps = TritonSteps(device, limits)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """One launch."""
        steps: Any = batch
        self._steps.submit(steps, flush_ns)


def _is_chain_of_three(program: Program) -> bool:
    """Bias, ReLU and scale, each of what the one before gives, and nothing else."""
    before = [INPUT, *(node.name for node in program.layer[:-1])]
    ops = tuple(node.op for node in program.layer)
    return ops == BIAS_RELU_SCALE and not program.prologue and [node.b for node in program.layer] == before

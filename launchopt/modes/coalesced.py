"""coalesced: one GEMM for all commands that share a weight, with one column per command.

Inference engines do this: the weight is read once for all requests of a batch. The mode takes whole steps, so that all
requests run the same layer at once. Evenly spaced activations are used in place. If the activations form many evenly
spaced runs, one kernel gathers them and another one scatters the outputs, inside the launch. Independent commands are
taken in batches. Commands that share no weight, prompts and other ops are launched as in mode=batched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launchopt.batching.batch import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device, gpu_of, is_host
from launchopt.modes.base import Mode, Prepared, Takes
from launchopt.modes.stacked import Stacked
from launchopt.streams.chains.chain import Stream
from launchopt.streams.operands import is_shared


class Coalesced(Stacked):
    """One launch per weight."""

    name = "coalesced"
    takes = Takes.batches
    prefers_steps = True

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. At least two commands must share a weight."""
        moves = stream.strides()
        if not any(is_shared(shape, moves[shape]) for shape in stream.shapes):
            return "joins commands that share a weight, and here none do: mode=batched needs no shared weight"
        return super().refusal(kind, stream)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> Prepared:
        """Plan each shape for every number of columns."""
        if device.work.has_steps:
            return super().prepare(device, limits)
        if is_host(device):
            from launchopt.devices.cpu.coalesced import CpuCoalesced

            return _Batches(self, device, CpuCoalesced(device, list(limits)).submit)
        from launchopt.devices.steps.coalesced import LtCoalesced

        return _Batches(self, device, LtCoalesced(gpu_of(device), limits).submit)


class _Batches(Prepared):
    """Launches batches of one shape with `launch`, whose second argument is the time of the flush in ns."""

    def __init__(self, mode: Mode, device: Device, launch: Callable[[Batch, int], None]) -> None:
        super().__init__(mode, device)
        self._launch = launch

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Make one launch per weight."""
        self._launch(batch, flush_ns)

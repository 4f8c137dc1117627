"""coalesced: one GEMM for all commands that share a weight, with one column per command.

Inference engines do this: the weight is read once for all requests of a batch. The mode takes whole steps, so that all
requests run the same layer at once. Evenly spaced activations are used in place. If the activations form many evenly
spaced runs, one kernel gathers them and another one scatters the outputs, inside the launch. Independent commands are
taken in batches. Commands that share no weight, prompts and other ops are launched as in mode=batched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from launchopt.batching.batch import Batch, StepBatch
from launchopt.command import COMMAND_DTYPE, Op, Records, ShapeKey
from launchopt.devices.base import Device, GpuDevice, HostDevice, gpu_of, is_host
from launchopt.modes.base import Mode, Prepared, PreparedSteps
from launchopt.modes.batched import NEVER
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chain import Stream
from launchopt.streams.operands import is_shared

if TYPE_CHECKING:
    from launchopt.devices.steps.coalesced import LtCoalesced

CPU_COPY_CALLS = 2  # a gather and a scatter


class Coalesced(Mode):
    """One launch per weight."""

    name = "coalesced"
    prefers_steps = True

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. At least two commands must share a weight."""
        moves = stream.strides()
        if not any(is_shared(shape, moves[shape]) for shape in stream.shapes):
            return "joins commands that share a weight, and here none do"
        return super().refusal(kind, stream)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> Prepared:
        """Plan each shape for every number of columns."""
        if is_host(device):
            return _OnHost(self, device, list(limits))
        gpu = gpu_of(device)
        from launchopt.devices.steps.coalesced import CoalescedSteps, LtCoalesced

        if gpu.work.has_steps:
            return PreparedSteps(self, gpu, CoalescedSteps(gpu, limits).submit)
        return _Batches(self, gpu, LtCoalesced(gpu, limits))


class _Batches(Prepared):
    """Launches batches of one shape on a GPU."""

    def __init__(self, mode: Mode, gpu: GpuDevice, launched: LtCoalesced) -> None:
        super().__init__(mode, gpu)
        self._launched = launched

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Make one launch per weight."""
        self._launched.submit(batch, flush_ns)


class _OnHost(Prepared):
    """Launches batches of one shape and whole steps on the CPU."""

    def __init__(self, mode: Mode, host: HostDevice, shapes: list[ShapeKey]) -> None:
        super().__init__(mode, host)
        self._host, self._shapes = host, shapes

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Make one launch per weight."""
        for part in _by_weight(batch):
            if len(part) > 1 and self._shapes[part.shape_index].op is Op.GEMM:
                self._wide(part, flush_ns)
            else:
                self._host.submit_strided(part, flush_ns, NEVER)

    def submit_steps(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch each row of the steps as `submit` does: its commands have one shape."""
        for first in range(0, len(batch.words), batch.size):
            row = batch.words[first : first + batch.size]
            self.submit(Batch(self._host.index_of(row[0]), row, batch.reason), flush_ns)

    def _wide(self, batch: Batch, flush_ns: int) -> None:
        """Gather the inputs, multiply them as columns of one GEMM, scatter its outputs."""
        host, shape, count = self._host, self._shapes[batch.shape_index], len(batch)
        weights, inputs, outputs = host.compute.views[batch.shape_index]
        records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
        slot = int(records["slot_a"][0])
        start_ns = host.enter(batch.shape_index, count)
        taken = np.take(inputs, records["slot_b"], axis=0)
        product = np.empty((1, count * shape.n, shape.m), outputs.dtype)
        host.compute.multiply(weights[slot : slot + 1], taken.reshape(1, -1, shape.k), product)
        outputs[records["slot_c"]] = product.reshape(count, shape.n, shape.m)
        copied = taken.nbytes + product.nbytes
        host.leave(batch, slice(0, count), Strategy.coalesced, flush_ns, start_ns, CPU_COPY_CALLS, copied)


def _by_weight(batch: Batch) -> list[Batch]:
    records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
    order = np.argsort(records["slot_a"], kind="stable")
    cuts = np.flatnonzero(np.diff(records["slot_a"][order])) + 1
    return [Batch(batch.shape_index, batch.words[part], batch.reason) for part in np.split(order, cuts)]

"""coalesced: one GEMM for all commands that share a weight, with a column a command.

What engines do with requests in step: the weight is read once. Takes whole steps, so that requests stay in step.
Activations that lie evenly spaced are used where they are; where the requests of a step would have to be launched in
many pieces, activations are gathered by a kernel and the outputs scattered, inside the launch. Independent commands are
taken in batches. Those that share no weight, prompts and other ops are launched as in mode=batched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from launchopt.batching.batcher import Batch
from launchopt.command import COMMAND_DTYPE, Op, Records, ShapeKey
from launchopt.devices.base import Device
from launchopt.devices.steps.keys import is_shared
from launchopt.modes.base import Mode, Takes
from launchopt.modes.batched import NEVER
from launchopt.recording.recorder import Strategy
from launchopt.workloads.chain import ChainStream, Stream

CPU_COPY_CALLS = 2  # a gather and a scatter


class Coalesced(Mode):
    """One launch a weight."""

    name = "coalesced"
    summary = "one wider GEMM for all commands that share a weight"

    @classmethod
    def takes_of(cls, stream: Stream) -> Takes:
        """Whole steps, where there are any."""
        return Takes.steps if isinstance(stream, ChainStream) else Takes.batches

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """As any; somebody must share a weight."""
        moves = stream.strides()
        if not any(is_shared(shape, moves[shape]) for shape in stream.shapes):
            return "joins commands that share a weight, and here none do"
        return super().refusal(kind, stream)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Plan every number of columns of every shape."""
        self._device, self._shapes = device, list(limits)
        any_device: Any = device
        self._gpu: Any = None
        if device.info.kind == "cpu":
            return
        from launchopt.devices.steps.coalesced import CoalescedSteps, LtCoalesced

        is_chain = isinstance(any_device.work, ChainStream)
        self._gpu = CoalescedSteps(any_device, limits) if is_chain else LtCoalesced(any_device, limits)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """One launch a weight."""
        if self._gpu is not None:
            self._gpu.submit(batch, flush_ns)
            return
        for row in self._rows(batch):
            for part in _by_weight(row):
                if len(part) > 1 and self._shapes[part.shape_index].op is Op.GEMM:
                    self._wide(part, flush_ns)
                else:
                    self._device.submit_strided(part, flush_ns, NEVER)

    def _rows(self, batch: Batch) -> list[Batch]:
        """Of whole steps a batch a row, of one shape each; else the batch itself."""
        if batch.shape_index >= 0:
            return [batch]
        steps: Any = batch
        cpu: Any = self._device
        stops = range(steps.size, len(batch.words) + 1, steps.size)
        parts = [batch.words[stop - steps.size : stop] for stop in stops]
        index_of = cpu.index_of
        return [Batch(index_of(part[0]), part, batch.reason) for part in parts]

    def _wide(self, batch: Batch, flush_ns: int) -> None:
        """On the CPU: gather the inputs, one GEMM, scatter its columns."""
        cpu: Any = self._device
        shape, count = self._shapes[batch.shape_index], len(batch)
        weights, inputs, outputs = cpu.compute.views[batch.shape_index]
        records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
        slot = int(records["slot_a"][0])
        start_ns = cpu.enter(batch.shape_index, count)
        taken = np.take(inputs, records["slot_b"], axis=0)
        product = np.empty((1, count * shape.n, shape.m), outputs.dtype)
        cpu.compute.multiply(weights[slot : slot + 1], taken.reshape(1, -1, shape.k), product)
        outputs[records["slot_c"]] = product.reshape(count, shape.n, shape.m)
        copied = taken.nbytes + product.nbytes
        cpu.leave(batch, slice(0, count), Strategy.coalesced, flush_ns, start_ns, CPU_COPY_CALLS, copied)


def _by_weight(batch: Batch) -> list[Batch]:
    records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
    order = np.argsort(records["slot_a"], kind="stable")
    cuts = np.flatnonzero(np.diff(records["slot_a"][order])) + 1
    return [Batch(batch.shape_index, batch.words[part], batch.reason) for part in np.split(order, cuts)]

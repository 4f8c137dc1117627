"""Commands of one shape that share a weight, as columns of one GEMM on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from launchopt.batching.batch import Batch
from launchopt.command import COMMAND_DTYPE, Op, Records, ShapeKey
from launchopt.devices.base import HostDevice
from launchopt.devices.cpu.launch import gather
from launchopt.recording.launch_rows import Strategy

COPY_CALLS = 2  # calls besides the launch: gather the inputs, scatter the outputs
ALWAYS = 1 << 40  # limit on launches: more than any batch has commands


class CpuCoalesced:
    """Launches batches of one shape."""

    def __init__(self, host: HostDevice, shapes: Sequence[ShapeKey]) -> None:
        self._host, self._shapes = host, shapes

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Make one launch per weight."""
        for part in _by_weight(batch):
            if len(part) > 1 and self._shapes[part.shape_index].op is Op.GEMM:
                self._wide(part, flush_ns)
            else:
                self._host.submit_strided(part, flush_ns, ALWAYS)

    def _wide(self, batch: Batch, flush_ns: int) -> None:
        """Gather the inputs, multiply them as columns of one GEMM, scatter its outputs."""
        host, shape, count = self._host, self._shapes[batch.shape_index], len(batch)
        weights, inputs, outputs = host.compute.views[batch.shape_index]
        records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
        slot = int(records["slot_a"][0])
        start_ns = host.enter(batch.shape_index, count)
        taken = np.empty((count, shape.n, shape.k), inputs.dtype)
        product = np.empty((1, count * shape.n, shape.m), outputs.dtype)
        gather(inputs, records["slot_b"], taken)
        weight = weights[slot : slot + 1]
        host.compute.multiply(batch.shape_index, weight, taken.reshape(1, -1, shape.k), product)
        outputs[records["slot_c"]] = product.reshape(count, shape.n, shape.m)
        copied = taken.nbytes + product.nbytes
        host.leave(batch, slice(0, count), Strategy.coalesced, flush_ns, start_ns, COPY_CALLS, copied)


def _by_weight(batch: Batch) -> list[Batch]:
    records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
    order = np.argsort(records["slot_a"], kind="stable")
    cuts = np.flatnonzero(np.diff(records["slot_a"][order])) + 1
    return [Batch(batch.shape_index, batch.words[part], batch.reason) for part in np.split(order, cuts)]

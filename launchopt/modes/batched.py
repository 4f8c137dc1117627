"""batched: one strided-batch GEMM call for all commands of a bucket whose operands lie evenly spaced.

A strided batch needs A, B and C each at a fixed distance from one command to the next. Slots that are handed
out in turn give that, but for the places where a cycle wraps: there the batch is cut and takes one more call.
Where slots are scattered, many calls would be needed; then A and B are copied side by side, C is scattered
back, and that is charged to the batch. Copying is chosen when it moves fewer bytes than the device copies in
the time of the launches saved (`pack_bytes_per_launch`).
"""

from __future__ import annotations

from collections.abc import Mapping

from launchopt.batching.batcher import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device, LaunchPath
from launchopt.modes.base import Mode, Prepared
from launchopt.workloads.chain import Stream
from launchopt.workloads.stream import arenas_of

NEVER = 1 << 40  # more launches than a batch has commands: cut it however often it takes


def _slot_bytes(shape: ShapeKey) -> int:
    return sum(arena.slot_bytes for arena in arenas_of(shape))


def _packing_pays(shape: ShapeKey, limit: int, pack_bytes_per_launch: int) -> bool:
    # Cutting costs at most one launch a command, so packing pays only below that many bytes a command.
    return limit > 1 and _slot_bytes(shape) < pack_bytes_per_launch


class Batched(Mode):
    """One launch a batch, or a few where its slots are not evenly spaced."""

    name = "batched"
    summary = "one strided-batch call a bucket; scattered operands are packed first"
    compiled_loop = True

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedBatched:
        """Plan every batch size of every shape; packing where it can pay."""
        packable_bytes = []
        for shape, limit in limits.items():
            pays = _packing_pays(shape, limit, device.pack_bytes_per_launch)
            device.plan(self.name, shape, range(1, limit + 1), scratch=pays)
            packable_bytes.append(_slot_bytes(shape) if pays else 0)
        return PreparedBatched(self, device, LaunchPath(packable_bytes=packable_bytes))

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Room for the largest batch that may be packed."""
        if not stream.packable:
            return 0
        sizes = [
            limit * _slot_bytes(shape)
            for shape, limit in limits.items()
            if _packing_pays(shape, limit, pack_bytes_per_launch)
        ]
        return max(sizes, default=0)


class PreparedBatched(Prepared):
    """Every batch size is planned."""

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """One strided call a run of evenly spaced slots, or one packed call."""
        slot_bytes = self.path.packable_bytes[batch.shape_index]
        most = NEVER
        if slot_bytes:
            most = 1 + len(batch) * slot_bytes // self.device.pack_bytes_per_launch
        if not self.device.submit_strided(batch, flush_ns, most):
            self.device.submit_packed(batch, flush_ns)

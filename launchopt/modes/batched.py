"""batched: one strided-batch GEMM call for all commands of a bucket whose operands are evenly spaced in memory.

A strided batch needs a fixed distance from one command's A, B and C to those of the next. Consecutive slots have that,
except where the cycle of slots wraps around: the batch is cut there and takes one more call. Scattered slots would need
many calls. Then A and B are gathered into scratch memory and C is scattered back (packing). The measured time of the
batch includes these copies. A batch is packed if the device can copy its bytes in the time of the saved launches
(`pack_bytes_per_launch`).
"""

from __future__ import annotations

from collections.abc import Mapping

from launchopt.batching.batch import Batch
from launchopt.command import Op, ShapeKey
from launchopt.devices.base import Device
from launchopt.devices.prepared import LaunchPath
from launchopt.modes.base import Mode, Prepared
from launchopt.streams.chains.chain import Stream
from launchopt.streams.operands import arenas_of

NEVER = 1 << 40  # limit on launches of a batch that is never packed: more than any batch has commands


def _slot_bytes(shape: ShapeKey) -> int:
    return sum(arena.slot_bytes for arena in arenas_of(shape))


def _packing_pays(shape: ShapeKey, limit: int, pack_bytes_per_launch: int) -> bool:
    # A batch that is cut into evenly spaced runs takes at most one launch per command. So packing pays off only if a
    # command has fewer bytes than the device copies in the time of one launch.
    return limit > 1 and _slot_bytes(shape) < pack_bytes_per_launch


class Batched(Mode):
    """One launch per batch, or several if its operands are not evenly spaced."""

    name = "batched"
    compiled_loop = True
    ops = frozenset(Op)
    quantised = ("cpu", "cuda")

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedBatched:
        """Plan every batch size of every shape, with scratch memory if packing can pay off."""
        packable_bytes = []
        for shape, limit in limits.items():
            pays = _packing_pays(shape, limit, device.pack_bytes_per_launch)
            device.plan(self.name, shape, range(1, limit + 1), scratch=pays)
            packable_bytes.append(_slot_bytes(shape) if pays else 0)
        return PreparedBatched(self, device, LaunchPath(packable_bytes=packable_bytes))

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Return the bytes of the largest batch that may be packed."""
        if not stream.packable:
            return 0
        sizes = [
            limit * _slot_bytes(shape)
            for shape, limit in limits.items()
            if _packing_pays(shape, limit, pack_bytes_per_launch)
        ]
        return max(sizes, default=0)


class PreparedBatched(Prepared):
    """Launches batches of any planned size."""

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Make one strided call per run of evenly spaced commands, or one packed call."""
        slot_bytes = self.path.packable_bytes[batch.shape_index]
        most = NEVER
        if slot_bytes:
            most = 1 + len(batch) * slot_bytes // self.device.pack_bytes_per_launch
        if not self.device.submit_strided(batch, flush_ns, most):
            self.device.submit_packed(batch, flush_ns)

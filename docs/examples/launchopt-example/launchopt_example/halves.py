"""halves: every bucket in two launches, or in `mode.parts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launchopt.interface import Batch, Device, Mode, ModeOptions, Prepared, ShapeKey, option


@dataclass(slots=True)
class Options(ModeOptions):
    """Options of mode=halves."""

    parts: int = option(2, "launches a bucket", low=1, high=64)


class Halves(Mode):
    """A few strided-batch calls for every bucket."""

    name = "halves"
    options: Options = Options()

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedHalves:
        """Plan every size of a part, before the clock starts."""
        for shape, limit in limits.items():
            device.plan(self.name, shape, range(1, limit + 1), scratch=False)
        return PreparedHalves(self, device, self.options.parts)


class PreparedHalves(Prepared):
    """Launches, once `Halves` has planned them."""

    def __init__(self, mode: Halves, device: Device, parts: int) -> None:
        super().__init__(mode, device)
        self._parts = parts

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch the parts one after another; the device makes more launches where slots are not evenly spaced."""
        size = -(-len(batch) // self._parts)
        for first in range(0, len(batch), size):
            part = Batch(batch.shape_index, batch.words[first : first + size], batch.reason)
            self.device.submit_strided(part, flush_ns, size)

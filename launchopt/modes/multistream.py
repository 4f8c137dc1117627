"""multistream: one call a command, spread over several CUDA streams with events for order.

Commands of a request stay on one stream (gemv's, each a request of its own, take turns); a step's result is fed back on
the main stream, between events. mode.streams=4 (a power of two). Each stream has a cuBLASLt workspace of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launchopt.batching.batcher import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device
from launchopt.modes.base import Mode, Takes
from launchopt.modes.baseline import shape_of_all
from launchopt.modes.options import ModeOptions
from launchopt.options import option
from launchopt.workloads.chain import ChainStream, Stream


@dataclass(slots=True)
class Options(ModeOptions):
    """Options of mode=multistream."""

    streams: int = option(4, "streams that take launches in turn", low=2, high=64, is_power_of_two=True)


class MultiStream(Mode):
    """One launch a command, on the stream of its request."""

    name = "multistream"
    summary = "one call a command, over several streams"
    takes = Takes.commands
    compiled_loop = True
    devices = ("cuda",)
    options: Options = Options()

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """As any; a table of dependent commands run as one request has nothing to run side by side."""
        if not isinstance(stream, ChainStream) and not stream.independent and stream.requests == 1:
            return "has one request here, whose commands stay on one stream"
        return super().refusal(kind, stream)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Streams, and plans for one command a launch."""
        gpu: Any = device
        self._device = device
        self.streams = gpu.more_streams(self.options.streams)
        self.tables = gpu.base.fork(self.streams.contexts)
        self.packable_bytes = [0] * len(limits)
        for index in range(len(limits)):
            gpu.name_ranges(self.name, index, [1])
            gpu.plan_strided(self.tables, index, [1])

    def submit_each(self, words: Any, shape_of: Any, flush_ns: int) -> None:
        """Launch each command."""
        self._device.submit_each(words, shape_of, flush_ns)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch each command of a batch."""
        self._device.submit_each(batch.words, shape_of_all(batch), flush_ns)

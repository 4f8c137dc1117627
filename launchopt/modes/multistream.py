"""multistream: one call per command, spread over several CUDA streams. Events keep the order.

Commands of a request stay on one CUDA stream. Independent commands are requests of one command each, and use the CUDA
streams in turn. The result of a step is fed back on the main CUDA stream, between events. mode.streams=4 sets the
number of CUDA streams (a power of two). Each has a cuBLASLt workspace of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launchopt.command import ShapeKey
from launchopt.devices.base import Device, gpu_of
from launchopt.devices.prepared import LaunchPath
from launchopt.modes.base import Mode, Takes
from launchopt.modes.baseline import EachCommand
from launchopt.modes.options import ModeOptions
from launchopt.options import option
from launchopt.streams.chains.chain import Stream


@dataclass(slots=True)
class Options(ModeOptions):
    """Options of mode=multistream."""

    streams: int = option(4, "streams that take launches in turn", low=2, high=64, is_power_of_two=True)


class MultiStream(Mode):
    """One launch per command, on the CUDA stream of its request."""

    name = "multistream"
    takes = Takes.commands
    compiled_loop = True
    devices = ("cuda",)
    quantised = ("cuda",)
    options: Options = Options()

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. Each request runs in order, so it needs several."""
        if stream.has_groups:
            return "keeps the order of requests, not of groups: ordering=none ignores groups"
        if stream.is_serial:
            return "needs several requests: the commands of one request stay on one CUDA stream"
        return super().refusal(kind, stream)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> EachCommand:
        """Make the CUDA streams, and plan each shape for launches of one command."""
        gpu = gpu_of(device)
        streams = gpu.more_streams(self.options.streams)
        tables = gpu.base.fork(streams.contexts)
        for index in range(len(limits)):
            gpu.name_ranges(self.name, index, [1])
            gpu.planner.plan_strided(tables, index, [1])
        return EachCommand(self, gpu, LaunchPath(packable_bytes=[0] * len(limits), tables=tables, streams=streams))

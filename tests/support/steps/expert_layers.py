"""Small layers with experts, and runs of their commands on the CPU, one after another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from launchopt.command import Dtype, Records
from launchopt.devices.cpu.device import CpuDevice
from launchopt.modes import mode_class
from launchopt.recording.recorder import Recorder
from launchopt.streams.experts.layout import ExpertLayer
from launchopt.streams.experts.routing import Routing, RoutingKind, draw
from launchopt.streams.experts.stream import ExpertStream
from launchopt.verify.commands import CheckSettings, Verification
from launchopt.verify.experts import verify_experts
from launchopt.weights.packing import PLAIN, Packing
from support.steps.straight import records_of


def layer_stream(
    layer: ExpertLayer,
    steps: int,
    dtype: Dtype = Dtype.fp32,
    replicas: int = 1,
    kind: RoutingKind = RoutingKind.power_law,
    seed: int = 0,
    packing: Packing = PLAIN,
) -> ExpertStream:
    chosen = draw(kind, 1.2, (steps, layer.columns, layer.top_k), layer.experts, seed)
    return ExpertStream(layer, Routing(kind.value, layer.experts, chosen), dtype, replicas, packing)


@st.composite
def layers(draw: st.DrawFn) -> ExpertLayer:
    """Draw the sizes of a layer."""
    experts = draw(st.integers(1, 12))
    sizes = st.sampled_from([1, 3, 8, 65, 130])
    return ExpertLayer(draw(sizes), draw(sizes), experts, draw(st.integers(1, experts)), draw(st.integers(1, 9)))


streams = st.builds(
    layer_stream,
    layers(),
    st.integers(1, 5),
    st.sampled_from(Dtype),
    st.integers(1, 3),
    st.sampled_from([RoutingKind.balanced, RoutingKind.power_law]),
    st.integers(0, 3),
)


class LayerRun:
    """Executes the commands of a stream on the CPU, as `change` left them, and checks the outputs."""

    def __init__(self, stream: ExpertStream, change: Callable[[Records], Records] = lambda records: records) -> None:
        self.stream = stream
        self.device = CpuDevice(threads=1)
        self.device.open(stream, Recorder(stream.commands), seed=0)
        limits = dict.fromkeys(stream.shapes, 1)
        prepared = mode_class("baseline")().prepare(self.device, limits)
        self.device.arenas.poison()
        self.device.start(0, prepared.path)
        from launchopt.batching.batcher import shape_finder

        records = change(records_of(stream))
        self._words = records.view(np.uint64).reshape(len(records), -1)
        self._shape_of = shape_finder(stream.shapes).classify(records, np.zeros(len(records), np.int32))
        self.execute(0, len(records))

    def execute(self, first: int, stop: int) -> None:
        """Execute the commands from `first` to `stop`."""
        with np.errstate(all="ignore"):  # a fault computes with NaN
            self.device.execute(self._words[first:stop], self._shape_of[first:stop])

    def check(self, **settings: float) -> Verification:
        found = verify_experts(self.stream, self.device.arenas, CheckSettings(**{"max_columns": 64, **settings}))
        self.device.close()
        return found

"""Run independent commands through a mode on one thread, in batches that a consumer forms, and check every output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from launchopt.batching.batch import WHOLE, WHOLE_STEPS, Batch, FlushRules
from launchopt.batching.batcher import Batcher, shape_finder
from launchopt.command import COMMAND_DTYPE, Dtype, Records
from launchopt.devices.cpu.device import CpuDevice
from launchopt.modes import mode_class
from launchopt.modes.base import Mode, Takes
from launchopt.recording.recorder import Recorder
from launchopt.streams.experts.stream import ExpertStream
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.streams.stream import CommandStream
from launchopt.verify.commands import CheckSettings, verify
from launchopt.verify.experts import verify_experts
from support.steps.launching import recorded
from support.steps.straight import records_of

NEVER_PACK, ALWAYS_PACK = 0, 1 << 40  # bytes whose packing costs as much as a launch

sizes = st.sampled_from([1, 2, 3, 16])
streams = st.builds(
    GemmStream,
    st.lists(st.tuples(sizes, sizes), min_size=1, max_size=3),
    st.integers(1, 2),
    st.lists(st.builds(Segment, st.integers(1, 3), st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=4),
    st.sampled_from(Dtype),
    st.integers(1, 5),
    st.builds(CommandOrder, st.booleans(), st.integers(0, 3)),
)


class Run:
    """Runs one stream through one mode as the consumer does, on one thread of the CPU."""

    def __init__(
        self,
        mode: str,
        stream: CommandStream,
        most: int = 8,
        pack_bytes: int = NEVER_PACK,
        device: Any = None,
        stack: Mapping[str, object] | None = None,
        **options: Any,
    ) -> None:
        self.stream, self.recorder, self._most = stream, Recorder(stream.commands), most
        self.device = device or CpuDevice(threads=1)
        self.device.info = replace(self.device.info, pack_bytes_per_launch=pack_bytes)
        self.mode: Mode = mode_class(mode, stack or {})(**options)
        takes = self.mode.takes_of(stream)
        self.limits = {
            shape: min(1 if takes is Takes.commands else most, stream.counts[shape]) for shape in stream.shapes
        }
        self.device.open(stream, self.recorder, seed=0)
        self.prepared = self.mode.prepare(self.device, self.limits)
        self.device.warm_up()
        self.device.arenas.poison()
        self.device.synchronize()  # launches do not wait for the stream that poisons
        self.device.use_mode(mode)
        self.device.start(0, self.prepared.path)
        self.prepared.start()
        self.device.begin()

    def batches(self, chunk: int) -> Iterator[Batch]:
        limits = list(self.limits.values())
        buckets = [min(self._most, sum(limits))] if self.mode.merges_shapes else limits
        rules = FlushRules(3, has_groups=self.stream.has_groups)
        if commands := self.mode.whole_pass(self.stream):
            buckets, rules = [commands], WHOLE_STEPS if isinstance(self.stream, ExpertStream) else WHOLE
        batcher = Batcher(self.stream.shapes, buckets, rules)
        records = records_of(self.stream)
        for now_ns, first in enumerate(range(0, len(records), chunk)):
            yield from batcher.take(records[first : first + chunk], now_ns)
        yield from batcher.take(records[:0], len(records), is_drained=True)

    def submit_all(self, chunk: int) -> list[list[int]]:
        """Submit every batch, and return the shape indices of each batch's commands."""
        found, knows = [], shape_finder(self.stream.shapes)
        for batch in self.batches(chunk):
            records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
            found.append(knows.classify(records, np.zeros(len(batch), np.int32)).tolist())
            self.prepared.submit(batch, flush_ns=0)
        return found

    def finish(self) -> None:
        self.device.finish()
        assert list(self.recorder.faults()) == []
        if isinstance(self.stream, ExpertStream):
            unwritten = self.mode.unwritten_of(self.stream)
            found = verify_experts(self.stream, self.device.arenas, CheckSettings(64), unwritten)
        else:
            found = verify(
                self.stream, self.device.arenas, CheckSettings(64), quantised_inputs=self.mode.quantises_inputs
            )
        assert found.ok, found.first_wrong
        self.prepared.close()
        self.device.close()

    def launches(self, column: int) -> list[int]:
        values: list[int] = recorded(self.recorder).launches[:, column].tolist()
        return values

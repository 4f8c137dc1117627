"""A stream through mode=megakernel on the fake GPU, and batches of some of its requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from launchopt.batching.batch import StepBatch
from launchopt.devices.steps.stages import step_of
from launchopt.modes.megakernel import MegakernelMode, Options
from launchopt.streams.chains.chain import ChainStream
from support.megakernel.fake_megakernel import FakeMegakernel
from support.steps.step_runs import StepRun


class Rig(StepRun):
    """A stream through the mode on a fake device, with access to the mode's instruction lists."""

    def __init__(
        self,
        kernel: FakeMegakernel,
        stream: ChainStream,
        most: int,
        cached: int = Options().cached,
        ahead: bool = True,
        traced: bool = False,
        racecheck: bool = False,
        **how: Any,
    ) -> None:
        device: Any = kernel.device
        mode: Any = MegakernelMode(traced=traced, cached=cached, ahead=ahead, racecheck=racecheck)
        super().__init__(mode, stream, most, device, **how)
        self.kernel, self.steps = kernel, self.prepared.steps

    @property
    def kept(self) -> int:
        return len(self.steps._programs)

    def is_kept(self, batch: StepBatch) -> bool:
        return self.steps._steps.key_of(batch) in self.steps._programs

    def submit(self, batch: StepBatch) -> bool:
        """Run a batch outside a run. Return whether it was one megakernel launch."""
        before = len(self.kernel.launched)
        self.recorder.reset()
        self.prepared.submit_steps(batch, 0)
        return len(self.kernel.launched) > before

    def close(self) -> None:
        """Wait for all launches and close, as after a run."""
        self.device.synchronize()
        super().close()

    def started(self, warm_up: bool = False) -> Rig:
        """Start, so that batches can be submitted; return the rig."""
        self.device.start(0, self.prepared.path)
        self.prepared.start(warm_up)
        return self


def some_of(stream: ChainStream, first: int, stop: int) -> StepBatch:
    """Return a decode step of requests `first` to `stop` - 1."""
    whole = step_of(stream, stop, 0)
    words = whole.words.reshape(whole.rows, stop, -1)[:, first:]
    return StepBatch(np.ascontiguousarray(words).reshape(-1, words.shape[2]), whole.reason, stop - first, whole.rows)

"""torch_eager: one PyTorch operator at a time, as a model without a compiler calls them.

Independent commands: torch.mm into each output, one launch a command, as they come. Requests: whole steps, for each row
of a step one operator (or the few it takes: rotary embedding has four) over all requests in step; prompts each by
itself. A launch is one operator, however many kernels it starts: its dispatch is what is measured. Attention goes over
all positions that a request can have, behind a mask, as with a static cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batcher import Batch
from launchopt.batching.step_batcher import StepBatch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device
from launchopt.modes.base import Mode, Prepared, Takes
from launchopt.modes.baseline import shape_of_all
from launchopt.workloads.chain import UNIT_BYTES, Stream, chain_of

if TYPE_CHECKING:
    from launchopt.devices.pytorch.commands import Commands
    from launchopt.devices.pytorch.steps import Steps
    from launchopt.devices.pytorch.views import TorchArenas

LIBRARY_BYTES = 256 << 20  # workspaces of cuBLAS, kernels, what PyTorch's allocator rounds up
SCORES_ALIVE = 6  # arrays of scores alive at a time, at most


def torch_bytes(stream: Stream, limits: Mapping[ShapeKey, int]) -> int:
    """Device memory that PyTorch takes: for itself, for what its operators give, for caches that are gathered."""
    needed = LIBRARY_BYTES
    if stream.has_steps:
        stream = chain_of(stream)
        size, most = stream.dtype.itemsize, max(limits.values())
        needed += most * stream.lane_units * UNIT_BYTES  # inputs that are gathered
        rows = {shape: shape.n if shape.n > 1 else limit for shape, limit in limits.items()}
        needed += SCORES_ALIVE * size * max(rows[shape] * max(shape.m, shape.k) for shape in limits)
        if stream.attention is not None:
            needed += 2 * size * most * stream.attention.ctx * stream.attention.kv_width
            needed += 2 * 4 * stream.attention.ctx * stream.attention.head_dim  # cosines and sines
    return needed


class TorchEager(Mode):
    """One launch an operator."""

    name = "torch_eager"
    summary = "one PyTorch operator a command, or a row of a step"
    takes = Takes.commands
    keeps_order = True
    packages = ("torch",)
    extra = "torch"

    @classmethod
    def takes_of(cls, stream: Stream) -> Takes:
        """Return steps where the stream has steps."""
        return Takes.steps if stream.has_steps else cls.takes

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """What operators allocate for themselves."""
        return torch_bytes(stream, limits)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> TorchPrepared:
        """Make views of the operands; call every operator once."""
        from launchopt.devices.pytorch.commands import Commands
        from launchopt.devices.pytorch.steps import Steps, examples
        from launchopt.devices.pytorch.views import TorchArenas

        arenas = TorchArenas(device)
        if not arenas.work.has_steps:
            return _PreparedCommands(self, device, arenas, Commands(arenas, device))
        steps = Steps(arenas, device)
        for batch in examples(steps.stream, max(limits.values())):
            steps.start()
            for _, step in steps.of(batch):
                step.run()
        return PreparedTorchSteps(self, device, arenas, steps)


class TorchPrepared(Prepared):
    """PyTorch views of a device's operands; the base of the modes that launch with PyTorch."""

    def __init__(self, mode: Mode, device: Device, arenas: TorchArenas) -> None:
        super().__init__(mode, device)
        self._arenas = arenas

    def start(self, warm_up: bool = False) -> None:
        """Begin a run: this thread's operators go to the device's stream."""
        self._arenas.use()

    def close(self) -> None:
        """Drop the views."""
        self._arenas.close()


class _PreparedCommands(TorchPrepared):
    """One operator a command."""

    def __init__(self, mode: Mode, device: Device, arenas: TorchArenas, commands: Commands) -> None:
        super().__init__(mode, device, arenas)
        self._commands = commands

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Launch each command."""
        self._commands.submit_each(words, shape_of, flush_ns)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch each command of a batch."""
        self._commands.submit_each(batch.words, shape_of_all(batch), flush_ns)


class PreparedTorchSteps(TorchPrepared):
    """Whole steps, row by row."""

    def __init__(self, mode: Mode, device: Device, arenas: TorchArenas, steps: Steps) -> None:
        super().__init__(mode, device, arenas)
        self._steps = steps

    def start(self, warm_up: bool = False) -> None:
        """Begin a run with empty caches."""
        super().start(warm_up)
        self._steps.start()

    def submit_steps(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch each row, or what was made of the step."""
        self._steps.submit(batch, flush_ns)

"""torch_eager: one PyTorch operator at a time, as a model without a compiler calls them.

Independent commands: one torch.mm into each output, in arrival order. Requests: the mode takes whole steps. Each row of
a step is one operator, or a few (four for rotary embedding), over all requests of the batch. Prompts run one request at
a time.

A launch is one operator, which may start several kernels. Its time is the time of PyTorch's dispatch. Attention is
scaled_dot_product_attention over all positions of the longest context, behind a mask, as with a static cache. A paged
cache is gathered first. Outputs of norms and of attention are tensors of PyTorch's own, which are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import Batch, StepBatch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device
from launchopt.modes.base import Mode, Prepared, Takes
from launchopt.modes.baseline import shape_of_all
from launchopt.streams.chains.chain import Stream, chain_of
from launchopt.streams.chains.placement import UNIT_BYTES

if TYPE_CHECKING:
    from launchopt.devices.pytorch.commands import Commands
    from launchopt.devices.pytorch.steps import Steps
    from launchopt.devices.pytorch.views import TorchArenas

LIBRARY_BYTES = 256 << 20  # workspaces of cuBLAS, kernels, and the rounding of PyTorch's allocator
SCORES_ALIVE = 6  # largest number of arrays of attention scores that exist at a time
UNWRITTEN = frozenset({"norm1", "norm2", "qk", "softmax", "av"})  # outputs of operators that cannot write in place


def torch_bytes(stream: Stream, limits: Mapping[ShapeKey, int]) -> int:
    """Return the bytes of device memory that PyTorch needs: for its libraries, operator outputs and gathered caches."""
    needed = LIBRARY_BYTES
    if stream.has_steps:
        stream = chain_of(stream)
        size, most = stream.dtype.itemsize, max(limits.values())
        needed += most * stream.lane_units * UNIT_BYTES  # gathered inputs
        rows = {shape: shape.n if shape.n > 1 else limit for shape, limit in limits.items()}
        needed += SCORES_ALIVE * size * max(rows[shape] * max(shape.m, shape.k) for shape in limits)
        if stream.attention is not None:
            needed += 2 * size * most * stream.attention.ctx * stream.attention.kv_width
            needed += 2 * 4 * stream.attention.ctx * stream.attention.head_dim  # cosines and sines
    return needed


class TorchEager(Mode):
    """One launch per operator of PyTorch."""

    name = "torch_eager"
    takes = Takes.commands
    prefers_steps = True
    keeps_order = True
    packages = ("torch",)
    extra = "torch"
    quantised = ()
    unwritten = UNWRITTEN

    @classmethod
    def scratch_bytes(cls, stream: Stream, limits: Mapping[ShapeKey, int], pack_bytes_per_launch: int) -> int:
        """Return the bytes that PyTorch allocates."""
        return torch_bytes(stream, limits)

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> TorchPrepared:
        """Make views of the operands, and call every operator once."""
        from launchopt.devices.pytorch.commands import Commands
        from launchopt.devices.pytorch.steps import Steps, examples
        from launchopt.devices.pytorch.views import TorchArenas

        arenas = TorchArenas(device)
        if not arenas.work.has_steps:
            return _PreparedCommands(self, device, arenas, Commands(arenas, device))
        steps = Steps(arenas, device, self.unwritten_of(device.work))
        for batch in examples(steps.stream, max(limits.values())):
            steps.start()
            for _, step in steps.of(batch):
                step.run()
        return PreparedTorchSteps(self, device, arenas, steps)


class TorchPrepared(Prepared):
    """PyTorch views of a device's operands; the base of the modes that launch with PyTorch.

    settings: those of PyTorch, for the column `library`.
    """

    settings: tuple[str, ...] = ("eager",)

    def __init__(self, mode: Mode, device: Device, arenas: TorchArenas) -> None:
        from launchopt.devices.pytorch.views import library_of

        super().__init__(mode, device)
        self._arenas, self.library = arenas, library_of(self.settings)

    def start(self, warm_up: bool = False) -> None:
        """Begin a run: this thread's operators run on the device's CUDA stream."""
        self._arenas.use()

    def close(self) -> None:
        """Drop the views."""
        self._arenas.close()


class _PreparedCommands(TorchPrepared):
    """Calls one operator per command."""

    def __init__(self, mode: Mode, device: Device, arenas: TorchArenas, commands: Commands) -> None:
        super().__init__(mode, device, arenas)
        self._commands = commands

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Make one launch per command."""
        self._commands.submit_each(words, shape_of, flush_ns)

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Make one launch per command of a batch."""
        self._commands.submit_each(batch.words, shape_of_all(batch), flush_ns)


class PreparedTorchSteps(TorchPrepared):
    """Launches whole steps with PyTorch."""

    settings: tuple[str, ...] = ("eager", "SDPA", "static cache")

    def __init__(self, mode: Mode, device: Device, arenas: TorchArenas, steps: Steps) -> None:
        super().__init__(mode, device, arenas)
        self._steps = steps

    def start(self, warm_up: bool = False) -> None:
        """Begin a run with empty KV caches."""
        super().start(warm_up)
        self._steps.start(warm_up)

    def submit_steps(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch the rows of the steps."""
        self._steps.submit(batch, flush_ns)

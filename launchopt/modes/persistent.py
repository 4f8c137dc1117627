"""persistent: one kernel that stays on the GPU and takes every command from a ring that the host fills.

A command costs the host four stores, and no launch at all (launchopt/kernels/persistent.cu). The kernel multiplies
GEMMs of up to 16 columns, or rows; for anything else it is ended, cuBLASLt is called, and it is started again. A kernel
that had no command for mode.patience_s ends by itself, and the run fails. What is launched beside it, to feed results
back, runs on a few multiprocessors that it leaves free then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from launchopt.batching.batcher import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device
from launchopt.devices.cublaslt.launch import ONE_IS
from launchopt.devices.resident.shapes import takes
from launchopt.modes.base import Mode, Takes
from launchopt.modes.baseline import shape_of_all
from launchopt.modes.options import ModeOptions
from launchopt.options import option
from launchopt.recording.recorder import Strategy
from launchopt.workloads.chain import ChainStream, Stream

SPARE = 4  # multiprocessors left to kernels that feed results back
MOST_SHAPES, MOST_COMMANDS = 0xFFFF, 1 << 31  # what a command's words have room for


@dataclass(slots=True)
class Options(ModeOptions):
    """Options of mode=persistent."""

    patience_s: float = option(
        60.0, "after so long without a command the kernel ends, and the run fails", low=0.1, high=86_400
    )


class Persistent(Mode):
    """No launch a command."""

    name = "persistent"
    summary = "a resident kernel: none a command, but four words into a ring that it polls"
    takes = Takes.commands
    compiled_loop = True
    keeps_order = True
    sample_every = 2048  # a command costs the host tens of nanoseconds, events around one as many microseconds
    devices = ("cuda",)
    own_strategy = "resident"
    options: Options = Options()

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """As any; there must be something for the kernel to do."""
        if (why := super().refusal(kind, stream)) is not None:
            return why
        if not any(takes(shape) for shape in stream.shapes):
            return "multiplies up to 16 columns or rows, and this workload has no such GEMM"
        if len(stream.shapes) >= MOST_SHAPES or stream.commands >= MOST_COMMANDS:
            return f"takes up to {MOST_COMMANDS - 1} commands of {MOST_SHAPES - 1} shapes"
        return None

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> None:
        """Compile the kernel, tell it the shapes; plan what it does not take."""
        from launchopt.devices.resident.kernel import Resident

        gpu: Any = device
        stream = gpu.work
        chained = isinstance(stream, ChainStream)
        requests = stream.requests if chained or not stream.independent else 0
        spare = SPARE if chained else 0
        self._device, self.resident = gpu, Resident(gpu, requests, spare, self.options.patience_s)
        self.tables = gpu.base.fork()
        self.packable_bytes = [0] * len(limits)
        self._taken = np.array([takes(shape) for shape in limits])
        for index, shape in enumerate(limits):
            gpu.name_ranges(self.name, index, [1])
            if not self._taken[index]:
                gpu.plan_strided(self.tables, index, [1])
                continue
            self.tables.add(index, [1], partial(self._plan, shape))
            self.tables.shapes[index, ONE_IS] = Strategy.resident
        self.resident.seal()
        self.compiled_loop = bool(self._taken.all())

    def _plan(self, shape: ShapeKey, _: int) -> tuple[list[int], bytes]:
        row: tuple[list[int], bytes] = self.resident.plan(shape, self._device.row_elements(shape))
        return row

    def submit_each(self, words: Any, shape_of: Any, flush_ns: int) -> None:
        """Post what the kernel takes; between, end it, launch, start it again."""
        edges = np.flatnonzero(np.diff(self._taken[shape_of])) + 1
        first = 0
        for stop in (*edges.tolist(), len(words)):
            if self._taken[shape_of[first]]:
                self.resident.resume()
            else:
                self.resident.pause()
            self._device.submit_each(words[first:stop], shape_of[first:stop], flush_ns)
            first = stop

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """The same for each command of a batch."""
        self.submit_each(batch.words, shape_of_all(batch), flush_ns)

    def close(self) -> None:
        """End the kernel."""
        if self.resident:
            self.resident.close()

"""persistent: one persistent kernel on the GPU takes all commands from a ring that the host fills.

A command costs the host four stores and no launch (launchopt/kernels/persistent.cu). The kernel multiplies GEMMs of up
to 16 columns or rows. For any other command the host ends the kernel, calls cuBLASLt, and starts the kernel again. If
no command comes for mode.patience_s seconds, the kernel gives up and the run fails. If results are fed back, the kernel
leaves SPARE multiprocessors free for the launches that feed them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import Batch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device, GpuDevice, gpu_of
from launchopt.devices.cublaslt.launch_tables import ShapeColumn
from launchopt.devices.cublaslt.tables import Row, resident_row
from launchopt.devices.prepared import LaunchPath
from launchopt.devices.resident.ring import takes
from launchopt.modes.base import Mode, Prepared, Takes
from launchopt.modes.baseline import shape_of_all
from launchopt.modes.options import ModeOptions
from launchopt.options import option
from launchopt.recording.launch_rows import Strategy
from launchopt.streams.chains.chain import Stream

if TYPE_CHECKING:
    from launchopt.devices.resident.kernel import Resident

SPARE = 4  # number of multiprocessors left free for kernels that feed results back
MOST_SHAPES, MOST_COMMANDS = 0xFFFF, 1 << 31  # a command's words have 16 bits for its shape, and 31 for its index


@dataclass(slots=True)
class Options(ModeOptions):
    """Options of mode=persistent."""

    patience_s: float = option(
        60.0, "time without a command after which the kernel ends and the run fails", low=0.1, high=86_400
    )


class Persistent(Mode):
    """A persistent kernel: no launch per command."""

    name = "persistent"
    takes = Takes.commands
    compiled_loop = True
    keeps_order = True
    sample_every = 2048  # a command takes tens of ns of CPU time, a pair of events tens of us
    devices = ("cuda",)
    own_strategy = "resident"
    options: Options = Options()

    @classmethod
    def refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot run `stream`, or None. The mode needs at least one GEMM that the kernel takes."""
        if (why := super().refusal(kind, stream)) is not None:
            return why
        if not any(takes(shape) for shape in stream.shapes):
            return "multiplies up to 16 columns or rows, and this workload has no such GEMM"
        if len(stream.shapes) >= MOST_SHAPES or stream.commands >= MOST_COMMANDS:
            return f"takes up to {MOST_COMMANDS - 1} commands of {MOST_SHAPES - 1} shapes"
        return None

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedPersistent:
        """Compile the kernel and copy its shapes to the GPU. Plan cuBLASLt calls for all other shapes."""
        from launchopt.devices.resident.kernel import Resident

        gpu = gpu_of(device)
        stream = gpu.work
        spare = SPARE if stream.has_steps else 0
        resident, tables = Resident(gpu, stream.ordered_requests, spare, self.options.patience_s), gpu.base.fork()
        taken = np.array([takes(shape) for shape in limits])
        for index, shape in enumerate(limits):
            gpu.name_ranges(self.name, index, [1])
            if not taken[index]:
                gpu.planner.plan_strided(tables, index, [1])
                continue
            tables.add(index, [1], partial(_row, resident, shape, gpu.row_elements(shape)))
            tables.shapes[index, ShapeColumn.ONE_IS] = Strategy.resident
        resident.seal()
        path = LaunchPath(packable_bytes=[0] * len(limits), tables=tables, resident=resident)
        return PreparedPersistent(self, gpu, path, resident, taken)


def _row(resident: Resident, shape: ShapeKey, row_elements: tuple[int, int, int], size: int) -> Row:
    return resident_row(resident.add_shape(shape, row_elements))


class PreparedPersistent(Prepared):
    """The kernel, and the shapes that it takes. taken: bool [shapes], whether the kernel takes each shape."""

    def __init__(
        self, mode: Mode, gpu: GpuDevice, path: LaunchPath, resident: Resident, taken: NDArray[np.bool_]
    ) -> None:
        super().__init__(mode, gpu, path)
        self.resident, self._taken = resident, taken
        self.compiled_loop = bool(taken.all())

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Post the commands that the kernel takes. For the others end the kernel and launch them by cuBLASLt calls.

        words: the commands. shape_of: index of the shape of each command. flush_ns: time at which they were flushed.
        """
        edges = np.flatnonzero(np.diff(self._taken[shape_of])) + 1
        first = 0
        for stop in (*edges.tolist(), len(words)):
            if self._taken[shape_of[first]]:
                self.resident.resume()
            else:
                self.resident.pause()
            self.device.submit_each(words[first:stop], shape_of[first:stop], flush_ns)
            first = stop

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Execute each command of a batch as `submit_each` does."""
        self.submit_each(batch.words, shape_of_all(batch), flush_ns)

    def close(self) -> None:
        """End the kernel."""
        self.resident.close()

"""megakernel: one launch a decode step, of a kernel that interprets the step as a list of instructions.

GEMMs and, for workload=layer, norm, rotary embedding, KV write, attention and activation; weights are under way long
before their turn; blocks wait for each other by counters, or for the data itself, instead of for the ends of kernels
(launchopt/kernels/megakernel.cu; it needs compute capability 9.0). What a norm before a GEMM gives stays inside the
launch: it is not written, and not checked by itself; what the GEMM gives is, from what went into the norm.

Prompts, steps of requests that do not lie evenly spaced and steps that come for the first time are launched as in
mode=coalesced; at most mode.cached=64 lists are kept, or one a copy of the weights (a small model has many). The same
launch samples on the GPU, and feeds results back; in every other mode, and for what is launched as in mode=coalesced,
that is a launch of its own. So a launch's time on the device has the time of sampling in it here.

While a step runs, the launch of the one that is likely to be next is made: it begins where blocks of the step have
ended, waits on the GPU for the host's word that its commands are there, and stores nothing before
(kernels/megakernel/gate.cuh). If others come, or none, it ends with nothing done, and is counted as a launch call. That
is not done with mode.ahead=false, nor for a launch that is timed by events or has a range, nor where a tool records all
launches: the time that it waits would be taken for time that it works.

With mode.racecheck=true the kernel is one whose order compute-sanitizer's racecheck knows, for scripts/sanitize.sh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launchopt.batching.step_batcher import StepBatch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device, GpuDevice, LaunchPath, gpu_of
from launchopt.devices.instructions.fusion import NORM_BYTES
from launchopt.modes.base import Mode, Prepared, Takes
from launchopt.modes.options import KeepsGraphs
from launchopt.options import option
from launchopt.timing import nvtx_ranges
from launchopt.workloads.chain import ChainStream, Stream

if TYPE_CHECKING:
    from launchopt.devices.megakernel.launcher import Megakernel


@dataclass(slots=True)
class Options(KeepsGraphs):
    """Options of mode=megakernel."""

    ahead: bool = option(True, "make the next launch while a step runs; it waits on the GPU for its commands")
    racecheck: bool = option(False, "use the kernel whose order NVIDIA's racecheck knows; not for timing")


class MegakernelMode(Mode):
    """One launch a step."""

    name = "megakernel"
    summary = "one launch of an interpreting kernel a step of all requests"
    takes = Takes.steps
    devices = ("cuda",)
    own_strategy = "megakernel"
    options: Options = Options()
    unwritten = frozenset({"norm1", "norm2"})  # the norm is fused into the GEMM

    @classmethod
    def unwritten_of(cls, stream: Stream) -> frozenset[str]:
        """Norms of wide rows are instructions of their own, and written."""
        wide = isinstance(stream, ChainStream) and stream.hidden * stream.dtype.itemsize > max(NORM_BYTES.values())
        return frozenset() if wide else cls.unwritten

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedMegakernel:
        """Compile the kernel, and the lists that are likely to be asked for."""
        from launchopt.devices.megakernel.launcher import Megakernel

        gpu = gpu_of(device)
        ahead = self.options.ahead and not self.traced and not nvtx_ranges.is_profiled()
        steps = Megakernel(gpu, limits, self.options.cached, ahead, self.options.racecheck)
        steps.compile_likely()
        return PreparedMegakernel(self, gpu, steps)


class PreparedMegakernel(Prepared):
    """The kernel and its lists."""

    def __init__(self, mode: Mode, gpu: GpuDevice, steps: Megakernel) -> None:
        super().__init__(mode, gpu, LaunchPath(ahead=steps.ahead))
        self.steps = steps  # measurements time it

    def start(self, warm_up: bool = False) -> None:
        """Begin a run. A warm-up run compiles every list it needs, and so loads the kernel."""
        self.steps.start(compiles_at_once=warm_up)

    def submit_steps(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch once for all requests."""
        self.steps.submit(batch, flush_ns)

    def close(self) -> None:
        """Drop the lists."""
        self.steps.close()

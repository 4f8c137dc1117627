"""megakernel: one launch per decode step, of a kernel that executes the step as a list of instructions.

The list has the step's GEMMs and, for workload=layer, norm, rotary embedding, KV write, attention and activation. The
kernel copies weights into shared memory long before it uses them. Its blocks wait for counters or for mailed data, not
for the ends of kernels (launchopt/kernels/megakernel.cu). It needs compute capability 9.0. A norm before a GEMM is
fused into it: its output is not stored, so the GEMM's outputs are checked from the inputs of the norm.

Prompts, steps whose requests are not evenly spaced, and steps that come for the first time are launched as in
mode=coalesced. mode.cached lists are kept, or one per copy of the weights; a small model has many copies. The launch
also samples on the GPU and feeds results back, so its time on the device includes the time of sampling. In other modes
that is a launch of its own.

While a step runs, the launch that is likely to be next is made. Its blocks start where blocks of the step have ended.
It waits on the GPU until the host admits it, and stores nothing before (kernels/megakernel/gate.cuh). If another step
comes, or none, it ends without an effect; it counts as a launch call. No launch is made ahead with mode.ahead=false,
for a launch that events or an NVTX range time, or while a tool records launches: its wait would count as work.

mode.racecheck=true uses a kernel whose order compute-sanitizer's racecheck understands, for scripts/sanitize.sh.
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
from launchopt.workloads.chain import Stream

if TYPE_CHECKING:
    from launchopt.devices.megakernel.launcher import Megakernel


@dataclass(slots=True)
class Options(KeepsGraphs):
    """Options of mode=megakernel."""

    ahead: bool = option(True, "make the next launch while a step runs; it waits on the GPU for its commands")
    racecheck: bool = option(False, "use the kernel whose order NVIDIA's racecheck knows; not for timing")


class MegakernelMode(Mode):
    """One launch per step."""

    name = "megakernel"
    summary = "one launch of an interpreting kernel a step of all requests"
    takes = Takes.steps
    devices = ("cuda",)
    own_strategy = "megakernel"
    options: Options = Options()
    unwritten = frozenset({"norm1", "norm2"})  # the norm is fused into the GEMM

    @classmethod
    def unwritten_of(cls, stream: Stream) -> frozenset[str]:
        """Return the nodes whose outputs are not stored. Norms of wide rows are not fused, so theirs are stored."""
        wide = stream.hidden * stream.dtype.itemsize > max(NORM_BYTES.values())
        return frozenset() if wide else cls.unwritten

    def prepare(self, device: Device, limits: Mapping[ShapeKey, int]) -> PreparedMegakernel:
        """Compile the kernel and the likely lists."""
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

"""megakernel: one launch per decode step, of a kernel that executes the step as a list of instructions.

The list has the step's GEMMs. For workload=layer it also has norm, rotary embedding, KV write, attention and
activation. The kernel copies weights into shared memory long before it uses them. Its blocks wait for counters, or for
data in mailboxes, instead of waiting for the end of a kernel (launchopt/kernels/megakernel.cu). The mode needs compute
capability 9.0. A norm before a GEMM is fused into the GEMM. The norm's output is not stored, so the GEMM's outputs are
checked from the inputs of the norm.

Some steps are launched as in mode=coalesced: prompts, steps whose operands are not evenly spaced in memory, and steps
that come for the first time. The mode keeps up to mode.cached lists, but at least one per replica of the weights; a
small model has many replicas. The launch of a step also samples on the GPU and feeds results back, so its time on the
device includes the time of sampling. In other modes a separate launch samples and feeds results back.

While a step runs, the mode makes the launch that is likely to be next. Its blocks start as blocks of the step end. The
launch waits on the GPU until the host admits it, and stores nothing before that (kernels/megakernel/gate.cuh). If
another step comes, or none, the launch ends without an effect; it still counts as a launch call. The mode makes no
launch ahead with mode.ahead=false. Nor does it for launches that are timed by events or an NVTX range, or while a tool
records launches, because their measured time would include the wait.

mode.racecheck=true uses a kernel whose synchronization compute-sanitizer's racecheck understands (scripts/sanitize.sh).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launchopt.batching.batch import StepBatch
from launchopt.command import ShapeKey
from launchopt.devices.base import Device, GpuDevice, gpu_of
from launchopt.devices.instructions.fusion import NORM_BYTES
from launchopt.devices.prepared import LaunchPath
from launchopt.modes.base import HOPPER, Mode, Prepared, Takes, too_old
from launchopt.modes.options import KeepsGraphs
from launchopt.options import option
from launchopt.streams.chains.chain import Stream
from launchopt.timing import nvtx_ranges

if TYPE_CHECKING:
    from launchopt.devices.megakernel.launcher import Megakernel


@dataclass(slots=True)
class Options(KeepsGraphs):
    """Options of mode=megakernel."""

    ahead: bool = option(True, "make the next launch while a step runs; it waits on the GPU for its commands")
    racecheck: bool = option(False, "use a kernel whose synchronization NVIDIA's racecheck understands; not for timing")


class MegakernelMode(Mode):
    """The megakernel: one launch per decode step."""

    name = "megakernel"
    takes = Takes.steps
    devices = ("cuda",)
    own_strategy = "megakernel"
    options: Options = Options()
    unwritten = frozenset({"norm1", "norm2"})  # norms that are fused into a GEMM, so that their outputs are not stored

    @classmethod
    def quantised_refusal(cls, kind: str, stream: Stream) -> str | None:
        """Return why the mode cannot compute with the quantised weights of `stream`."""
        why = f"copies weights as {stream.dtype.name} into shared memory, and unpacks no {stream.packing.format}"
        return f"{why}: use mode=graph mode.kernels=own, or workload.weights=none"

    @classmethod
    def capability_refusal(cls, stream: Stream, capability: int) -> str | None:
        """Return why a GPU of this compute capability, times 10, cannot run the kernel; or None if it can."""
        return None if capability >= HOPPER else too_old("its kernel", capability, "mode=graph")

    @classmethod
    def unwritten_of(cls, stream: Stream) -> frozenset[str]:
        """Return the nodes whose outputs are not stored. Norms of wide rows are not fused: their outputs are stored."""
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
    """The megakernel and its lists of instructions, for one device."""

    def __init__(self, mode: Mode, gpu: GpuDevice, steps: Megakernel) -> None:
        super().__init__(mode, gpu, LaunchPath(ahead=steps.ahead))
        self.steps = steps  # public, because measurements time its launches (devices/megakernel/timing.py)

    def start(self, warm_up: bool = False) -> None:
        """Begin a run. A warm-up run compiles each list that it needs, and thereby loads the kernels."""
        self.steps.start(compiles_at_once=warm_up)

    def submit_steps(self, batch: StepBatch, flush_ns: int) -> None:
        """Launch a step of all requests. flush_ns: time at which the batch was flushed."""
        self.steps.submit(batch, flush_ns)

    def close(self) -> None:
        """Drop the lists."""
        self.steps.close()

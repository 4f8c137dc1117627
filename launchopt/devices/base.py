"""The interfaces of devices: `Device` is what every device has, `GpuDevice` adds what CUDA devices have.

A device owns the arenas and makes launches; a mode decides which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batcher import Batch
from launchopt.command import Dtype, ShapeKey
from launchopt.devices.arenas import Arenas
from launchopt.devices.feedback.flights import Flights
from launchopt.errors import RunError
from launchopt.recording.recorder import Recorder, RecordingArrays, Strategy
from launchopt.sampling import Sampling
from launchopt.timing.activity import Ceilings, Span
from launchopt.types import Table
from launchopt.workloads.chain import ChainStream, Stream

if TYPE_CHECKING:
    from launchopt.batching.step_batcher import StepBatch
    from launchopt.devices.arenas import SeqState
    from launchopt.devices.cpu.launch import CpuLaunch
    from launchopt.devices.cublaslt.plans import Plans
    from launchopt.devices.cublaslt.tables import Tables
    from launchopt.devices.cuda.kernel_plans import KernelPlans
    from launchopt.devices.cuda.streams import Streams
    from launchopt.devices.feedback.in_launch import LaunchFeedback
    from launchopt.devices.loops.runner import Launcher
    from launchopt.devices.megakernel.launch_ahead import LaunchAhead
    from launchopt.devices.resident.kernel import Resident
    from launchopt.queue.ring import Ring


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What was found without starting anything on the device."""

    kind: str  # cpu or cuda
    index: int
    name: str
    memory_free_bytes: int
    cache_bytes: int  # the last-level cache: L2 of a GPU, L3 of a CPU
    memory_name: str  # how an error calls the memory
    pack_bytes_per_launch: int  # bytes it can copy in the time of one launch call

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LaunchPath:
    """What a device launches with while a prepared mode runs."""

    packable_bytes: Sequence[int] = ()  # for each shape the bytes that a packed command copies; 0: never packed
    tables: Tables | None = None  # None: the device's own
    streams: Streams | None = None  # None: the main stream alone
    resident: Resident | None = None  # the persistent kernel
    ahead: LaunchAhead | None = None  # makes launches before their commands arrive

    @property
    def stream_count(self) -> int:
        """Number of CUDA streams that take launches."""
        return len(self.streams.all) if self.streams else 1


class PreparedMode(Protocol):
    """What a device needs of a mode that runs on it."""

    path: LaunchPath
    compiled_loop: bool  # compiled code makes every launch; else `submit` or `submit_each` does
    takes_commands: bool  # `submit_each` launches commands as they arrive; else `submit` launches batches or steps

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Launch commands of any shapes, in the order given."""

    def submit(self, batch: Batch, flush_ns: int) -> None:
        """Launch a batch."""


@dataclass(slots=True)
class Counters:
    """What graphs cost, and what a run executed beside its commands. Its owner alone writes it."""

    costs_ns: dict[str, int] = field(default_factory=dict)  # capture, instantiate, upload: in all; update: of a run
    padded_commands: int = 0  # executed only to fill up a graph of fixed size
    graph_replays: int | None = None  # None: without graphs

    def start(self) -> None:
        """Begin a run: what a run counts starts at 0."""
        self.padded_commands = 0
        self.costs_ns.pop("update", None)
        if self.graph_replays is not None:
            self.graph_replays = 0

    def spend(self, name: str, ns: int) -> None:
        """Add `ns` to the cost of this name."""
        self.costs_ns[name] = self.costs_ns.get(name, 0) + ns

    def replayed(self, padded: int = 0) -> None:
        """Count one replay of a graph, and the commands that only filled it up."""
        self.graph_replays = (self.graph_replays or 0) + 1
        self.padded_commands += padded


class Device(Protocol):
    """One GPU, or the CPU, with the operands of one stream."""

    info: DeviceInfo
    work: Stream  # as given to `open`
    arenas: Arenas
    pack_bytes_per_launch: int  # as in `info`; 0 where operands may not be packed

    def open(self, stream: Stream, recorder: Recorder, seed: int) -> None:
        """Allocate and fill the arenas."""

    def open_steps(self, stream: ChainStream, sampling: Sampling, on_host: bool, back: Ring) -> Flights:
        """Make ready to feed results back; returns who keeps account of it, and tells through the ring `back`."""

    def feed_back(self, flights: Flights, count: int) -> None:
        """What the first `count` ended steps computed last becomes their requests' next input."""

    def sampling_ns(self) -> int:
        """Time spent sampling since `start`."""

    def plan(self, mode: str, shape: ShapeKey, sizes: Sequence[int], scratch: bool) -> None:
        """Make ready to launch `shape` in batches of any of `sizes`; with `scratch`, also packed."""

    def warm_up(self) -> None:
        """Run everything planned once."""

    def start(self, sample_every: int, path: LaunchPath | None = None) -> None:
        """Prepare a run along `path`; time about one launch in `sample_every` on the device (0: none)."""

    def begin(self) -> None:
        """The first launch comes next."""

    def use_mode(self, mode: str) -> None:
        """The mode that submits from now on, for the names of ranges."""

    def launcher(self, mode: PreparedMode) -> Launcher:
        """Return what a consumer's loop launches with, in a run of `mode` that has been started."""

    def enter(self, index: int, size: int, request: int = 0) -> int:
        """A launch of `size` commands of a shape (-1: of several) comes next: range and events; when it began, ns."""

    def leave(
        self,
        batch: Batch,
        part: slice,
        strategy: Strategy,
        flush_ns: int,
        start_ns: int,
        more_calls: int = 0,
        copied_bytes: int = 0,
    ) -> None:
        """The launch of batch.words[part] was made, with `more_calls` beside the one, copying so many bytes."""

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """One launch a command, in the order given."""

    def submit_strided(self, batch: Batch, flush_ns: int, most_launches: int) -> bool:
        """One launch for each run of evenly spaced slots; False, and nothing done, if that takes more."""

    def submit_packed(self, batch: Batch, flush_ns: int) -> None:
        """Copy the operands side by side, launch once, copy the outputs back."""

    def finish(self) -> Span:
        """Wait for the last result."""

    def check_alive(self) -> None:
        """Raise what the device has against everything from now on, if it is lost; waits for nothing."""

    def synchronize(self) -> None:
        """Wait for everything submitted."""

    def ceilings(self, dtype: Dtype) -> Ceilings:
        """Measure what this device can do at most; takes about a second at the most."""

    def versions(self) -> dict[str, str]:
        """Driver, runtime and library versions for the manifest."""

    def state(self) -> dict[str, Any]:
        """Clocks, power and throttling now, for the manifest."""

    def close(self) -> None:
        """Give everything back."""


class HostDevice(Device, Protocol):
    """The CPU device, as modes see it once it is open."""

    threads: int  # that BLAS may use
    compute: CpuLaunch  # what a launch computes, and the operands as NumPy views

    def index_of(self, word: NDArray[np.uint64]) -> int:
        """Return the shape index of a command's record [WORDS]."""

    def execute(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32]) -> None:
        """Compute each command in turn, as part of one launch; nothing is recorded."""


class CudaStream(Protocol):
    """A CUDA stream, as CuPy has it. As a context it is CuPy's current stream."""

    ptr: int  # cudaStream_t

    def synchronize(self) -> None:
        """Wait for everything submitted."""

    def begin_capture(self, mode: int | None = None) -> None:
        """Record work submitted from now on instead of running it."""

    def end_capture(self) -> Any:
        """Return CuPy's graph of the recorded work."""

    def wait_event(self, event: Any) -> None:
        """Let work submitted from now on wait for a CuPy event."""

    def __enter__(self) -> CudaStream: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class GpuDevice(Device, Protocol):
    """A CUDA device, as modes and the packages of launches see it once it is open."""

    stream: CudaStream  # the main stream: spans are measured on it
    base: Tables  # the device's own plans; a mode that launches otherwise forks them
    tables: tuple[Table, Table, Table]  # shapes, plans, contexts of the mode that runs
    recorder: Recorder  # as given to `open`
    records: RecordingArrays  # of the recorder, since `start`
    lt: Plans  # makes cuBLASLt plans
    kernels: KernelPlans  # compiles kernels of launchopt/kernels
    state_of_sequences: SeqState | None  # positions and KV pages; None without attention

    @property
    def launch_feedback(self) -> LaunchFeedback | None:
        """How a launch of whole steps feeds back its own results; None: it cannot."""

    @property
    def unmarked_launches(self) -> int:
        """Number of launches before the next one that has an NVTX range or events around it."""

    def check(self, status: int) -> None:
        """Raise RunError for a status of a compiled launch that is not OK."""

    def plan_strided(self, tables: Tables, index: int, sizes: Sequence[int]) -> None:
        """Plan shape `index` in `tables` for batches of `sizes` evenly spaced commands."""

    def plan_gemv(self, tables: Tables, index: int, sizes: Sequence[int], early: bool) -> None:
        """Plan shape `index` for our own GEMV kernel; `early`: with programmatic dependent launch."""

    def warm(self, tables: Tables, index: int, sizes: Sequence[int]) -> None:
        """Let `warm_up` launch the plans of these batch sizes once, since CUDA loads a kernel at its first launch."""

    def row_elements(self, shape: ShapeKey) -> tuple[int, int, int]:
        """Return the elements from one row of A, B and C to the next."""

    def name_ranges(self, mode: str, index: int, sizes: Sequence[int]) -> None:
        """Prepare the NVTX ranges for launches of shape `index`."""

    def more_streams(self, count: int) -> Streams:
        """Return `count` streams, the main stream first."""

    def left(self, request: int = 0) -> None:
        """End a launch that began at `enter` and that compiled code has recorded."""

    def stage_feedback(self, batch: StepBatch) -> int:
        """Let the next launch feed back the results of `batch`; return the address of its arguments, or 0: it cannot.

        `feed_back` skips staged steps.
        """


def is_gpu(device: Device) -> TypeGuard[GpuDevice]:
    """Return whether the device is a CUDA device."""
    return device.info.kind == "cuda"


def gpu_of(device: Device) -> GpuDevice:
    """Return the device as a CUDA device; RunError on any other."""
    if not is_gpu(device):
        raise RunError(f"{device.info.kind} device: this needs a GPU")
    return device


def is_host(device: Device) -> TypeGuard[HostDevice]:
    """Return whether the device is the CPU."""
    return device.info.kind == "cpu"

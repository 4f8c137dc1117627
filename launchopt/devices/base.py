"""The interfaces of devices: `Device` is what every device has, `GpuDevice` adds what CUDA devices have.

A device owns the arenas and makes launches; a mode decides which.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from launchopt.errors import RunError
from launchopt.files import JsonObject

if TYPE_CHECKING:  # the process that plans a run imports this module, and must not load Numba
    from launchopt.batching.batch import Batch, StepBatch
    from launchopt.command import Dtype, ShapeKey
    from launchopt.cupy_types import CudaStream
    from launchopt.devices.arenas import Arenas, SeqState
    from launchopt.devices.cpu.launch import CpuLaunch
    from launchopt.devices.cublaslt.kernel_plans import KernelPlans
    from launchopt.devices.cublaslt.plans import Plans
    from launchopt.devices.cublaslt.tables import Tables
    from launchopt.devices.cuda.planning import Planner
    from launchopt.devices.cuda.streams import Streams
    from launchopt.devices.feedback.flights import Flights
    from launchopt.devices.feedback.in_launch import LaunchFeedback
    from launchopt.devices.loops.runner import Launcher
    from launchopt.devices.peers.segment import Team
    from launchopt.devices.prepared import LaunchPath, PreparedMode
    from launchopt.devices.shares import SplitRank
    from launchopt.queue.ring import Ring
    from launchopt.recording.launch_rows import RecordingArrays, Strategy
    from launchopt.recording.recorder import Recorder
    from launchopt.sampling import Sampling
    from launchopt.streams.chains.chain import ChainStream, Stream
    from launchopt.timing.activity import Bandwidths, Ceilings, Span
    from launchopt.types import Table


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Facts about a device that are known without running anything on it."""

    kind: str  # cpu or cuda
    index: int
    name: str
    memory_free_bytes: int
    cache_bytes: int  # size of the last-level cache: L2 of a GPU, L3 of a CPU
    memory_name: str  # name of its memory in error messages
    pack_bytes_per_launch: int  # bytes that the device can copy in the time of one launch call
    compute_capability: int = 0  # of a GPU, times 10; 0: a CPU, or unknown

    def as_dict(self) -> JsonObject:
        """Return the fields as entries of the manifest."""
        return asdict(self)


class Device(Protocol):
    """One GPU, or the CPU, with the operands of one workload stream."""

    info: DeviceInfo
    work: Stream  # the workload stream that `open` got
    arenas: Arenas
    pack_bytes_per_launch: int  # the value of `info`; 0: operands of this workload may not be packed

    @property
    def split(self) -> SplitRank | None:
        """The device's part of a model that several devices split; None: it has a whole model."""

    def open(self, stream: Stream, recorder: Recorder, seed: int, team: Team | None = None) -> None:
        """Allocate the arenas of a workload stream and fill them with inputs, random by `seed`.

        team: the devices that split the stream's model with this one.
        """

    def open_steps(self, stream: ChainStream, sampling: Sampling, on_host: bool, back: Ring) -> Flights:
        """Prepare to feed results back; return the steps in flight, which notify the driver through `back`."""

    def feed_back(self, flights: Flights, count: int) -> None:
        """Turn the results of the first `count` steps in `flights.ended` into their requests' next inputs."""

    def end_step(self, words: NDArray[np.uint64]) -> None:
        """Feed back the results of steps whose next steps are in the same batch. words: their last records."""

    def sampling_ns(self) -> int:
        """Return the ns spent sampling since `start`."""

    def plan(self, mode: str, shape: ShapeKey, sizes: Sequence[int], scratch: bool) -> None:
        """Prepare launches of batches of `shape`, of any of `sizes` commands. scratch: also of packed batches."""

    def warm_up(self) -> None:
        """Launch every planned kernel once, so that a run loads none."""

    def start(self, sample_every: int, path: LaunchPath | None = None) -> None:
        """Prepare a run that launches with `path`; time about one launch in `sample_every` on the device (0: none)."""

    def begin(self) -> None:
        """Mark the start of the run, just before its first launch."""

    def use_mode(self, mode: str) -> None:
        """Name the mode that launches from now on; NVTX ranges carry its name."""

    def launcher(self, mode: PreparedMode) -> Launcher:
        """Return the launcher for the consumer's loop in a run of `mode`. Call `start` first."""

    def enter(self, index: int, size: int, request: int = 0) -> int:
        """Begin a launch: open its NVTX range, and record an event if the launch is sampled. Return its start in ns.

        index: shape of the commands; -1: several shapes. size: number of commands. request: number of the request of
        the first command.
        """

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
        """End a launch of batch.words[part] that `enter` began at `start_ns`, and record it.

        more_calls: calls of the CUDA API besides the launch. copied_bytes: bytes that these calls copied.
        """

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Make one launch per command, in the order given."""

    def submit_strided(self, batch: Batch, flush_ns: int, most_launches: int) -> bool:
        """Launch each run of commands whose slots are evenly spaced.

        Return False, and launch nothing, if there are more than `most_launches` runs.
        """

    def submit_packed(self, batch: Batch, flush_ns: int) -> None:
        """Copy the operands to adjacent memory, launch once, and copy the outputs back."""

    def finish(self) -> Span:
        """Wait for the last result; return the span of the run and its sampled launches."""

    def check_alive(self) -> None:
        """Raise the device's error if it can execute nothing any more. Do not wait for submitted work."""

    def synchronize(self) -> None:
        """Wait for everything submitted."""

    def settled(self) -> AbstractContextManager[None]:
        """Return a context within a run in which the device is idle: all launches so far are complete."""

    def ceilings(self, dtype: Dtype) -> Ceilings:
        """Measure the device's peak rates, in about a second."""

    def bandwidths(self) -> Bandwidths:
        """Measure the peak rates of memory alone, as `ceilings` does, in about 0.2 s."""

    def versions(self) -> dict[str, str]:
        """Return the versions of driver, runtime and libraries, for the manifest."""

    def state(self) -> JsonObject:
        """Return the present clocks, power and throttling, for the manifest."""

    def close(self) -> None:
        """Release the device's memory and plans."""


class HostDevice(Device, Protocol):
    """The CPU device, as modes use it after `open`."""

    threads: int  # number of threads that BLAS may use
    compute: CpuLaunch  # computes the commands of a launch; has the operands as NumPy views

    def index_of(self, word: NDArray[np.uint64]) -> int:
        """Return the index of a command's shape. word: its record, [WORDS]."""

    def execute(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32]) -> None:
        """Compute the commands one after another, as part of one launch, without recording them."""


class GpuDevice(Device, Protocol):
    """A CUDA device, as modes and the packages of launches use it after `open`."""

    stream: CudaStream  # the main CUDA stream, on which spans are measured
    base: Tables  # the device's own plans; a mode that needs other plans forks them
    tables: tuple[Table, Table, Table]  # shapes, plans and contexts of the mode that runs
    recorder: Recorder  # the recorder that `open` got
    records: RecordingArrays  # arrays of the recorder, valid from `start` on
    lt: Plans  # makes cuBLASLt plans
    planner: Planner  # adds plans to tables, and launches each once in `warm_up`
    kernels: KernelPlans  # compiles kernels of launchopt/kernels
    peers: int  # address of struct Peers, for launches of all-reduces; 0: no other GPU splits the model
    state_of_sequences: SeqState | None  # positions and KV pages; None without attention

    @property
    def launch_feedback(self) -> LaunchFeedback | None:
        """Code and arguments with which a launch of whole steps feeds back its own results; None: it cannot."""

    @property
    def unmarked_launches(self) -> int:
        """Number of launches before the next one that gets an NVTX range or events."""

    def check(self, status: int) -> None:
        """Raise RunError for a status of a compiled launch that is not OK."""

    def row_elements(self, shape: ShapeKey) -> tuple[int, int, int]:
        """Return the number of elements from one row of A, of B and of C to the next."""

    def name_ranges(self, mode: str, index: int, sizes: Sequence[int]) -> None:
        """Prepare the NVTX ranges for launches of shape `index`."""

    def more_streams(self, count: int) -> Streams:
        """Return `count` streams, the main stream first."""

    def left(self, request: int = 0) -> None:
        """End a launch that began at `enter` and that compiled code has recorded."""

    def stage_feedback(self, batch: StepBatch, steps: int = 1) -> int:
        """Prepare the next launch, of `steps` steps of each request, to feed back its results; `feed_back` skips these.

        Return the device address of its feedback arguments, or 0 if it cannot feed back its results.
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

"""One NVIDIA GPU: launches on one CUDA stream, or on several in some modes, with operands in CuPy arrays.

The compiled loops of `devices.cublaslt.launch` make all launches that a mode does not make in its own code. Python runs
between two launches only when a profiler is attached: it puts an NVTX range around each launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import Batch, FlushReason, StepBatch
from launchopt.command import COMMAND_DTYPE, Dtype, Records, ShapeKey
from launchopt.devices.base import DeviceInfo
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.kernel_plans import KernelPlans
from launchopt.devices.cublaslt.launch_tables import MOVES
from launchopt.devices.cublaslt.packing import CALLS_PER_BATCH, Packing
from launchopt.devices.cublaslt.plans import WORKSPACE_LIMIT_BYTES, Plans
from launchopt.devices.cublaslt.tables import Tables, shape_table
from launchopt.devices.cuda.ceilings import measure_ceilings, measure_memory
from launchopt.devices.cuda.errors import failure_of
from launchopt.devices.cuda.info import cuda_info, gpu_state, library_versions
from launchopt.devices.cuda.marks import LaunchMarks
from launchopt.devices.cuda.memory import open_memory
from launchopt.devices.cuda.planning import Planner, contexts_table, op_plans_of
from launchopt.devices.cuda.streams import Streams, check_context
from launchopt.devices.feedback.cuda import CudaSteps
from launchopt.devices.feedback.flights import Flights
from launchopt.devices.feedback.in_launch import LaunchFeedback
from launchopt.devices.loops.runner import Launcher
from launchopt.devices.peers.cuda import CudaSplit
from launchopt.devices.peers.segment import Team
from launchopt.devices.prepared import LaunchPath, PreparedMode
from launchopt.devices.runs import run_end
from launchopt.files import JsonObject
from launchopt.queue.ring import Ring
from launchopt.recording.launch_rows import Strategy
from launchopt.recording.recorder import Recorder
from launchopt.sampling import Sampling
from launchopt.streams.chains.chain import ChainStream, Stream
from launchopt.timing.activity import Bandwidths, Ceilings, Span
from launchopt.types import Words


class CudaDevice:
    """The GPU that CUDA numbers `index`. tunes: as of `Plans`."""

    def __init__(self, index: int = 0, tunes: bool = True) -> None:
        self._tunes = tunes
        self.info: DeviceInfo = cuda_info(index)
        self._device = cupy.cuda.Device(index)
        self._device.use()
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.split: CudaSplit | None = None

    def open(self, stream: Stream, recorder: Recorder, seed: int, team: Team | None = None) -> None:
        """Allocate and fill the arenas; ArenaMemoryError if the GPU has too little free memory."""
        self.recorder, self.work = recorder, stream
        self.pack_bytes_per_launch = self.info.pack_bytes_per_launch if stream.packable else 0
        self._steps: CudaSteps | None = None
        memory = open_memory(stream, seed, team, self.info)
        self.split, self.arenas, self.state_of_sequences = memory.split, memory.arenas, memory.sequences
        self._workspace = memory.workspace
        self.lt = Plans(stream.dtype, self._tunes)
        self.kernels = KernelPlans(stream.dtype, stream.norm_epsilon)
        self._scalars = np.array([1.0, 0.0], np.float32)  # alpha, beta
        context = contexts_table(self.lt.handle, self.stream, self._scalars, self._workspace.data.ptr)
        self.base = Tables(shape_table(stream, self.arenas), context)
        self._packing = Packing(self.base, self.stream, self.check)
        self.marks = LaunchMarks(self.stream, stream, recorder)
        self.peers = self.split.address if self.split else 0
        op_plans = op_plans_of(stream, self.kernels, self.state_of_sequences, self.split, context)
        self.planner = Planner(self, op_plans, self._packing)
        self.planner.load_library()

    def plan(self, mode: str, shape: ShapeKey, sizes: Sequence[int], scratch: bool) -> None:
        """Prepare ranges and plans of each size. scratch: also plans of packed batches."""
        self.marks.name_ranges(mode, self.work.shapes.index(shape), sizes)
        self.planner.plan(shape, sizes, scratch)

    def more_streams(self, count: int) -> Streams:
        """Return `count` CUDA streams, the main stream first."""
        return Streams(self.stream, count, self.base.contexts[0], WORKSPACE_LIMIT_BYTES)

    def row_elements(self, shape: ShapeKey) -> tuple[int, int, int]:
        """Return the number of elements from one row of A, of B and of C to the next."""
        a, b, c = (operand.row_elements for operand in self.work.operands(shape))
        return a, b, c

    def name_ranges(self, mode: str, index: int, sizes: Sequence[int]) -> None:
        """Prepare the NVTX ranges for launches of shape `index`."""
        self.marks.name_ranges(mode, index, sizes)

    def warm_up(self) -> None:
        """Launch one batch for each distinct kernel of each shape, and load the copy kernels of packed batches."""
        self.planner.warm_up()

    def start(self, sample_every: int, path: LaunchPath | None = None) -> None:
        """Begin a run: reset positions, and relate the host's clock to the GPU's. The main stream must be idle."""
        path = path or LaunchPath()
        self.tables = (path.tables or self.base).arrays
        self.records = self.recorder.arrays
        if self._steps is not None:
            self._steps.start()
        if self.state_of_sequences is not None:
            self.state_of_sequences.reset()
            self.synchronize()
        self.marks.start(sample_every, path)

    def begin(self) -> None:
        """Mark the start of the run, just before its first launch."""
        self.marks.begin()

    def use_mode(self, mode: str) -> None:
        """Name the mode that launches from now on; NVTX ranges carry its name."""
        self.marks.name = mode

    @staticmethod
    def check(status: int) -> None:
        """Raise RunError for a status of a compiled launch that is not OK."""
        if status != lt.OK:
            raise failure_of(status)

    def launcher(self, mode: PreparedMode) -> Launcher:
        """Return the launcher for this run. With a profiler attached, Python makes each launch, in an NVTX range."""
        is_compiled = mode.compiled_loop and not self.marks.attached
        own = (mode.submit, mode.submit_each, self.check, mode.path.packable_bytes, is_compiled)
        return Launcher(self.tables, self.recorder, self.marks.sampler, *own)

    def open_steps(self, stream: ChainStream, sampling: Sampling, on_host: bool, back: Ring) -> Flights:
        """Prepare to feed results back; return the steps in flight."""
        self._steps = CudaSteps(stream, self.arenas, self.stream, sampling, on_host, back, self.synchronize)
        return self._steps.flights

    @property
    def launch_feedback(self) -> LaunchFeedback | None:
        """Code and arguments with which a launch of whole steps feeds back its own results; None: it cannot."""
        return None if self._steps is None else self._steps.launch_feedback

    def stage_feedback(self, batch: StepBatch, steps: int = 1) -> int:
        """Prepare a launch of `steps` steps of each request to feed back its results; return as `GpuDevice` does."""
        assert self._steps is not None
        return 0 if self.marks.streams or self.marks.resident else self._steps.stage(batch, steps)

    def end_step(self, words: Words) -> None:
        """Feed back results of steps whose next steps are in the same batch. words: the steps' last records."""
        assert self._steps is not None
        self.feed_back(self._steps.flights, self._steps.flights.collect(words))

    def feed_back(self, flights: Flights, count: int) -> None:
        """Turn the results of the first `count` steps in `flights.ended` into their requests' next inputs."""
        assert self._steps is not None
        if self._steps.was_staged():
            return
        streams, resident = self.marks.streams, self.marks.resident
        records = flights.ended[:count].reshape(-1).view(COMMAND_DTYPE)
        if resident:
            resident.settle_requests(records["request"])
        if streams is None:
            self._steps.feed_back(flights, count)
            return
        others = streams.numbers(records["request"].astype(np.uint64))
        streams.join(others)
        self._steps.feed_back(flights, count)
        streams.fork(others)

    @property
    def unmarked_launches(self) -> int:
        """Number of launches before the next one that gets an NVTX range or events."""
        return self.marks.unmarked_launches

    def sampling_ns(self) -> int:
        """Return the ns spent sampling since `start`."""
        return 0 if self._steps is None else self._steps.sampling_ns()

    def enter(self, index: int, size: int, request: int = 0) -> int:
        """Begin a launch of `size` commands of shape `index` (-1: several), with its marks; return its start in ns."""
        return self.marks.enter(index, size, request)

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
        """End and record a launch of batch.words[part]; `more_calls` other API calls copied `copied_bytes`."""
        self.marks.leave(batch, part, strategy, flush_ns, start_ns, more_calls, copied_bytes)

    def left(self, request: int = 0) -> None:
        """End a launch that began at `enter` and that compiled code has recorded."""
        self.marks.left(request)

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Make one launch per command. The compiled loop runs from one sampled launch to the next."""
        first_batch, first, marks = self.recorder.next_batch(len(words)), 0, self.marks
        common = (self.tables, self.records, (first_batch, int(FlushReason.full), flush_ns))
        while first < len(words):
            stop = min(len(words), first + (1 if marks.attached else max(1, marks.sampler.left)))
            with marks.around(int(shape_of[first]), 1, words[first]):
                self.check(lt.launch_each(words, shape_of, first, stop, *common))
            first = stop

    def submit_strided(self, batch: Batch, flush_ns: int, most_launches: int) -> bool:
        """Launch each run of commands whose slots are evenly spaced.

        Return False, and launch nothing, if there are more than `most_launches` runs.
        """
        words, index = batch.words, batch.shape_index
        if most_launches < len(words) and lt.count_runs(words, index, self.tables[0], most_launches) > most_launches:
            return False
        if self.marks.attached:
            self._submit_in_ranges(batch, flush_ns)
            return True
        args = (self.tables, self.records, (self.recorder.next_batch(), int(batch.reason), flush_ns))
        with self.marks.around(index, len(words)):
            self.check(lt.launch_strided(words, index, len(words), *args))
        return True

    def _submit_in_ranges(self, batch: Batch, flush_ns: int) -> None:
        """Launch each run of commands whose slots are evenly spaced, from Python and in an NVTX range."""
        words, index = batch.words, batch.shape_index
        moves = self.tables[0][index, MOVES].tolist()
        args = (self.tables, self.records, (self.recorder.next_batch(), int(batch.reason), flush_ns))
        first = 0
        while first < len(words):
            stop = run_end(words, first, *moves)
            with self.marks.around(index, stop - first):
                self.check(lt.launch_run(words, index, first, stop, *args))
            first = stop

    def submit_packed(self, batch: Batch, flush_ns: int) -> None:
        """Upload the slots, gather A and B, launch once, scatter C."""
        records: Records = batch.words.reshape(-1).view(COMMAND_DTYPE)
        slots = tuple(records[f"slot_{role}"] for role in "abc")
        start_ns = self.enter(batch.shape_index, len(batch))
        copied = self._packing.launch(batch.shape_index, len(batch), slots)
        self.leave(batch, slice(0, len(batch)), Strategy.packed, flush_ns, start_ns, CALLS_PER_BATCH, copied)

    def finish(self) -> Span:
        """Wait for the last result; return the span of the run and its sampled launches."""
        return self.marks.finish(self.synchronize)

    def check_alive(self) -> None:
        """Raise CUDA's error if its context is lost, or if a waiting kernel gave up. Do not wait for submitted work."""
        check_context(self.stream)
        for waiting in (self.marks.resident, self.marks.ahead):
            if waiting:
                waiting.check_alive()

    def synchronize(self) -> None:
        """Wait for everything submitted."""
        self.marks.call_off()
        self._device.synchronize()

    def settled(self) -> AbstractContextManager[None]:
        """Let everything submitted end, the persistent kernel too; start that kernel again behind the context."""
        return self.marks.settled(self.synchronize)

    def ceilings(self, dtype: Dtype) -> Ceilings:
        """Measure the copy, read and matrix rates of this GPU."""
        self.synchronize()
        return measure_ceilings(self.base.contexts[0], dtype, self.stream, self.check)

    def bandwidths(self) -> Bandwidths:
        """Measure the copy and read rates of this GPU's memory."""
        self.synchronize()
        return measure_memory(self.stream)

    def versions(self) -> dict[str, str]:
        """Return the versions of driver, runtime and libraries."""
        return {"gpu": self.info.name, **library_versions(), **(self.split.versions() if self.split else {})}

    def state(self) -> JsonObject:
        """Return the present clocks, power, temperature and throttle reasons."""
        return gpu_state(self.info.index)

    def close(self) -> None:
        """Destroy the plans and give the memory back to the GPU."""
        self.synchronize()
        self.lt.close()
        self.arenas.arrays.clear()
        self._packing.close()
        del self.planner  # it refers to this device, and a cycle of references would keep memory until gc runs
        self.state_of_sequences = None
        cupy.get_default_memory_pool().free_all_blocks()

"""One NVIDIA GPU: cuBLASLt launches on one stream, operands in CuPy arrays. The one door to CUDA.

Launches go through the compiled loops of `lt_launch`. Only when a profiler is attached does Python step in
between two launches, to put an NVTX range around each.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray
from nvmath.bindings import cublasLt

from launchopt.batcher import Batch, Batcher, FlushReason
from launchopt.command import COMMAND_DTYPE, Dtype, Records, ShapeKey
from launchopt.devices import cuda_ceilings
from launchopt.devices import lt_launch as lt
from launchopt.devices.arenas import Arenas
from launchopt.devices.base import Ceilings, DeviceInfo, Span, Stream
from launchopt.devices.chain_pump import ChainPump
from launchopt.devices.cuda_info import cuda_info, driver_version, gpu_state
from launchopt.devices.cuda_steps import CudaSteps
from launchopt.devices.lt_plans import WORKSPACE_LIMIT_BYTES, Plans, matmul_address
from launchopt.devices.pump import Launcher, Pump, PumpSettings
from launchopt.devices.runs import run_end
from launchopt.devices.slot_copy import CALLS_PER_BATCH, SlotCopier
from launchopt.devices.steps import Flights
from launchopt.errors import ArenaMemoryError, RunError
from launchopt.modes.base import Mode
from launchopt.recorder import Recorder, Strategy, note
from launchopt.ring import Ring
from launchopt.sampling import Sampling
from launchopt.timing import nvtx_ranges
from launchopt.timing.events import EventTimer
from launchopt.timing.sampling import Sampler
from launchopt.workloads.chain import LANE, UNIT_BYTES, ChainStream
from launchopt.workloads.stream import ArenaKey


class CudaDevice:
    """The GPU that CUDA numbers `index`."""

    def __init__(self, index: int = 0) -> None:
        self.info: DeviceInfo = cuda_info(index)
        self._device = cupy.cuda.Device(index)
        self._device.use()
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._attached = nvtx_ranges.attached()
        self._domain = nvtx_ranges.domain()
        self._ranges: dict[tuple[str, int, int], Any] = {}

    def open(self, stream: Stream, recorder: Recorder, seed: int) -> None:
        """Allocate and fill the arenas; ArenaMemoryError when the GPU has no room after all."""
        self._recorder, self._dtype, self._stream = recorder, stream.dtype, stream
        self.pack_bytes_per_launch = 0 if isinstance(stream, ChainStream) else self.info.pack_bytes_per_launch
        self._steps: CudaSteps | None = None
        try:
            self.arenas = Arenas(cupy, stream.arenas, stream.fills)
            self._workspace = cupy.empty(WORKSPACE_LIMIT_BYTES, np.uint8)
            self.arenas.fill(seed)
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise ArenaMemoryError(f"{self.info.memory_name}: {error}") from None
        self._shapes, self._strides = stream.shapes, stream.strides()
        self._plans = Plans(stream.dtype)
        self._scalars = np.array([1.0, 0.0], np.float32)  # alpha, beta
        self._shape_table = np.zeros((len(stream.shapes), lt.SHAPE_COLUMNS), np.int64)
        for row, shape in zip(self._shape_table, stream.shapes, strict=True):
            for i, operand in enumerate(stream.operands(shape)):
                row[lt.BASE_A + i] = self.arenas.arrays[operand.arena].data.ptr
                row[lt.BYTES_A + i] = operand.slot_bytes
            row[lt.MOVE_A : lt.MOVE_C + 1] = self._strides[shape]
        self._plan_table = np.zeros((0, lt.PLAN_COLUMNS), np.int64)
        self._warm: list[tuple[int, int, bool]] = []
        self._scratch = [cupy.empty(0, np.uint8) for _ in "abc"]  # batches are in order: one serves all shapes
        self._planned: dict[int, set[int]] = {}
        self._most_packed = 0
        alpha = self._scalars.ctypes.data
        self._context = np.array(
            [
                matmul_address(),
                self._plans.handle,
                alpha,
                alpha + 4,
                self._workspace.data.ptr,
                self.stream.ptr,
            ]
        )
        self._timer = EventTimer(self.stream, most_samples=1 << 20)
        self.synchronize()

    def plan(self, mode: str, shape: ShapeKey, sizes: Sequence[int], scratch: bool) -> None:
        """cuBLASLt plans of every size that can occur: a run is no longer than its arenas."""
        index = self._shapes.index(shape)
        self._name_ranges(mode, index, sizes)
        sizes = sorted(self._planned.get(index, set()).union(sizes))  # an earlier mode's stay valid
        self._planned[index] = set(sizes)
        row = self._shape_table[index]
        moves, slot_bytes = row[lt.MOVE_A : lt.MOVE_C + 1], row[lt.BYTES_A : lt.BYTES_C + 1]
        slots = np.array([len(self.arenas.arrays[operand.arena]) for operand in self._stream.operands(shape)])
        usable = [size for size in sizes if np.all(moves * (size - 1) < slots)]
        row[lt.PLAN0] = self._add_plans(index, shape, usable, moves * slot_bytes, packed=False)
        if scratch:
            most = max(sizes)
            self._most_packed = max(self._most_packed, most)
            self._grow_scratch((most * slot_bytes).tolist())
            row[lt.PACKED0] = self._add_plans(index, shape, sizes, slot_bytes, packed=True)

    def _grow_scratch(self, needed_bytes: Sequence[int]) -> None:
        for operand, size in enumerate(needed_bytes):
            if self._scratch[operand].size < size:
                self._scratch[operand] = cupy.empty(size, np.uint8)

    def _name_ranges(self, mode: str, index: int, sizes: Sequence[int]) -> None:
        shape = self._shapes[index]
        for size in sizes if self._attached else ():
            message = f"{mode} {shape} {shape.dtype.name}"
            self._ranges[mode, index, size] = nvtx_ranges.attributes(self._domain, message, size)

    def _add_plans(
        self, index: int, shape: ShapeKey, sizes: Sequence[int], strides: NDArray[np.int64], packed: bool
    ) -> int:
        """Append rows for batch sizes 0 to max(sizes); returns the first. Sizes left out stay 0, unused."""
        first = len(self._plan_table)
        rows = np.zeros((max(sizes) + 1, lt.PLAN_COLUMNS), np.int64)
        seen: set[bytes] = set()
        a, b, c = (operand.row_elements for operand in self._stream.operands(shape))
        for size in sizes:
            rows[size], algorithm = self._plans.make(shape, size, tuple(strides.tolist()), (a, b, c))
            # Plans that differ in batch size alone run the same kernel: loading it once warms them all.
            if algorithm not in seen:
                self._warm.append((index, size, packed))
                seen.add(algorithm)
        self._plan_table = np.concatenate([self._plan_table, rows])
        return first

    def warm_up(self) -> None:
        """Launch one batch of each distinct kernel of each shape; load the copy kernels."""
        self._copier = SlotCopier(self.stream, self._most_packed) if self._most_packed else None
        for index, size, packed in self._warm:
            row = self._shape_table[index]
            if packed:
                slots = tuple(np.zeros(size, np.uint32) for _ in "abc")
                self._pack(index, size, slots)
                continue
            bases = row[lt.BASE_A : lt.BASE_C + 1].tolist()
            if isinstance(self._stream, ChainStream):  # inputs and outputs are one arena: spare what is filled
                bases[2] += int(self._stream.table[0, LANE]) * UNIT_BYTES
            self._check(lt.matmul(self._context, self._plan_table, int(row[lt.PLAN0]) + size, *bases))
        self._warm.clear()
        self.synchronize()

    def start(self, sample_every: int) -> None:
        """Anchor the clocks; nothing is on the stream yet."""
        recorder = self._recorder
        self.tables = (self._shape_table, self._plan_table, self._context)
        self._records = (recorder.launches, recorder.commands, recorder.cursor)
        self._sampler = Sampler(sample_every)
        if self._steps is not None:
            self._steps.start()
        self._timer.start()

    def begin(self) -> None:
        """Mark the start of the span, just before the first launch."""
        self._timer.mark_start()

    def use_mode(self, mode: str) -> None:
        """The mode whose name the ranges carry from now on."""
        self._mode = mode

    @staticmethod
    def _check(status: int) -> None:
        if status != lt.OK:
            raise RunError(f"cublasLtMatmul failed: {cublasLt.get_status_name(status)}")

    def pump(self, ring: Ring, batcher: Batcher, mode: Mode, settings: PumpSettings) -> Pump | None:
        """The compiled loop for this run; None where ranges must be made between launches, or the mode has none."""
        if self._attached or mode.compiled_loop is None:
            return None
        by_python = (mode.submit, self._submit_one, self._check, self._recorder.make_room)
        launcher = Launcher(self.tables, self._records, self._sampler, *by_python)
        return Pump(ring, batcher, launcher, mode.packable_bytes, settings)

    def open_steps(self, stream: ChainStream, sampling: Sampling, on_host: bool) -> NDArray[np.uint64]:
        """Make ready to feed results back; returns the words that tell of it."""
        self._steps = CudaSteps(stream, self.arenas, self.stream, sampling, on_host)
        return self._steps.done

    def feed_back(self, flights: Flights, count: int) -> None:
        """What the first `count` ended steps computed last becomes their requests' next input."""
        assert self._steps is not None
        self._steps.feed_back(flights, count)

    def sampling_ns(self) -> int:
        """Time spent sampling since `start`."""
        return 0 if self._steps is None else self._steps.sampling_ns()

    def pump_chains(
        self, ring: Ring, batcher: Batcher, mode: Mode, settings: PumpSettings, flights: Flights, back: Ring
    ) -> ChainPump | None:
        """The same for a stream of chains."""
        if self._attached or mode.compiled_loop is None:
            return None
        by_python = (mode.submit, self._submit_one, self._check, self._recorder.make_room)
        launcher = Launcher(self.tables, self._records, self._sampler, *by_python)
        return ChainPump(ring, back, batcher, launcher, flights, self.feed_back, settings)

    def _submit_one(
        self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], at: int, batch: int, flush_ns: int
    ) -> None:
        """The sampled launch of words[at]."""
        with self._sampled(True):
            common = (self.tables, self._records, batch, int(FlushReason.full), flush_ns)
            self._check(lt.launch_each(words, shape_of, at, at + 1, *common))

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """One launch a command; the compiled loop runs from one sampled launch to the next."""
        first_batch, first, sampler = self._recorder.next_batch(len(words)), 0, self._sampler
        common = (self.tables, self._records, first_batch, int(FlushReason.full), flush_ns)
        while first < len(words):
            stop = min(len(words), first + (1 if self._attached else max(1, sampler.left)))
            sampled = sampler.left == 0
            with self._sampled(sampled), self._range(int(shape_of[first]), 1):
                self._check(lt.launch_each(words, shape_of, first, stop, *common))
            if not sampled:
                sampler.passed(stop - first)
            first = stop

    def submit_strided(self, batch: Batch, flush_ns: int, most_launches: int) -> bool:
        """One launch a run of evenly spaced slots."""
        if self._attached:
            return self._submit_in_ranges(batch, flush_ns, most_launches)
        sampler, before = self._sampler, self._recorder.launch_count
        sampled = sampler.left <= 0
        if sampled:
            self._timer.begin()
        args = (self.tables, self._records, self._recorder.next_batch(), int(batch.reason), flush_ns)
        status = lt.launch_strided(batch.words, batch.shape_index, most_launches, *args)
        if status == lt.TOO_MANY_LAUNCHES:
            self._recorder.next_batch(-1)
            return False
        self._check(status)
        if sampled:
            self._recorder.mark_sample(before, self._timer.end())
            sampler.taken(last=self._timer.full)
        else:
            sampler.passed(self._recorder.launch_count - before)
        return True

    def _submit_in_ranges(self, batch: Batch, flush_ns: int, most_launches: int) -> bool:
        """The same with an NVTX range around each launch, which needs Python between them."""
        words, index = batch.words, batch.shape_index
        if lt.count_runs(words, index, self._shape_table, most_launches) > most_launches:
            return False
        moves = self._shape_table[index, lt.MOVE_A : lt.MOVE_C + 1].tolist()
        args = (self.tables, self._records, self._recorder.next_batch(), int(batch.reason), flush_ns)
        first = 0
        while first < len(words):
            stop = run_end(words, first, *moves)
            with self._range(index, stop - first):
                self._check(lt.launch_run(words, index, first, stop, *args))
            first = stop
        return True

    def submit_packed(self, batch: Batch, flush_ns: int) -> None:
        """Upload the slots, gather A and B, launch, scatter C."""
        words, index, recorder = batch.words, batch.shape_index, self._recorder
        records: Records = words.reshape(-1).view(COMMAND_DTYPE)
        slots = tuple(records[f"slot_{role}"] for role in "abc")
        sampled = self._sampler.left <= 0
        with self._sampled(sampled), self._range(index, len(words)):
            start_ns = time.monotonic_ns()
            self._pack(index, len(words), slots)
            end_ns = time.monotonic_ns()
            what = (recorder.next_batch(), index, int(Strategy.packed), int(batch.reason), flush_ns)
            note(*self._records, words, 0, len(words), what, start_ns, end_ns)
        slot_bytes = int(self._shape_table[index, lt.BYTES_A : lt.BYTES_C + 1].sum())
        recorder.mark_packed(len(words) * slot_bytes, CALLS_PER_BATCH)
        if not sampled:
            self._sampler.passed(1)

    def _pack(self, index: int, count: int, slots: tuple[NDArray[np.uint32], ...]) -> None:
        row = self._shape_table[index].tolist()
        copier = self._copier
        assert copier is not None
        a, b, c = (scratch.data.ptr for scratch in self._scratch)
        copier.upload(slots)
        copier.gather(0, row[lt.BASE_A], a, row[lt.BYTES_A], count)
        copier.gather(1, row[lt.BASE_B], b, row[lt.BYTES_B], count)
        self._check(lt.matmul(self._context, self._plan_table, row[lt.PACKED0] + count, a, b, c))
        copier.scatter(2, c, row[lt.BASE_C], row[lt.BYTES_C], count)

    @contextlib.contextmanager
    def _sampled(self, sampled: bool) -> Any:
        """Events around what is submitted inside, when it is its turn."""
        if not sampled:
            yield
            return
        before = self._recorder.launch_count
        self._timer.begin()
        yield
        self._recorder.mark_sample(before, self._timer.end())
        self._sampler.taken(last=self._timer.full)

    @contextlib.contextmanager
    def _range(self, index: int, size: int) -> Any:
        """An NVTX range, when a tool listens and this is no rehearsal."""
        attributes = self._ranges.get((self._mode, index, size))
        if attributes is None:
            yield
            return
        self._domain.push_range(attributes)
        try:
            yield
        finally:
            self._domain.pop_range()

    def finish(self) -> Span:
        """Wait for the last result; read the events."""
        self._timer.mark_end()
        self.synchronize()
        end_ns = time.monotonic_ns()
        return Span(end_ns, *self._timer.finish())

    def synchronize(self) -> None:
        """Wait for everything submitted."""
        self._device.synchronize()

    def ceilings(self, dtype: Dtype) -> Ceilings:
        """Copy, read and matrix rates of this GPU."""
        side = cuda_ceilings.SIDE
        shape = ShapeKey(side, side, side, dtype)
        key = ArenaKey("a", side, side, dtype)
        room = Arenas(cupy, {key: 3})
        room.fill(seed=1)
        plans = Plans(dtype)
        row, _ = plans.make(shape, 1, (0, 0, 0))
        table, context = np.array([row], np.int64), self._context.copy()
        context[lt.HANDLE] = plans.handle
        a, b, c = (room.arrays[key].data.ptr + slot * key.slot_bytes for slot in range(3))

        def gemm() -> None:
            self._check(lt.matmul(context, table, 0, a, b, c))

        self.synchronize()
        found = cuda_ceilings.measure(gemm, shape.flops, self.stream)
        plans.close()
        return found

    def versions(self) -> dict[str, str]:
        """Driver, runtime and libraries."""
        runtime = cupy.cuda.runtime
        return {
            "gpu": self.info.name,
            "cuda_driver": str(runtime.driverGetVersion()),
            "cuda_runtime": str(runtime.runtimeGetVersion()),
            "cublaslt": str(cublasLt.get_version()),
            "cupy": cupy.__version__,
            "nvmath-python": version("nvmath-python"),
            **driver_version(),
        }

    def state(self) -> dict[str, Any]:
        """Clocks, power, temperature and throttle reasons now."""
        return gpu_state(self.info.index)

    def close(self) -> None:
        """Destroy the plans, give the memory back to the GPU."""
        self.synchronize()
        self._plans.close()
        self.arenas.arrays.clear()
        self._scratch.clear()
        cupy.get_default_memory_pool().free_all_blocks()

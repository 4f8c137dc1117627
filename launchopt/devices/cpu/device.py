"""The CPU as a device: one launch is one NumPy call, with the same operands, slots and verification as on a GPU.

`CpuLaunch` computes a launch. The timed region includes the conversion of half precision to fp32 and back. Calls are
synchronous: a launch is complete when its call returns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from itertools import pairwise

import numpy as np
import psutil
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from launchopt.batching.batch import Batch, FlushReason
from launchopt.command import COMMAND_DTYPE, Dtype, Records, RecordWord, ShapeKey
from launchopt.devices.arenas import Arenas, Sources
from launchopt.devices.cpu import ceilings as cpu_ceilings
from launchopt.devices.cpu.info import cpu_info
from launchopt.devices.cpu.launch import CpuLaunch, gather, stack
from launchopt.devices.cpu.split import CpuSplit
from launchopt.devices.cublaslt.launch_tables import ContextWord, PlanColumn, ShapeColumn
from launchopt.devices.feedback.cpu import CpuSteps
from launchopt.devices.feedback.flights import Flights
from launchopt.devices.loops.runner import Launcher
from launchopt.devices.peers.segment import Team
from launchopt.devices.prepared import LaunchPath, PreparedMode
from launchopt.devices.runs import run_end
from launchopt.errors import RunError
from launchopt.queue.ring import Ring
from launchopt.recording.launch_rows import Facts, Strategy
from launchopt.recording.recorder import Recorder
from launchopt.records import SHAPE_MASK
from launchopt.sampling import Sampling
from launchopt.streams.chains.chain import ChainStream, Stream, chain_of
from launchopt.timing import nvtx_ranges
from launchopt.timing.activity import Bandwidths, Ceilings, Span
from launchopt.timing.sampling import Sampler
from launchopt.types import Array, Words

CALLS_PER_PACK = 3  # two gathers and a scatter


class CpuDevice:
    """NumPy on this machine. threads: the number that BLAS may use; None leaves one core to the producer."""

    def __init__(self, threads: int | None = None) -> None:
        self.info = cpu_info()
        cores = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else 1
        self.threads = threads or max(1, cores - 1)
        self._limits = threadpool_limits(self.threads, user_api="blas")
        self._domain = nvtx_ranges.domain()
        self._unnamed = nvtx_ranges.attributes(self._domain, "warm-up run", 0)
        self._ranges: dict[tuple[str, int, int], object] = {}
        self._scratch: dict[int, tuple[Array, ...]] = {}
        self._steps: CpuSteps | None = None
        self.split: CpuSplit | None = None

    def open(self, stream: Stream, recorder: Recorder, seed: int, team: Team | None = None) -> None:
        """Allocate and fill the arenas in main memory; those of activations in memory that all of `team` share."""
        self.work, self._recorder = stream, recorder
        self.pack_bytes_per_launch = self.info.pack_bytes_per_launch if stream.packable else 0
        self.split = None if team is None else CpuSplit(chain_of(stream), seed, team)
        self.arenas = (
            Arenas(np, stream.arenas, stream.fills, Sources(fixed=stream.fixed))
            if self.split is None
            else self.split.arenas
        )
        self.arenas.fill(seed)
        self._strides = stream.strides()
        self._shapes = stream.shapes
        self._index = {shape.packed: index for index, shape in enumerate(stream.shapes)}
        self.compute = CpuLaunch(stream, self.arenas, None if self.split is None else self.split.peers)
        self._views = self.compute.views

    def open_steps(self, stream: ChainStream, sampling: Sampling, on_host: bool, back: Ring) -> Flights:
        """Prepare feedback of results, which NumPy does at once. `on_host` makes no difference here."""
        self._steps = CpuSteps(stream, self.arenas, sampling)
        self._flights = Flights(stream, back, self._steps.done)
        return self._flights

    def end_step(self, words: Words) -> None:
        """Feed back the results of steps whose next steps are in the same batch. words: their last records."""
        self.feed_back(self._flights, self._flights.collect(words))

    def feed_back(self, flights: Flights, count: int) -> None:
        """Turn the last outputs of the first `count` ended steps into their requests' next inputs."""
        assert self._steps is not None
        self._steps.feed_back(flights, count)

    def sampling_ns(self) -> int:
        """Return the time spent sampling since `start`, ns."""
        return 0 if self._steps is None else self._steps.sampling_ns

    def plan(self, mode: str, shape: ShapeKey, sizes: Sequence[int], scratch: bool) -> None:
        """Register the names of NVTX ranges; with `scratch`, allocate memory to pack a batch into."""
        index = self._shapes.index(shape)
        for size in sizes:
            message = f"{mode} {shape} {shape.dtype.name}"
            self._ranges[mode, index, size] = nvtx_ranges.attributes(self._domain, message, size)
        if scratch:
            self._scratch[index] = tuple(np.zeros((max(sizes), *x.shape[1:]), x.dtype) for x in self._views[index])

    def warm_up(self) -> None:
        """Load the libraries and threads that launches need."""
        self.compute.warm_up()

    def start(self, sample_every: int, path: LaunchPath | None = None) -> None:
        """Begin a run: set the sampling time to 0 and requests to their first token. Every launch is timed here."""
        self.compute.reset()
        if self._steps is not None:
            self._steps.sampling_ns = 0

    def begin(self) -> None:
        """Do nothing: synchronous calls need no mark of the begin."""

    def use_mode(self, mode: str) -> None:
        """Set the mode whose name the NVTX ranges carry; "" for none."""
        self._mode = mode

    def _push_range(self, shape_index: int, size: int) -> None:
        self._domain.push_range(self._ranges.get((self._mode, shape_index, size), self._unnamed))

    def _launch(
        self,
        words: NDArray[np.uint64],
        first: int,
        stop: int,
        operands: Sequence[Array],
        what: Facts,
    ) -> None:
        """Make and record one NumPy call for words[first:stop], inside its NVTX range."""
        self._push_range(what[1], stop - first)
        start_ns = time.monotonic_ns()
        a, b, c = operands
        self.compute.run(what[1], a, b, c, words[first:stop])
        end_ns = time.monotonic_ns()
        self._domain.pop_range()
        self._recorder.note(words, slice(first, stop), what, start_ns, end_ns)

    def launcher(self, mode: PreparedMode) -> Launcher:
        """Return a Launcher whose tables are empty: Python makes every launch, because a launch is a NumPy call."""
        shapes = np.zeros((len(self._shapes), len(ShapeColumn)), np.int64)
        plans, contexts = np.zeros((0, len(PlanColumn)), np.int64), np.zeros((1, len(ContextWord)), np.int64)
        by_python = (mode.submit, mode.submit_each, self.check)
        return Launcher((shapes, plans, contexts), self._recorder, Sampler(0), *by_python, is_compiled=False)

    @staticmethod
    def check(status: int) -> None:
        """Raise RunError: this device makes no compiled launch that could return a status."""
        raise RunError(f"a compiled launch returned status {status} on the cpu device, which makes none")

    def enter(self, index: int, size: int, request: int = 0) -> int:
        """Begin a launch of `size` commands of shape `index` (-1: several shapes); return its start time, ns."""
        self._push_range(index, size)
        return time.monotonic_ns()

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
        """End the launch of batch.words[part], and record it with its further calls and copied bytes."""
        end_ns = time.monotonic_ns()
        self._domain.pop_range()
        recorder = self._recorder
        what = (recorder.next_batch(), batch.shape_index, int(strategy), int(batch.reason), flush_ns)
        recorder.note(batch.words, part, what, start_ns, end_ns)
        if more_calls or copied_bytes:
            recorder.mark_packed(copied_bytes, more_calls)

    def index_of(self, word: NDArray[np.uint64]) -> int:
        """Return the index of a record's shape in the workload's shapes."""
        return self._index[int(word[RecordWord.MN]), int(word[RecordWord.K_OP_DTYPE] & SHAPE_MASK)]

    def execute(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32]) -> None:
        """Compute each command, as part of one launch. Nothing is recorded here."""
        records: Records = words.reshape(-1).view(COMMAND_DTYPE)
        # A list, for the reason given in submit_strided.
        slots = zip(*[records[f"slot_{role}"].tolist() for role in "abc"], strict=True)
        for i, (shape_index, (a, b, c)) in enumerate(zip(shape_of.tolist(), slots, strict=True)):
            arena_a, arena_b, arena_c = self._views[shape_index]
            operands = (arena_a[a : a + 1], arena_b[b : b + 1], arena_c[c : c + 1])
            self.compute.run(shape_index, *operands, words[i : i + 1])

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """Make one call per command."""
        records: Records = words.reshape(-1).view(COMMAND_DTYPE)
        batch = self._recorder.next_batch(len(words))
        slots = zip(*(records[f"slot_{role}"].tolist() for role in "abc"), strict=True)
        for i, (shape_index, (a, b, c)) in enumerate(zip(shape_of.tolist(), slots, strict=True)):
            arena_a, arena_b, arena_c = self._views[shape_index]
            operands = (arena_a[a : a + 1], arena_b[b : b + 1], arena_c[c : c + 1])
            what = (batch + i, shape_index, int(Strategy.single), int(FlushReason.full), flush_ns)
            self._launch(words, i, i + 1, operands, what)

    def submit_strided(self, batch: Batch, flush_ns: int, most_launches: int) -> bool:
        """Make one stacked matmul per evenly spaced run of commands; return False if that takes too many launches."""
        words, shape_index = batch.words, batch.shape_index
        moves = self._strides[self._shapes[shape_index]]
        runs = [0]
        while runs[-1] < len(words):
            if len(runs) > most_launches:
                return False
            runs.append(run_end(words, runs[-1], *moves))
        number = self._recorder.next_batch()
        records: Records = words.reshape(-1).view(COMMAND_DTYPE)
        for first, stop in pairwise(runs):
            strategy = Strategy.single if stop - first == 1 else Strategy.strided
            # A list, not a generator: CPython would keep up to 2,000 tuples made from a generator for later use.
            operands = [
                stack(view, int(records[f"slot_{role}"][first]), move, stop - first)
                for role, view, move in zip("abc", self._views[shape_index], moves, strict=True)
            ]
            what = (number, shape_index, int(strategy), int(batch.reason), flush_ns)
            self._launch(words, first, stop, operands, what)
        return True

    def submit_packed(self, batch: Batch, flush_ns: int) -> None:
        """Gather A and B, make one stacked matmul, and scatter C. The time of the launch includes the copies."""
        words, shape_index = batch.words, batch.shape_index
        records: Records = words.reshape(-1).view(COMMAND_DTYPE)
        count = len(words)
        a, b, c = (scratch[:count] for scratch in self._scratch[shape_index])
        arena_a, arena_b, arena_c = self._views[shape_index]
        recorder = self._recorder
        self._push_range(shape_index, count)
        start_ns = time.monotonic_ns()
        gather(arena_a, records["slot_a"], a)
        gather(arena_b, records["slot_b"], b)
        self.compute.multiply(shape_index, a, b, c)
        arena_c[records["slot_c"]] = c
        end_ns = time.monotonic_ns()
        self._domain.pop_range()
        what = (recorder.next_batch(), shape_index, int(Strategy.packed), int(batch.reason), flush_ns)
        recorder.note(words, slice(0, count), what, start_ns, end_ns)
        recorder.mark_packed(a.nbytes + b.nbytes + c.nbytes, CALLS_PER_PACK)

    def finish(self) -> Span:
        """Return the end of the run: every call is complete."""
        return Span(time.monotonic_ns(), None, np.empty((0, 2), np.int64))

    def check_alive(self) -> None:
        """Do nothing: this device cannot be lost."""

    def synchronize(self) -> None:
        """Do nothing: every call is complete when it returns."""

    def settled(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: the device is always idle between calls."""
        return nullcontext()

    def ceilings(self, dtype: Dtype) -> Ceilings:
        """Measure the copy and read rates of main memory, and of a square fp32 GEMM, with this device's threads."""
        return cpu_ceilings.measure(self.info.cache_bytes, self.threads)

    def bandwidths(self) -> Bandwidths:
        """Measure the copy and read rates of main memory."""
        return cpu_ceilings.memory(self.info.cache_bytes, self.threads)

    def versions(self) -> dict[str, str]:
        """Return the versions of NumPy and of the BLAS that it loaded."""
        blas = [f"{x['internal_api']} {x['version']}" for x in threadpool_info() if x["user_api"] == "blas"]
        return {"numpy": version("numpy"), "blas": ", ".join(blas), "blas_threads": str(self.threads)}

    def state(self) -> dict[str, object]:
        """Return the clock and the load of the processor."""
        frequency = psutil.cpu_freq()
        return {"cpu_mhz": frequency.current if frequency else None, "load_average": psutil.getloadavg()}

    def close(self) -> None:
        """Restore the number of threads of BLAS."""
        self._limits.restore_original_limits()

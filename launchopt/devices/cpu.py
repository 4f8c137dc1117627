"""The CPU as a device: one launch is one NumPy call, on the same operands, slots and checks as on a GPU.

fp32 goes straight to BLAS. NumPy's BLAS knows no half precision, so fp16 and bf16 operands are widened to fp32
for each launch and the result is rounded back, inside the timed region. Calls are synchronous: a launch has
ended when it returns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from multiprocessing.pool import ThreadPool
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from launchopt.batcher import Batch, Batcher, FlushReason
from launchopt.command import COMMAND_DTYPE, Dtype, Records, ShapeKey
from launchopt.devices.arenas import Arenas, from_float32, to_float32
from launchopt.devices.base import Ceilings, Span, Stream
from launchopt.devices.cpu_info import cpu_info
from launchopt.devices.cpu_steps import CpuSteps
from launchopt.devices.pump import PumpSettings
from launchopt.devices.runs import run_end
from launchopt.devices.steps import Flights
from launchopt.modes.base import Mode
from launchopt.recorder import LaunchFacts, Recorder, Strategy, note
from launchopt.ring import Ring
from launchopt.sampling import Sampling
from launchopt.timing import nvtx_ranges
from launchopt.workloads.chain import ChainStream

CALLS_PER_PACK = 3  # two gathers and a scatter
CEILING_LEAST_BYTES, CEILING_SIDE = 64 << 20, 1024


class CpuDevice:
    """NumPy on this machine. `threads` is what BLAS may use; None leaves one core to the producer."""

    def __init__(self, threads: int | None = None) -> None:
        self.info = cpu_info()
        cores = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else 1
        self.threads = threads or max(1, cores - 1)
        self._limits = threadpool_limits(self.threads, user_api="blas")
        self._domain = nvtx_ranges.domain()
        self._unnamed = nvtx_ranges.attributes(self._domain, "rehearsal", 0)
        self._ranges: dict[tuple[str, int, int], Any] = {}
        self._scratch: dict[int, tuple[Any, ...]] = {}
        self._steps: CpuSteps | None = None

    def open(self, stream: Stream, recorder: Recorder, seed: int) -> None:
        """Allocate and fill the arenas in main memory."""
        self._stream, self._recorder = stream, recorder
        self.pack_bytes_per_launch = 0 if isinstance(stream, ChainStream) else self.info.pack_bytes_per_launch
        self.arenas = Arenas(np, stream.arenas, stream.fills)
        self.arenas.fill(seed)
        self._strides = stream.strides()
        self._shapes = stream.shapes
        self._views = [self._views_of(shape) for shape in stream.shapes]

    def _views_of(self, shape: ShapeKey) -> tuple[Any, Any, Any]:
        a, b, c = self._stream.operands(shape)
        view = self.arenas.view
        return view(a, shape.m, shape.k), view(b, shape.n, shape.k), view(c, shape.n, shape.m)

    def open_steps(self, stream: ChainStream, sampling: Sampling, on_host: bool) -> NDArray[np.uint64]:
        """Results are fed back at once, by NumPy, wherever sampling was asked for."""
        self._steps = CpuSteps(stream, self.arenas, sampling)
        return self._steps.done

    def feed_back(self, flights: Flights, count: int) -> None:
        """What the first `count` ended steps computed last becomes their requests' next input."""
        assert self._steps is not None
        self._steps.feed_back(flights, count)

    def sampling_ns(self) -> int:
        """Time spent sampling since `start`."""
        return 0 if self._steps is None else self._steps.sampling_ns

    def pump_chains(
        self, ring: Ring, batcher: Batcher, mode: Mode, settings: PumpSettings, flights: Flights, back: Ring
    ) -> None:
        """None: a launch is a NumPy call, which only Python makes."""
        return

    def plan(self, mode: str, shape: ShapeKey, sizes: Sequence[int], scratch: bool) -> None:
        """Register the ranges' names; allocate packing scratch."""
        index = self._shapes.index(shape)
        for size in sizes:
            message = f"{mode} {shape} {shape.dtype.name}"
            self._ranges[mode, index, size] = nvtx_ranges.attributes(self._domain, message, size)
        if scratch:
            self._scratch[index] = tuple(np.zeros((max(sizes), *x.shape[1:]), x.dtype) for x in self._views[index])

    def warm_up(self) -> None:
        """One call a shape: BLAS starts its threads and pages in its code."""
        for a, b, c in self._views:
            self._multiply(a[:1], b[:1], np.empty_like(c[:1]))  # not into slot 0, which may hold inputs

    def start(self, sample_every: int) -> None:
        """Every launch's end is known; sampling is counted afresh."""
        if self._steps is not None:
            self._steps.sampling_ns = 0

    def begin(self) -> None:
        """Nothing to mark: calls are synchronous."""

    def use_mode(self, mode: str) -> None:
        """The mode whose name the ranges carry from now on; "" for none."""
        self._mode = mode

    def _multiply(self, a: Any, b: Any, c: Any) -> None:
        """c[i] = b[i] @ a[i].T for stacks in storage type."""
        dtype = self._stream.dtype
        if dtype is Dtype.fp32:
            np.matmul(b, a.transpose(0, 2, 1), out=c)
        else:
            wide = np.matmul(to_float32(b, dtype), to_float32(a, dtype).transpose(0, 2, 1))
            c[:] = from_float32(wide, dtype)

    def _push_range(self, shape_index: int, size: int) -> None:
        self._domain.push_range(self._ranges.get((self._mode, shape_index, size), self._unnamed))

    def _launch(
        self,
        words: NDArray[np.uint64],
        first: int,
        stop: int,
        operands: Sequence[Any],
        what: LaunchFacts,
    ) -> None:
        """One NumPy call for words[first:stop], under its range, noted."""
        self._push_range(what[1], stop - first)
        start_ns = time.monotonic_ns()
        self._multiply(*operands)
        end_ns = time.monotonic_ns()
        self._domain.pop_range()
        recorder = self._recorder
        note(recorder.launches, recorder.commands, recorder.cursor, words, first, stop, what, start_ns, end_ns)

    def pump(self, ring: Ring, batcher: Batcher, mode: Mode, settings: PumpSettings) -> None:
        """None: a launch is a NumPy call, which only Python makes."""
        return

    def submit_each(self, words: NDArray[np.uint64], shape_of: NDArray[np.int32], flush_ns: int) -> None:
        """One call a command."""
        records: Records = words.reshape(-1).view(COMMAND_DTYPE)
        batch = self._recorder.next_batch(len(words))
        slots = zip(*(records[f"slot_{role}"].tolist() for role in "abc"), strict=True)
        for i, (shape_index, (a, b, c)) in enumerate(zip(shape_of.tolist(), slots, strict=True)):
            arena_a, arena_b, arena_c = self._views[shape_index]
            operands = (arena_a[a : a + 1], arena_b[b : b + 1], arena_c[c : c + 1])
            what = (batch + i, shape_index, int(Strategy.single), int(FlushReason.full), flush_ns)
            self._launch(words, i, i + 1, operands, what)

    def submit_strided(self, batch: Batch, flush_ns: int, most_launches: int) -> bool:
        """One stacked matmul a run."""
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
            # A list: CPython would keep every tuple made of a generator, up to 2,000, for the next of its length.
            operands = [
                _run(view, int(records[f"slot_{role}"][first]), move, stop - first)
                for role, view, move in zip("abc", self._views[shape_index], moves, strict=True)
            ]
            what = (number, shape_index, int(strategy), int(batch.reason), flush_ns)
            self._launch(words, first, stop, operands, what)
        return True

    def submit_packed(self, batch: Batch, flush_ns: int) -> None:
        """Gather A and B, one stacked matmul, scatter C: the copies are inside the launch's time."""
        words, shape_index = batch.words, batch.shape_index
        records: Records = words.reshape(-1).view(COMMAND_DTYPE)
        count = len(words)
        a, b, c = (scratch[:count] for scratch in self._scratch[shape_index])
        arena_a, arena_b, arena_c = self._views[shape_index]
        recorder = self._recorder
        self._push_range(shape_index, count)
        start_ns = time.monotonic_ns()
        np.take(arena_a, records["slot_a"], axis=0, out=a)
        np.take(arena_b, records["slot_b"], axis=0, out=b)
        self._multiply(a, b, c)
        arena_c[records["slot_c"]] = c
        end_ns = time.monotonic_ns()
        self._domain.pop_range()
        what = (recorder.next_batch(), shape_index, int(Strategy.packed), int(batch.reason), flush_ns)
        note(recorder.launches, recorder.commands, recorder.cursor, words, 0, count, what, start_ns, end_ns)
        recorder.mark_packed(a.nbytes + b.nbytes + c.nbytes, CALLS_PER_PACK)

    def finish(self) -> Span:
        """Everything has ended already."""
        return Span(time.monotonic_ns(), None, np.empty((0, 2), np.int64))

    def synchronize(self) -> None:
        """Everything has ended already."""

    def ceilings(self, dtype: Dtype) -> Ceilings:
        """Copy and read rates of main memory, and a square fp32 GEMM, with this device's threads."""
        size = max(CEILING_LEAST_BYTES, 2 * self.info.cache_bytes)
        whole = np.ones(size // 4, np.float32)
        source, target = np.split(whole, 2)  # together twice the cache: fresh memory takes longer than the copies
        parts = list(zip(np.array_split(target, self.threads), np.array_split(source, self.threads), strict=True))
        with ThreadPool(self.threads) as pool:  # NumPy copies without the GIL
            copy_s = _fastest(lambda: pool.starmap(np.copyto, parts))
        rows, vector = whole.reshape(-1, 8192), np.ones(8192, np.float32)
        read_s = _fastest(lambda: rows @ vector)
        side = CEILING_SIDE
        square = np.ones((side, side), np.float32)
        peak_s = _fastest(lambda: square @ square)
        return Ceilings(2 * source.nbytes / copy_s * 1e-9, whole.nbytes / read_s * 1e-9, 2 * side**3 / peak_s * 1e-12)

    def versions(self) -> dict[str, str]:
        """NumPy and the BLAS it loaded."""
        blas = [f"{x['internal_api']} {x['version']}" for x in threadpool_info() if x["user_api"] == "blas"]
        return {"numpy": version("numpy"), "blas": ", ".join(blas), "blas_threads": str(self.threads)}

    def state(self) -> dict[str, Any]:
        """Clock and load of the processor."""
        frequency = psutil.cpu_freq()
        return {"cpu_mhz": frequency.current if frequency else None, "load_average": psutil.getloadavg()}

    def close(self) -> None:
        """Give BLAS its threads back."""
        self._limits.restore_original_limits()


def _run(view: Any, slot: int, move: int, count: int) -> Any:
    """The stack of `count` slots from `slot` on, `move` apart, without a copy."""
    if move == 0:
        return np.broadcast_to(view[slot], (count, *view.shape[1:]))
    return view[slot : slot + move * (count - 1) + 1 : move]


def _fastest(work: Any, times: int = 3) -> float:
    """Seconds of the fastest of a few runs: a ceiling is what the machine can do, not what it does on average."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best

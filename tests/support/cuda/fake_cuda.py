"""A CUDA device on the host: what modes ask of a `CudaDevice`, over stand-ins for cuBLASLt, the driver and CuPy.

So the Python of modes on a GPU (plans, tables, graphs, copies) runs, and outputs are checked, where there is none.
CuPy and nvmath must be installed, since those modules import them; nothing is allocated by either. fp32, no attention.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from launchopt.batching.batcher import Batch
from launchopt.batching.step_batcher import StepBatch
from launchopt.command import Dtype, ShapeKey
from launchopt.devices.base import DeviceInfo
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.tables import Row, Tables, operand_slots
from launchopt.devices.cuda.kernel_plans import KernelPlans
from launchopt.devices.feedback.cpu import CpuSteps
from launchopt.devices.feedback.flights import Flights, facts_of
from launchopt.devices.feedback.in_launch import FeedbackLayout, LaunchFeedback, head_of, words_of
from launchopt.devices.feedback.stages import STAGES, WORDS, FeedbackStages
from launchopt.devices.loops import requests as lc
from launchopt.errors import RunError
from launchopt.recording.recorder import Recorder, Strategy
from launchopt.sampling import Sampling, SamplingKind
from launchopt.timing.activity import Span
from launchopt.workloads.chain import Stream
from support.cuda.fake_copy import STREAM, FakeCopy
from support.cuda.fake_graphs import FakeRuntime
from support.cuda.fake_kernels import bias_relu_scale
from support.cuda.fake_lt import POINTERS, FakeLt

PROPOSALS = 3  # that cuBLASLt has for any shape
INFO = DeviceInfo("cuda", 0, "Fake", 1 << 40, 1 << 20, "memory of Fake", 0)
Three = tuple[int, int, int]


class FakeCuda:
    """One stream of commands on it; `with fake_cuda() as device`."""

    info = INFO
    pack_bytes_per_launch = 0
    stages: FeedbackStages | None = None
    ahead: Any = None  # of the mode that runs
    unmarked_launches = 1 << 62  # before the next one that is timed

    def __init__(self) -> None:
        self.runtime = FakeRuntime(execute=lambda call: call())
        self.stream = _FakeStream(self)
        self.lt = SimpleNamespace(make=self._make)
        self.kernels: Any = self
        self._rows = KernelPlans(Dtype.fp32)
        self._keep: list[NDArray[np.int64]] = []
        self.warmed = 0

    def open(self, stream: Stream, recorder: Recorder, seed: int) -> None:
        self.work, self.recorder = stream, recorder
        self.fake = FakeLt(stream, dict.fromkeys(stream.shapes, 0), recorder=recorder)
        self.fake.arenas.fill(seed)
        self.base: Tables = self.fake.base
        self.base.plans = self.base.plans[:0]
        self.arenas, self.records = self.fake.arenas, self.fake.records
        self.row_elements, self.check = self.fake.row_elements, self.fake.check

    def open_steps(self, stream: Any, sampling: Sampling, on_host: bool, back: Any) -> Flights:
        self._steps, self.sampling = CpuSteps(stream, self.arenas, sampling), sampling
        flights = Flights(stream, back, self._steps.done)
        base = self.arenas.arrays[stream.activations].ctypes.data
        history = self.arenas.arrays.get(stream.history)
        facts = facts_of(stream, base, 0 if history is None else history.ctypes.data, flights.done.ctypes.data)
        stages = np.zeros((STAGES, WORDS, stream.requests), np.uint64)
        self.stages = FeedbackStages(flights, stream.table, facts, stages, lambda: self.synchronize())
        kept = Sampling(SamplingKind.none) if stream.vocab is None else sampling
        row_bytes = int(facts[lc.ROW_BYTES])
        layout = FeedbackLayout(stream.hidden, stream.vocab or 1, stream.requests, base, row_bytes)
        words = words_of(kept, layout)
        self.launch_feedback = None if on_host else LaunchFeedback(head_of(kept.kind), words, self.stages)
        self.fed_back = 0  # by launches of its own
        return flights

    def stage_feedback(self, batch: StepBatch) -> int:
        return 0 if self.stages is None or self.launch_feedback is None else self.stages.stage(batch)

    def feed_back(self, flights: Flights, count: int) -> None:
        if self.stages is None or not self.stages.was_staged():
            self.fed_back += 1
            self._steps.feed_back(flights, count)

    # What modes plan with.

    def _make(
        self,
        shape: ShapeKey,
        batch: int,
        stride_bytes: Three | None,
        leading: Three | None = None,
        epilogue: tuple[int, int] | None = None,
        choice: int = 0,
    ) -> Row:
        if choice >= PROPOSALS:
            raise RunError("no such algorithm")
        steps = [POINTERS] * 3 if stride_bytes is None else [stride // 4 for stride in stride_bytes]
        row = self.fake.plan(shape, batch, steps, leading or (shape.k, shape.k, shape.m))[:6]
        if epilogue is not None:
            self._keep.append(np.array(epilogue, np.int64))
            row[lt.DESCRIPTION] = self._keep[-1].ctypes.data
        return row, b"%d" % choice

    def plan(self, mode: str, shape: ShapeKey, sizes: Sequence[int], scratch: bool) -> None:
        assert not scratch
        self.plan_strided(self.base, self.work.shapes.index(shape), sizes)

    def plan_strided(self, tables: Tables, index: int, sizes: Sequence[int]) -> None:
        shape = self.work.shapes[index]
        strides = tables.strides_bytes(index).tolist()
        usable = tables.sizes(index, sizes, operand_slots(self.work, self.arenas, shape))
        tables.add(index, usable, lambda size: (self.fake._row(shape, size, strides), b""))

    def warm(self, tables: Tables, index: int, sizes: Sequence[int]) -> None:
        assert all(tables.plans[tables.shapes[index, lt.PLAN0] + size].any() for size in sizes)
        self.warmed += len(sizes)

    def function(self, file: str, name: str, **defines: int) -> Any:
        assert (file, name, defines) == ("fused", "BIAS_RELU_SCALE", {})
        return self.fake.kernels.kernel(bias_relu_scale)

    def row(self, function: Any, launch: Any) -> list[int]:
        return self._rows.row(function, launch)

    def name_ranges(self, mode: str, index: int, sizes: Sequence[int]) -> None:
        """Nothing."""

    # What they launch with.

    def enter(self, index: int, size: int, request: int = 0) -> int:
        return self.fake.enter(index, size, request)

    def left(self, request: int = 0) -> None:
        """Nothing."""

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
        what = (self.recorder.next_batch(), batch.shape_index, int(strategy), int(batch.reason), flush_ns)
        self.recorder.note(batch.words, part, what, start_ns, self.enter(0, 0))
        if more_calls or copied_bytes:
            self.recorder.mark_packed(copied_bytes, more_calls)

    def submit_strided(self, batch: Batch, flush_ns: int, most_launches: int) -> bool:
        number = self.recorder.next_batch()
        common = (self.base.arrays, self.records, number, int(batch.reason), flush_ns)
        self.check(lt.launch_strided(batch.words, batch.shape_index, most_launches, *common))
        return True

    # What a run asks of it.

    def warm_up(self) -> None:
        """Nothing."""

    def synchronize(self) -> None:
        """Nothing."""

    def use_mode(self, mode: str) -> None:
        """Nothing."""

    def start(self, sample_every: int, mode: Any = None) -> None:
        if self.stages is not None:
            self.stages.start()
        self.ahead = None if mode is None else mode.ahead
        if self.ahead:
            self.ahead.start()

    def begin(self) -> None:
        """Nothing."""

    def finish(self) -> Span:
        if self.ahead:
            self.recorder.count_more(self.ahead.called_off)
        return Span(0, None, np.empty((0, 2), np.int64))

    def close(self) -> None:
        """Nothing is left that was captured."""
        assert self.runtime.graphs == []
        assert self.runtime.executables == []

    def capture(self, calls: list[Any] | None) -> None:
        """Launches go to a list, until there is none."""
        self.fake.capture = self.fake.kernels.capture = calls


class _FakeStream:
    """CuPy's, as far as launches are captured from it."""

    ptr = STREAM

    def __init__(self, device: FakeCuda) -> None:
        self._device = device

    def synchronize(self) -> None:
        """Nothing."""

    def begin_capture(self, mode: Any) -> None:
        self._calls: list[Callable[[], object]] = []
        self._device.capture(self._calls)

    def end_capture(self) -> Any:
        self._device.capture(None)
        calls = self._calls
        return SimpleNamespace(upload=lambda stream: None, launch=lambda stream: [call() for call in calls])


class FakeCopier:
    """`SlotCopier` with memmove."""

    def __init__(self, stream: Any, most: int) -> None:
        self._most, self._slots = most, [np.zeros(0, np.uint32)] * 3

    def upload(self, slots: Sequence[NDArray[np.uint32]]) -> None:
        assert max(map(len, slots)) <= self._most
        self._slots = [each.copy() for each in slots]

    def gather(self, operand: int, arena: int, scratch: int, slot_bytes: int, count: int, copied_bytes: int) -> None:
        for i, slot in enumerate(self._slots[operand][:count].tolist()):
            ctypes.memmove(scratch + i * copied_bytes, arena + slot * slot_bytes, copied_bytes)

    def scatter(self, operand: int, scratch: int, arena: int, slot_bytes: int, count: int, copied_bytes: int) -> None:
        for i, slot in enumerate(self._slots[operand][:count].tolist()):
            ctypes.memmove(arena + slot * slot_bytes, scratch + i * copied_bytes, copied_bytes)


def _array(values: NDArray[Any]) -> Any:
    """As CuPy's: the address of it all, and of its rows."""
    rows = [SimpleNamespace(data=SimpleNamespace(ptr=row.ctypes.data)) for row in (values if values.ndim > 1 else ())]
    found = _Array(data=SimpleNamespace(ptr=values.ctypes.data), kept=values)
    found.rows = rows
    return found


class _Array(SimpleNamespace):
    def __getitem__(self, i: int) -> Any:
        return self.rows[i]


def _fake_cupy() -> Any:
    copies = FakeCopy(0)

    def memcpy(to: int, source: int, size: int, kind: Any, stream: int) -> None:
        copies._copy(to, source, size, stream)

    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    cuda = SimpleNamespace(
        Event=lambda **how: event,
        get_elapsed_time=lambda start, end: 1.0,
        alloc_pinned_memory=bytearray,
        runtime=SimpleNamespace(streamCaptureModeRelaxed=2, memcpyHostToDevice=1, memcpyAsync=memcpy),
        copies=copies,
    )
    return SimpleNamespace(cuda=cuda, empty=lambda size, kind: _array(np.zeros(size, kind)), asarray=_array)


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """The device, with stand-ins in the modules that modes import; skips where CuPy or nvmath is not installed."""
    for name in ("cupy", "nvmath.bindings", "cuda.bindings"):
        pytest.importorskip(name)
    from launchopt.devices.cublaslt import pointers
    from launchopt.devices.cublaslt import tuning as lt_tuning
    from launchopt.devices.steps import coalesced as lt_coalesced
    from launchopt.devices.steps import graph_cache as graphs
    from launchopt.devices.steps import graphs as lt_graphs

    cupy, device = _fake_cupy(), FakeCuda()
    with pytest.MonkeyPatch.context() as patch:
        for module in (lt_coalesced, lt_graphs, lt_tuning, pointers):
            patch.setattr(module, "cupy", cupy)
        patch.setattr(lt_coalesced, "SlotCopier", FakeCopier)
        patch.setattr(pointers, "upload_address", lambda: int(cupy.cuda.copies.upload[0]))
        patch.setattr(graphs, "cudart", device.runtime)
        begin, end = device.runtime.cudaStreamBeginCapture, device.runtime.cudaStreamEndCapture

        def begin_capture(stream: Any, mode: Any) -> Any:
            result = begin(stream, mode)
            device.capture(device.runtime.recording)
            return result

        def end_capture(stream: Any) -> Any:
            device.capture(None)
            return end(stream)

        patch.setattr(device.runtime, "cudaStreamBeginCapture", begin_capture)
        patch.setattr(device.runtime, "cudaStreamEndCapture", end_capture)
        yield device

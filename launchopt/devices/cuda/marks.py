"""Mark launches on the GPU: NVTX ranges if a profiler is attached, events around sampled launches, the span of a run.

Callers call `enter` before a launch, and `leave` or `left` after it. Start and end of sampled launches are written to
the recording. If there are several CUDA streams, the events of a launch are on the launch's stream.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import Batch
from launchopt.command import HALF_BITS, RecordWord
from launchopt.cupy_types import CudaStream
from launchopt.devices.prepared import LaunchPath
from launchopt.recording.launch_rows import Strategy
from launchopt.recording.recorder import Recorder
from launchopt.records import request_of
from launchopt.streams.chains.chain import Stream
from launchopt.timing import nvtx_ranges
from launchopt.timing.activity import Span
from launchopt.timing.events import EventTimer
from launchopt.timing.sampling import Sampler

MOST_SAMPLES = 1 << 20  # most sampled launches in a run


class LaunchMarks:
    """Puts NVTX ranges around launches if a profiler is attached, and CUDA events around sampled launches and the run.

    stream: the main CUDA stream. work: the workload stream. recorder: gets a row per launch, and the samples.
    """

    def __init__(self, stream: CudaStream, work: Stream, recorder: Recorder) -> None:
        self.attached = nvtx_ranges.attached()
        self._domain = nvtx_ranges.domain()
        self._work, self._recorder = work, recorder
        self._ranges: dict[tuple[str, int, int], object] = {}
        self._timer = EventTimer(stream, MOST_SAMPLES)
        self._take(LaunchPath())
        self.name = ""  # name of the mode in ranges; "" in a warm-up run, which has no ranges

    def name_ranges(self, mode: str, index: int, sizes: Iterable[int]) -> None:
        """Prepare the ranges for launches of shape `index` (-1: of several shapes)."""
        message = nvtx_ranges.range_name(mode, None if index < 0 else self._work.shapes[index], self._work.dtype)
        for size in sizes if self.attached else ():
            self._ranges[mode, index, size] = nvtx_ranges.attributes(self._domain, message, size)

    def _take(self, path: LaunchPath) -> None:
        self.streams, self.resident, self.ahead = path.streams, path.resident, path.ahead

    def start(self, sample_every: int, path: LaunchPath) -> None:
        """Begin a run that launches with `path`: relate the host's clock to the GPU's.

        Start the launches ahead or the persistent kernel of `path`, if it has them.
        """
        self.sampler = Sampler(sample_every)
        self._take(path)
        self._timer.start()
        if self.ahead:
            self.ahead.start()
        if self.resident:
            self.resident.start()

    def begin(self) -> None:
        """Mark the start of the run, just before its first launch."""
        self._timer.mark_start()
        if self.streams:
            self.streams.fork()

    def finish(self, synchronize: Callable[[], None]) -> Span:
        """Wait for the last launch, and read the events."""
        if self.streams:
            self.streams.join()
        if self.resident:
            self.resident.pause()
        self.call_off()
        self._timer.mark_end()
        if self.resident:
            self.resident.let_go()
        synchronize()
        end_ns = time.monotonic_ns()
        if self.resident:
            self.resident.check()
            self._recorder.count_more(self.resident.starts)
        if self.ahead:
            self.ahead.check_alive()
            self._recorder.count_more(self.ahead.called_off)
        return Span(end_ns, *self._timer.finish())

    @contextlib.contextmanager
    def settled(self, synchronize: Callable[[], None]) -> Iterator[None]:
        """Let everything submitted end, the persistent kernel too; start that kernel again behind the context."""
        resident = self.resident
        was_running = resident is not None and resident.running
        if resident:
            resident.pause()
        synchronize()
        yield
        synchronize()  # of copies on other CUDA streams
        if resident and was_running:
            resident.resume()

    def call_off(self) -> None:
        """Cancel a launch that was made before its commands, so that later work on the stream does not wait for it."""
        if self.ahead:
            self.ahead.call_off()

    @property
    def unmarked_launches(self) -> int:
        """Number of launches before the next one that gets an NVTX range or events."""
        return 0 if self.attached else self.sampler.left

    def enter(self, index: int, size: int, request: int = 0) -> int:
        """See `devices.base.Device`."""
        if self.attached:
            self._push(index, size)
        self._before = self._recorder.launch_count
        if self.sampler.left <= 0:
            self._timer.begin(self.streams.of(request) if self.streams else None)
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
        """See `devices.base.Device`."""
        end_ns = time.monotonic_ns()
        recorder = self._recorder
        what = (recorder.next_batch(), batch.shape_index, int(strategy), int(batch.reason), flush_ns)
        recorder.note(batch.words, part, what, start_ns, end_ns)
        if more_calls or copied_bytes:
            recorder.mark_packed(copied_bytes, more_calls)
        self.left(int(request_of(batch.words, part.start)) if self.streams else 0)

    def left(self, request: int = 0) -> None:
        """End a launch that began at `enter` and that compiled code has recorded."""
        sampler = self.sampler
        if sampler.left <= 0:
            stream = self.streams.of(request) if self.streams else None
            if self.resident:
                self.resident.settle()
            self._recorder.mark_sample(self._before, self._timer.end(stream))
            sampler.taken(last=self._timer.full)
        else:
            sampler.passed(self._recorder.launch_count - self._before)
        if self.attached and self.name:
            self._domain.pop_range()

    @contextlib.contextmanager
    def around(self, index: int, size: int, word: NDArray[np.uint64] | None = None) -> Iterator[None]:
        """Call `enter` before the `with` block and `left` after it. word: record of the first command, [WORDS]."""
        request = 0 if word is None or not self.streams else int(word[RecordWord.SLOT_C_REQUEST] >> HALF_BITS)
        self.enter(index, size, request)
        yield
        self.left(request)

    def _push(self, index: int, size: int) -> None:
        if not self.name:
            return
        key = self.name, index, size
        if key not in self._ranges:
            self.name_ranges(self.name, index, [size])
        self._domain.push_range(self._ranges[key])

"""Feeding results of steps back on the GPU: one kernel launch on the work's stream for all steps of a batch.

Or none, where the launch that computes them feeds them back at its own end (`stage`). The kernel's last act is to write
each step's id to `done`, which lies in pinned memory: the host looks there instead of asking the driver. Where sampling
is to be on the host, logits are copied there, the host waits for them, samples with NumPy and copies the next inputs
back, as an engine does whose sampler runs on the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.batching.step_batcher import StepBatch
from launchopt.devices.arenas import STORAGE, Arenas
from launchopt.devices.feedback.flights import Flights, Staged, facts_of, places_needed
from launchopt.devices.feedback.host import HostFeedback
from launchopt.devices.feedback.in_launch import LaunchFeedback, head_of, words_of
from launchopt.devices.feedback.kernel import GpuFeedback
from launchopt.devices.feedback.stages import STAGES, WORDS, FeedbackStages
from launchopt.devices.loops import requests as lc
from launchopt.queue.ring import Ring
from launchopt.sampling import Sampling, SamplingKind
from launchopt.workloads.chain import ChainStream

WITHOUT = Sampling(SamplingKind.none)


def pinned(count: int, dtype: Any) -> NDArray[Any]:
    """Page-locked host memory that the GPU reads and writes by the same address."""
    memory = cupy.cuda.alloc_pinned_memory(count * np.dtype(dtype).itemsize)
    array: NDArray[Any] = np.frombuffer(memory, dtype, count)
    return array


class CudaSteps:
    """Over the arenas of a stream. `synchronize` waits for all launches."""

    def __init__(
        self,
        stream: ChainStream,
        arenas: Arenas,
        cuda: Any,
        sampling: Sampling,
        on_host: bool,
        back: Ring,
        synchronize: Callable[[], None],
    ) -> None:
        self._stream, self._cuda = stream, cuda
        base = int(arenas.arrays[stream.activations].data.ptr)
        history = arenas.arrays.get(stream.history)
        self.done: NDArray[np.uint64] = pinned(places_needed(stream), np.uint64)
        self._facts = facts_of(stream, base, 0 if history is None else history.data.ptr, self.done.ctypes.data)
        sizes = (stream.hidden, stream.vocab or 1, stream.requests, base, int(self._facts[lc.ROW_BYTES]))
        self._plain = GpuFeedback(cuda, stream.dtype, WITHOUT, *sizes)
        self._sampled = None if stream.vocab is None else GpuFeedback(cuda, stream.dtype, sampling, *sizes)
        self._on_host = None
        if stream.vocab is not None and on_host:
            table = cupy.asnumpy(self._table(arenas))
            self._on_host = HostFeedback(stream.dtype, sampling, table)
            self._logits = pinned(stream.requests * stream.vocab, STORAGE[stream.dtype]).reshape(stream.requests, -1)
            self._inputs = pinned(stream.requests * stream.hidden, STORAGE[stream.dtype]).reshape(stream.requests, -1)
        self.flights = Flights(stream, back, self.done)
        self._launches_ns = cupy.zeros(1, np.uint64)  # what launches that sample themselves add to
        self._stages: FeedbackStages | None = None
        self.launch_feedback: LaunchFeedback | None = None
        if self._on_host is None:
            stages = pinned(STAGES * WORDS * stream.requests, np.uint64).reshape(STAGES, WORDS, stream.requests)
            self._stages = FeedbackStages(self.flights, stream.table, self._facts, stages, synchronize)
            kept, at_ns = WITHOUT if stream.vocab is None else sampling, int(self._launches_ns.data.ptr)
            words = words_of(kept, *sizes, ns=at_ns)
            self.launch_feedback = LaunchFeedback(head_of(kept.kind), words, self._stages)
        self._events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(64)]
        self.start()

    def _table(self, arenas: Arenas) -> Any:
        stream = self._stream
        flat = arenas.arrays[stream.activations].reshape(-1)
        width = stream.row_elements(stream.hidden)
        return flat[: stream.table_rows * width].reshape(stream.table_rows, width)[:, : stream.hidden]

    def start(self) -> None:
        """A new run."""
        self._host_ns, self._submitted, self._timed = 0, 0, 0
        self._device_ms = 0.0
        self._launches_ns_before = self._sampled_in_launches_ns()
        if self._stages is not None:
            self._stages.start()

    def stage(self, batch: StepBatch) -> int:
        """For a launch that feeds back its results by itself: see `FeedbackStages`; 0 where that is not to be."""
        return 0 if self._stages is None else self._stages.stage(batch)

    def was_staged(self) -> bool:
        """Whether the batch launched last is fed back by its own launch; asked once."""
        return self._stages is not None and self._stages.was_staged()

    def feed_back(self, flights: Flights, count: int) -> None:
        """Submit the scaling, or the sampling, and the writing of the next inputs."""
        plain = self._plain.stage()
        if self._sampled is None:
            flights.take_off(count, self._facts, plain, plain)
            self._plain.launch(count)
            return
        sampled = self._sampled.stage()
        samples = flights.take_off(count, self._facts, sampled, plain)
        self._plain.launch(count - samples)
        if samples and self._on_host is not None:
            self._sample_on_host(sampled[:, :samples], self._on_host)
        elif samples:
            self._sample(self._sampled, samples)

    def _sample(self, feedback: GpuFeedback, rows: int) -> None:
        # A pair of events is read when its turn comes again, long after it has passed.
        start, end = self._events[self._submitted % len(self._events)]
        if self._submitted >= len(self._events):
            self._read(start, end)
        start.record(self._cuda)
        feedback.launch(rows)
        end.record(self._cuda)
        self._submitted += 1

    def _sample_on_host(self, staged: Staged, feedback: HostFeedback) -> None:
        start_ns = time.monotonic_ns()
        rows, stream = staged.shape[1], self._cuda
        copy = cupy.cuda.runtime.memcpyAsync
        for i, source in enumerate(staged[lc.SOURCE].tolist()):
            logits = self._logits[i]
            copy(logits.ctypes.data, source, logits.nbytes, cupy.cuda.runtime.memcpyDeviceToHost, stream.ptr)
        stream.synchronize()
        requests, tokens = staged[lc.DRAW] >> lc.HIGH, staged[lc.DRAW] & lc.LOW
        inputs, ids = feedback.advance(self._logits[:rows], requests.astype(np.uint32), tokens.astype(np.uint32))
        assert ids is not None
        self._inputs[:rows] = inputs
        for i, target in enumerate(staged[lc.TARGET].tolist()):
            row = self._inputs[i]
            copy(target, row.ctypes.data, row.nbytes, cupy.cuda.runtime.memcpyHostToDevice, stream.ptr)
        stream.synchronize()  # the rows are written again by whoever comes next
        places = (staged[lc.ID].astype(np.int64) - self.done.ctypes.data) // 8
        self.done[places] = ids.astype(np.int64).view(np.uint64) & lc.LOW
        self._host_ns += time.monotonic_ns() - start_ns

    def _read(self, start: Any, end: Any) -> None:
        end.synchronize()
        self._device_ms += cupy.cuda.get_elapsed_time(start, end)
        self._timed += 1

    def sampling_ns(self) -> int:
        """Time spent sampling since `start`: on the host, waiting for logits included, or between events.

        Of launches that sample themselves: from the end of all before it to the first row's next inputs; of greedy
        tokens, whose largest logits are found while they are stored, from when all blocks have told theirs.
        """
        if self._on_host is not None:
            return self._host_ns
        for i in range(self._timed, self._submitted):
            self._read(*self._events[i % len(self._events)])
        return int(self._device_ms * 1e6) + self._sampled_in_launches_ns() - self._launches_ns_before

    def _sampled_in_launches_ns(self) -> int:
        """Since ever, of launches that have ended."""
        return int(cupy.asnumpy(self._launches_ns)[0])

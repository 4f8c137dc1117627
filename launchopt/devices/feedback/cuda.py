"""Feed back the results of steps on the GPU: one kernel launch on the main CUDA stream for all steps of a batch.

The megakernel feeds back results at the end of its own launch; its batches are staged (`stage`) and need no further
launch. The feedback kernel writes a step's token id to `done` after all its other results. `done` is in pinned memory,
so that the host can poll it without calls of the driver.

The host can also sample, as in engines whose sampler runs on the CPU. It then copies the logits to the host, waits,
samples with NumPy and copies the next inputs to the GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import cupy
import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batch import StepBatch
from launchopt.command import HALF_BITS, LOW_HALF
from launchopt.cupy_types import CudaStream
from launchopt.devices.arenas import STORAGE, Arenas
from launchopt.devices.feedback.flights import Flights, Staged, facts_of, places_needed
from launchopt.devices.feedback.host import HostFeedback
from launchopt.devices.feedback.in_launch import FeedbackLayout, LaunchFeedback, head_of, words_of
from launchopt.devices.feedback.kernel import GpuFeedback
from launchopt.devices.feedback.landing import FeedbackFact, StagedRow
from launchopt.devices.feedback.stages import STAGES, WORDS, FeedbackStages
from launchopt.queue.ring import Ring
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainStream
from launchopt.types import Array

Scalar = TypeVar("Scalar", bound=np.generic)
WITHOUT = Sampling(SamplingKind.none)


def pinned(count: int, dtype: type[Scalar]) -> NDArray[Scalar]:
    """Return page-locked host memory, which the GPU reads and writes at the same address."""
    memory = cupy.cuda.alloc_pinned_memory(count * np.dtype(dtype).itemsize)
    array: NDArray[Scalar] = np.frombuffer(memory, dtype, count)
    return array


class CudaSteps:
    """Feeds back the results of the steps of one workload stream.

    cuda: the main CUDA stream. on_host: sample on the host. back: the ring that notifies the driver.
    synchronize: waits for all launches.
    """

    def __init__(
        self,
        stream: ChainStream,
        arenas: Arenas,
        cuda: CudaStream,
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
        row_bytes = int(self._facts[FeedbackFact.ROW_BYTES])
        layout = FeedbackLayout(stream.hidden, stream.vocab or 1, stream.requests, base, row_bytes)
        self._plain = GpuFeedback(cuda, stream.dtype, WITHOUT, layout)
        self._sampled = None if stream.vocab is None else GpuFeedback(cuda, stream.dtype, sampling, layout)
        self._on_host = None
        if stream.vocab is not None and on_host:
            table = cupy.asnumpy(self._table(arenas))
            self._on_host = HostFeedback(stream.dtype, sampling, table)
            self._logits = pinned(stream.requests * stream.vocab, STORAGE[stream.dtype]).reshape(stream.requests, -1)
            self._inputs = pinned(stream.requests * stream.hidden, STORAGE[stream.dtype]).reshape(stream.requests, -1)
        self.flights = Flights(stream, back, self.done)
        self._launches_ns = cupy.zeros(1, np.uint64)  # ns of sampling within launches that feed back their own results
        self._stages: FeedbackStages | None = None
        self.launch_feedback: LaunchFeedback | None = None
        if self._on_host is None:
            stages = pinned(STAGES * WORDS * stream.requests, np.uint64).reshape(STAGES, WORDS, stream.requests)
            self._stages = FeedbackStages(self.flights, stream.table, self._facts, stages, synchronize)
            kept, at_ns = WITHOUT if stream.vocab is None else sampling, int(self._launches_ns.data.ptr)
            words = words_of(kept, layout, ns=at_ns)
            self.launch_feedback = LaunchFeedback(head_of(kept.kind), words, self._stages)
        self._events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(64)]
        self.start()

    def _table(self, arenas: Arenas) -> Array:
        stream = self._stream
        flat = arenas.arrays[stream.activations].reshape(-1)
        width = stream.row_elements(stream.hidden)
        return flat[: stream.table_rows * width].reshape(stream.table_rows, width)[:, : stream.hidden]

    def start(self) -> None:
        """Begin a run."""
        self._host_ns, self._submitted, self._timed = 0, 0, 0
        self._device_ms = 0.0
        self._launches_ns_before = self._sampled_in_launches_ns()
        if self._stages is not None:
            self._stages.start()

    def stage(self, batch: StepBatch, steps: int = 1) -> int:
        """Stage a batch whose launch feeds back its own results; return the address of its arguments, or 0.

        steps: steps of each request in the batch; the address is that of the first step's arguments.

        0: the launch cannot feed back all results (`FeedbackStages.stage`), or the host samples.
        """
        return 0 if self._stages is None else self._stages.stage(batch, steps)

    def was_staged(self) -> bool:
        """Return whether the last batch was staged, and reset that to False."""
        return self._stages is not None and self._stages.was_staged()

    def feed_back(self, flights: Flights, count: int) -> None:
        """Submit the launches that turn the results of the first `count` steps in `flights.ended` into next inputs."""
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
        # The times of a pair of events are read just before the pair is used again, when its launch has long ended.
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
        for i, source in enumerate(staged[StagedRow.SOURCE].tolist()):
            logits = self._logits[i]
            copy(logits.ctypes.data, source, logits.nbytes, cupy.cuda.runtime.memcpyDeviceToHost, stream.ptr)
        stream.synchronize()
        requests, tokens = staged[StagedRow.DRAW] >> HALF_BITS, staged[StagedRow.DRAW] & LOW_HALF
        inputs, ids = feedback.advance(self._logits[:rows], requests.astype(np.uint32), tokens.astype(np.uint32))
        assert ids is not None
        self._inputs[:rows] = inputs
        for i, target in enumerate(staged[StagedRow.TARGET].tolist()):
            row = self._inputs[i]
            copy(target, row.ctypes.data, row.nbytes, cupy.cuda.runtime.memcpyHostToDevice, stream.ptr)
        stream.synchronize()  # the next batch overwrites the rows
        places = (staged[StagedRow.ID].astype(np.int64) - self.done.ctypes.data) // 8
        self.done[places] = ids.astype(np.int64).view(np.uint64) & LOW_HALF
        self._host_ns += time.monotonic_ns() - start_ns

    def _read(self, start: cupy.cuda.Event, end: cupy.cuda.Event) -> None:
        end.synchronize()
        self._device_ms += cupy.cuda.get_elapsed_time(start, end)
        self._timed += 1

    def sampling_ns(self) -> int:
        """Return the ns spent sampling since `start`.

        On the host, this is the time from the copy of the logits until the next inputs are on the GPU. On the GPU, it
        is the time between events around the feedback kernel. A launch that feeds back its own results counts from the
        end of its other work to the first row's next input. With greedy sampling, its blocks find their largest logits
        while they store logits. It then counts from the moment at which all blocks have reported them.
        """
        if self._on_host is not None:
            return self._host_ns
        for i in range(self._timed, self._submitted):
            self._read(*self._events[i % len(self._events)])
        return int(self._device_ms * 1e6) + self._sampled_in_launches_ns() - self._launches_ns_before

    def _sampled_in_launches_ns(self) -> int:
        """Return the total ns of sampling within launches that have ended."""
        return int(cupy.asnumpy(self._launches_ns)[0])

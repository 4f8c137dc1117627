"""The compiled loop for requests over a fake cuBLASLt, with a driver in a thread.

NumPy feeds back the results of each step when the step ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.arrivals.requests import Requests
from launchopt.batching.batch import FlushRules
from launchopt.batching.batcher import Batcher
from launchopt.batching.order import order_arrays
from launchopt.command import Dtype
from launchopt.devices.feedback.cpu import CpuSteps
from launchopt.devices.feedback.flights import Flights
from launchopt.devices.loops.runner import BatchLoop, Feedback, LoopSettings
from launchopt.errors import Interrupted
from launchopt.producing.driver import Driver
from launchopt.producing.production import Schedule, Tokens
from launchopt.queue.ring import Ring
from launchopt.recording.launch_rows import CommandColumn, LaunchColumn
from launchopt.recording.recorder import Recorder
from launchopt.sampling import Sampling, SamplingKind
from launchopt.streams.chains.chain import ChainSettings, ChainStream
from launchopt.streams.model import ModelShape
from launchopt.verify.chains.tokens import verify_chain
from launchopt.verify.commands import CheckSettings, Verification
from support.cuda.fake_lt import FakeLt
from support.steps.driving import run_beside
from support.steps.launching import recorded

TINY = ModelShape("tiny", 64, 2, 4, 2, 16, 128).linear_sizes()
LAYERS = 2
VOCAB = 256
SECOND_NS = 10**9
PLAIN = Sampling(SamplingKind.none)
GREEDY, TOP_K = Sampling(SamplingKind.greedy), Sampling(SamplingKind.top_k, 0.8, 5, seed=3)
LONG = FlushRules(SECOND_NS * 3600)


def stream_of(
    sizes: Sequence[tuple[int, int]], vocab: int | None = None, chunk: int | None = None, replicas: int = 2
) -> ChainStream:
    """Return a stream of requests that are all due at the start. sizes: (prompt, output) tokens of each request."""
    prompts, outputs = (np.array(column, np.int64) for column in zip(*sizes, strict=True))
    requests = Requests(np.zeros(len(sizes), np.int64), prompts, outputs)
    return ChainStream(TINY, LAYERS, requests, Dtype.fp32, replicas, ChainSettings(vocab, chunk))


@dataclass
class Loop:
    """A consumer like the device's (rings, batcher, steps in flight, loop), and a driver."""

    stream: ChainStream
    fake: FakeLt
    batcher: Batcher
    ring: Ring
    back: Ring
    flights: Flights
    pump: Any
    sampling: Sampling
    tokens: Tokens | None = None
    error: Exception | None = None

    def run(self, schedule: Schedule = Schedule()) -> None:  # noqa: B008
        """Run driver and loop to the end. An error of the loop also stops the driver."""
        driver = Driver(self.stream, schedule, spin_us=20, sleep_us=50)

        def drive() -> None:
            try:
                self.tokens, pushed, _ = driver.run(self.ring, self.back)
                assert pushed == self.stream.commands
            except Interrupted as error:
                self.error = error

        run_beside(drive, self.pump.run, self.ring)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Return the token ids that the consumer passes to the check."""
        return self.flights.done[: self.stream.tokens].astype(np.uint32).view(np.int32).astype(np.int64)

    def verified(self) -> Verification:
        return verify_chain(self.stream, self.fake.arenas, self.sampling, self.ids, CheckSettings(64))

    def check(self) -> None:
        """Check that each command ran once, in its request's order, and that the driver got the right tokens."""
        run, recorder = recorded(self.fake.recorder), self.fake.recorder
        assert recorder.faults() == []
        found = self.verified()
        assert found.ok, found.first_wrong
        assert self.tokens is not None
        expected = self.ids if self.sampling is not PLAIN else np.zeros(self.stream.tokens)
        assert self.tokens.ids.tolist() == expected.tolist()
        requests = (run.commands[:, CommandColumn.REQUEST_STEP].view(np.uint64) >> np.uint64(32)).astype(np.int64)
        steps = run.commands[:, CommandColumn.REQUEST_STEP] & 0xFFFF_FFFF
        for request in range(self.stream.requests):
            assert (np.diff(steps[requests == request]) == 1).all()
        assert len(run.launches) == self.fake.calls
        assert sum(self.batcher.flushes) == len(np.unique(run.launches[:, LaunchColumn.BATCH]))
        eligible_ns, flush_ns = (
            run.commands[:, CommandColumn.ELIGIBLE_NS],
            run.launches[run.of_launch, LaunchColumn.FLUSH_NS],
        )
        assert (eligible_ns > 0).all()
        assert (eligible_ns <= flush_ns).all()
        assert (self.batcher.held, self.batcher.waiting, self.flights.count) == (0, 0, 0)

    @property
    def batch_sizes(self) -> list[int]:
        """Return the number of commands of each batch."""
        launches = recorded(self.fake.recorder).launches
        sizes: list[int] = (
            np.bincount(launches[:, LaunchColumn.BATCH], launches[:, LaunchColumn.SIZE]).astype(int).tolist()
        )
        return sizes


@contextmanager
def looping(
    stream: ChainStream,
    limit: int = 64,
    sampling: Sampling = PLAIN,
    every: int = 0,
    rules: FlushRules = LONG,
    spin_ns: int = 20_000,
    capacity: int = 4096,
    violated: bool = False,
    fail_at: int | None = None,
    recorder: Recorder | None = None,
    shapes: slice = slice(None),
) -> Iterator[Loop]:
    limits = {shape: min(limit, stream.together(shape)) for shape in stream.shapes}
    fake = FakeLt(stream, limits, fail_at, recorder)
    known = stream.shapes[shapes]
    order = order_arrays(stream.requests, violated=violated)
    batcher = Batcher(known, [limits[shape] for shape in known], rules, order)
    with Ring.create(capacity) as ring, Ring.create(1 << stream.requests.bit_length()) as back:
        steps = CpuSteps(stream, fake.arenas, sampling)
        flights = Flights(stream, back, steps.done)
        flights.reset()
        feedback = Feedback(flights, steps.feed_back, lambda: None)
        pump = BatchLoop(ring, batcher, fake.launcher(every), LoopSettings(spin_ns, sleep_ns=20_000), feedback)
        yield Loop(stream, fake, batcher, ring, back, flights, pump, sampling)

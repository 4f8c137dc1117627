"""What feeds a batch back on a GPU: its launch, a kernel, or the host. And the time of sampling. CuPy is a fake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.cuda.fake_memory import OnGpu
from support.cuda.libraries import imported
from support.steps.no_driver import NO_DRIVER
from support.steps.programs import stream_of
from support.steps.step_runs import batches

from launchopt.devices.feedback.in_launch import FIELDS, FeedbackLayout
from launchopt.sampling import Sampling, SamplingKind

cuda_steps: Any = imported("launchopt.devices.feedback.cuda")

GREEDY, NONE = Sampling(SamplingKind.greedy), Sampling(SamplingKind.none)
MS = 1_000_000


class FakeFeedback:
    """Replaces `GpuFeedback`."""

    def __init__(self, stream: Any, dtype: Any, sampling: Sampling, layout: FeedbackLayout) -> None:
        self.staged, self.launched = np.zeros((5, layout.most_rows), np.uint64), list[int]()

    def stage(self) -> Any:
        return self.staged

    def launch(self, rows: int) -> None:
        self.launched += [rows] if rows else []


class Rig:
    def __init__(self, patch: pytest.MonkeyPatch, vocab: int | None, on_host: bool) -> None:
        event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
        cuda = SimpleNamespace(
            alloc_pinned_memory=bytearray, Event=lambda: event, get_elapsed_time=lambda start, end: 1.0
        )
        fake = SimpleNamespace(
            cuda=cuda, zeros=lambda size, kind: np.zeros(size, kind).view(OnGpu), asnumpy=lambda array: np.array(array)
        )
        patch.setattr(cuda_steps, "cupy", fake)
        patch.setattr(cuda_steps, "GpuFeedback", FakeFeedback)
        self.stream = stream_of("linear", [(0, 4)] * 3, vocab=vocab)
        rows = self.stream.table_rows * self.stream.row_elements(self.stream.hidden)
        arenas: Any = SimpleNamespace(arrays={self.stream.activations: np.zeros(rows, np.float32).view(OnGpu)})
        queue = SimpleNamespace(synchronize=lambda: None)
        kept = NONE if vocab is None else GREEDY
        nobody = NO_DRIVER
        self.steps: Any = cuda_steps.CudaSteps(self.stream, arenas, queue, kept, on_host, nobody, lambda: None)
        self.steps.flights.reset()

    @property
    def launched(self) -> list[int]:
        sampled = self.steps._sampled
        return self.steps._plain.launched + ([] if sampled is None else sampled.launched)


@pytest.mark.parametrize("vocab", [None, 50])
def test_what_is_staged_for_its_own_launch_is_fed_back_by_it(
    vocab: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(monkeypatch, vocab, on_host=False)
    steps, (first, second, *_) = rig.steps, batches(rig.stream, 3)
    words = dict(zip(FIELDS, steps.launch_feedback.words.tolist(), strict=True))
    assert (words["pitch"], words["vocab"], words["rows"]) == (3, vocab or 1, 0)
    assert f"#define KIND {'NONE' if vocab is None else 'GREEDY'}\n" in steps.launch_feedback.head
    assert not steps.was_staged()
    assert steps.stage(first)
    assert steps.was_staged()
    assert rig.launched == []
    assert steps.flights.count == 3
    steps.feed_back(steps.flights, steps.flights.collect(second.words[-3:]))
    assert rig.launched == [3], "by a kernel of its own"
    assert steps.flights.count == 6


def test_where_the_host_samples_no_launch_feeds_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, 50, on_host=True)
    assert rig.steps.launch_feedback is None
    assert rig.steps.stage(next(batches(rig.stream, 3))) == 0
    assert not rig.steps.was_staged()
    assert rig.steps.flights.count == 0


def test_time_spent_sampling_is_that_of_launches_and_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, 50, on_host=False)
    steps, (first, *_) = rig.steps, batches(rig.stream, 3)
    steps._launches_ns += np.uint64(700)
    steps.start()
    assert steps.sampling_ns() == 0, "of this run"
    steps._launches_ns += np.uint64(3000)
    steps.feed_back(steps.flights, steps.flights.collect(first.words[-3:]))
    assert steps.sampling_ns() == MS + 3000

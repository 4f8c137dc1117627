"""graph on the CPU, where a graph is a recorded list of calls: one launch a batch or a step, and few lists are kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.modes.batch_runs import Run, streams
from support.steps.programs import stream_of
from support.steps.step_runs import StepRun, batches

from launchopt.batching.batch import Batch
from launchopt.command import Dtype
from launchopt.modes import mode_class
from launchopt.modes.base import Takes
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.streams.gemm_stream import GemmStream
from launchopt.workloads.gemv import gemv

properties = settings(deadline=None, max_examples=40)
NAMES = ("linear", "qkv", "layer", "paged", "linear_epilogue", "elementwise")


@properties
@given(streams, st.integers(1, 40), st.integers(1, 12), st.integers(1, 3))
def test_one_replay_a_batch(stream: GemmStream, chunk: int, most: int, cached: int) -> None:
    run = Run("graph", stream, most, cached=cached)
    sizes = [len(shapes) for shapes in run.submit_all(chunk)]
    run.finish()
    assert run.launches(LaunchColumn.SIZE) == sizes
    assert run.recorder.launch_calls == run.prepared.counters().graph_replays == len(sizes)
    assert set(run.launches(LaunchColumn.STRATEGY)) == {Strategy.graph}
    assert run.prepared.counters().padded_commands == 0, "a list is as long as its batch"


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(NAMES),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)).filter(any), min_size=1, max_size=5),
    st.sampled_from(Dtype),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([None, 1, 2]),
    st.integers(1, 3),
)
def test_one_replay_a_batch_of_steps(
    name: str,
    sizes: list[tuple[int, int]],
    dtype: Dtype,
    replicas: int,
    most: int,
    seed: int | None,
    cached: int,
) -> None:
    stream = stream_of(name if name != "qkv" else "square", sizes, dtype, replicas=replicas)
    run = StepRun(mode_class("graph")(cached=cached), stream, most)
    run.run(seed)
    run.check()
    expected = [len(batch.words) for batch in batches(stream, most, seed)]
    assert run.launches(LaunchColumn.SIZE) == expected
    assert run.recorder.launch_calls == run.prepared.counters().graph_replays == len(expected)
    assert set(run.launches(LaunchColumn.STRATEGY)) == {Strategy.graph}
    assert set(run.launches(LaunchColumn.SHAPE)) == {-1}
    run.run(seed)  # a second run counts replays from 0; lists are found again or recorded again
    run.check()
    assert run.prepared.counters().graph_replays == len(expected)
    run.close()


class Recordings:
    """Counts the lists that a mode records."""

    def __init__(self, prepared: Any) -> None:
        self.graphs, self.count = prepared, 0
        self._record = self.graphs._record
        self.graphs._record = self.record

    def record(self, words: Any) -> Any:
        self.count += 1
        return self._record(words)

    @property
    def kept(self) -> int:
        return len(self.graphs._kept)


class StepRecordings(Recordings):
    """Counts the lists of whole steps that a mode records."""

    def __init__(self, prepared: Any) -> None:
        super().__init__(prepared._steps)


@pytest.mark.parametrize(("cached", "recorded", "kept"), [(64, 4, 4), (4, 4, 4), (3, 12, 3), (1, 12, 1)])
def test_a_list_is_recorded_once_where_there_is_room(cached: int, recorded: int, kept: int) -> None:
    """Twelve batches use four sets of slots in turn. If fewer lists are kept, each is dropped before its next use."""
    run = Run("graph", gemv(2, 1, 2, 16, Dtype.fp32, 16), 4, cached=cached)
    seen = Recordings(run.prepared)
    four = [Batch(batch.shape_index, batch.words.copy(), batch.reason) for batch in run.batches(16)]
    for batch in four * 3:
        run.prepared.submit(batch, 0)
        assert seen.kept <= cached
    assert run.prepared.counters().graph_replays == 12
    assert (seen.count, seen.kept) == (recorded, kept)
    run.prepared.close()
    assert seen.kept == 0


def test_a_decode_step_is_recorded_once_a_copy_of_the_weights() -> None:
    stream = stream_of("layer", [(0, 12)] * 2, replicas=3)
    run = StepRun("graph", stream, 2)
    seen = StepRecordings(run.prepared)
    run.run()
    run.check()
    assert run.prepared.counters().graph_replays == 12
    assert seen.count == 4, "three copies, and the first token's own input"
    run.close()


def test_takes_steps_where_there_are_any() -> None:
    kind = mode_class("graph")
    assert kind.takes_of(stream_of("layer", [(0, 2)])) is Takes.steps
    assert kind.takes_of(gemv(2, 1, 2, 4, Dtype.fp32, 4)) is Takes.batches
    for device in ("cpu", "cuda"):
        assert kind.refusal(device, stream_of("paged", [(3, 2)])) is None

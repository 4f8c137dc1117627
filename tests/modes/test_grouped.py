"""grouped on the CPU: commands of all shapes share a bucket, and leave in one launch."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.modes.batch_runs import Run, streams
from support.steps.launching import recorded
from support.steps.programs import stream_of

from launchopt.batching.batch import SEVERAL
from launchopt.command import Dtype
from launchopt.modes.grouped import Grouped
from launchopt.recording import summary
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.recording.summary import Timing
from launchopt.streams.gemm_stream import GemmStream, Segment
from launchopt.timing.activity import Span
from runner.plan.job import Arm

properties = settings(deadline=None, max_examples=40)
TWO = GemmStream([(8, 4), (2, 8)], 1, [Segment(1, 6)], Dtype.fp32, 2)


@properties
@given(streams, st.integers(1, 40), st.integers(1, 12))
def test_one_launch_a_batch_whatever_its_shapes(stream: GemmStream, chunk: int, most: int) -> None:
    run = Run("grouped", stream, most)
    shapes = run.submit_all(chunk)
    run.finish()
    assert run.launches(LaunchColumn.SIZE) == [len(batch) for batch in shapes]
    assert run.recorder.launch_calls == len(shapes)
    assert set(run.launches(LaunchColumn.STRATEGY)) == {Strategy.grouped}
    alone = len(stream.shapes) == 1  # the bucket then has this one shape
    assert set(run.launches(LaunchColumn.SHAPE)) == ({0} if alone else {SEVERAL})
    if not alone and chunk >= stream.commands and most >= stream.commands:
        assert len(shapes) == 1, "nobody waits for company of its own shape"


def test_shapes_do_come_together() -> None:
    run = Run("grouped", TWO, 4)
    shapes = run.submit_all(12)
    run.finish()
    assert [len(batch) for batch in shapes] == [4, 4, 4]
    assert [set(batch) for batch in shapes] == [{0, 1}] * 3


def test_a_launch_of_several_shapes_has_no_sizes_of_its_own() -> None:
    """Its row in the recording has no m, n and k, and neither have the rows of its commands."""
    run = Run("grouped", TWO, 4)
    run.submit_all(12)
    span = Span(0, None, np.empty((0, 2), np.int64))
    timing = Timing(0, span)
    chunk = recorded(run.recorder)
    launches = summary.launch_columns(0, chunk.launches, timing, TWO.shapes)
    assert {name: launches[name].to_pylist() for name in "mnk"} == dict.fromkeys("mnk", [None] * 3)
    assert launches["batch_size"].tolist() == [4, 4, 4]
    commands = summary.command_columns(chunk, timing, TWO.shapes)
    assert {name: set(commands[name].to_pylist()) for name in "mnk"} == {name: {None} for name in "mnk"}
    run.finish()


def test_buckets_merge_where_the_mode_says_so() -> None:
    limits = {TWO.shapes[0]: 6, TWO.shapes[1]: 6}
    for most, held in ((64, 12), (5, 5)):
        arm = Arm("grouped", most, 1.0, None)
        assert arm.buckets(TWO, Grouped) == [held]
        assert arm.limits(TWO, Grouped.takes_of(TWO)) == {shape: min(most, limit) for shape, limit in limits.items()}


def test_what_is_no_gemm_is_refused_by_name() -> None:
    why = Grouped.refusal("cuda", stream_of("linear_epilogue", [(0, 2)]))
    assert why == "cannot launch BIAS, RELU"
    assert Grouped.refusal("cpu", stream_of("qkv", [(0, 2)])) is None

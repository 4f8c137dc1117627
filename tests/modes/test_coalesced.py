"""coalesced on the CPU: commands that share a weight are one GEMM with more columns, and every output is right."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.modes.batch_runs import Run
from support.steps.programs import stream_of
from support.steps.step_runs import StepRun, batches

from launchopt.command import COMMAND_DTYPE, Dtype, Op
from launchopt.devices.cpu.coalesced import COPY_CALLS as CPU_COPY_CALLS
from launchopt.modes.base import Takes
from launchopt.modes.coalesced import Coalesced
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.streams.gemm_stream import GemmStream, Segment
from launchopt.streams.operands import is_shared
from launchopt.workloads.gemv import gemv

properties = settings(deadline=None, max_examples=40)
in_each_dtype = pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
NAMES = ("linear", "qkv", "layer", "paged", "linear_epilogue")


@properties
@given(st.sampled_from(Dtype), st.integers(1, 60), st.integers(1, 16), st.integers(1, 70))
def test_commands_of_one_weight_are_one_launch(dtype: Dtype, commands: int, most: int, chunk: int) -> None:
    run = Run("coalesced", gemv(6, 1, 8, commands, dtype, 1), most)
    sizes = [len(shapes) for shapes in run.submit_all(chunk)]
    run.finish()
    assert run.launches(LaunchColumn.SIZE) == sizes
    wide = [size for size in sizes if size > 1]
    assert run.recorder.launch_calls == len(sizes) + CPU_COPY_CALLS * len(wide)
    assert run.launches(LaunchColumn.STRATEGY) == [
        Strategy.single if size == 1 else Strategy.coalesced for size in sizes
    ]
    moved = [0 if size == 1 else size * (6 + 8) * dtype.itemsize for size in sizes]
    assert run.launches(LaunchColumn.PACKED_BYTES) == moved, "activations gathered and outputs scattered are charged"


@pytest.mark.parametrize(
    ("stream", "shares"),
    [
        (gemv(6, 1, 8, 16, Dtype.fp32, 1), True),
        (gemv(6, 1, 8, 16, Dtype.fp32, 2), False),
        (gemv(6, 3, 8, 16, Dtype.fp32, 1), False),  # commands of several columns
        (stream_of("linear", [(0, 2)] * 2), True),
        (stream_of("elementwise", [(0, 2)] * 2), False),
        (stream_of("linear", [(4, 1)] * 2), False),  # only prompts
    ],
    ids=["gemv", "two weights", "several columns", "linear", "no weights", "prompts"],
)
def test_somebody_must_share_a_weight(stream: GemmStream, shares: bool) -> None:
    why = Coalesced.refusal("cpu", stream)
    assert why == (
        None if shares else "joins commands that share a weight, and here none do: mode=batched needs no shared weight"
    )
    moves = stream.strides()
    assert any(is_shared(shape, moves[shape]) for shape in stream.shapes) == shares


def test_steps_where_there_are_any() -> None:
    assert Coalesced.takes_of(stream_of("linear", [(0, 2)])) is Takes.steps
    assert Coalesced.takes_of(gemv(6, 1, 8, 16, Dtype.fp32, 1)) is Takes.batches
    assert Coalesced.refusal("cpu", GemmStream([(6, 8)], 1, [Segment(1, 4)], Dtype.fp32, 1)) is None


def wide_launches(run: StepRun, seed: int | None) -> int:
    """Return the number of wide launches expected: for each row of each batch, one per weight that commands share."""
    count = 0
    for batch in batches(run.stream, run.most, seed):
        records = batch.words.view(COMMAND_DTYPE).reshape(batch.rows, batch.size)
        for row in records:
            if row["op"][0] == Op.GEMM:
                count += sum(len(list(group)) > 1 for _, group in groupby(sorted(row["slot_a"].tolist())))
    return count


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(NAMES),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)).filter(any), min_size=1, max_size=5),
    st.sampled_from(Dtype),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([None, 1, 2, 3]),
)
def test_steps_row_by_row(
    name: str, sizes: list[tuple[int, int]], dtype: Dtype, replicas: int, most: int, seed: int | None
) -> None:
    """Batches have any requests, which may be at different tokens and so use different copies of the weights."""
    if name == "qkv" or not any(outputs > (prompt > 0) for prompt, outputs in sizes):
        sizes = [*sizes, (0, 2), (0, 2)]  # two requests without a prompt
    stream = stream_of(name, sizes, dtype, replicas=replicas)
    run = StepRun("coalesced", stream, most)
    run.run(seed)
    run.check()
    strategies = run.launches(LaunchColumn.STRATEGY)
    assert strategies.count(Strategy.coalesced) == wide_launches(run, seed)
    assert sum(run.launches(LaunchColumn.SIZE)) == stream.commands
    run.close()


@in_each_dtype
def test_requests_in_step_are_one_gemm_a_weight(dtype: Dtype) -> None:
    """So the property above also holds for requests that share weights, which its examples may lack."""
    stream = stream_of("linear", [(0, 3)] * 4, dtype, layers=2)
    run = StepRun("coalesced", stream, 4)
    run.run()
    run.check()
    gemms = len(stream.rows(0))
    assert run.launches(LaunchColumn.SIZE) == [4] * gemms * 3
    assert run.recorder.launch_calls == 3 * gemms * (1 + CPU_COPY_CALLS)
    run.close()


def test_a_wrong_column_is_found() -> None:
    stream = stream_of("linear", [(0, 3)] * 4, layers=2)
    run = StepRun("coalesced", stream, 4)
    multiply = run.device.compute.multiply

    def swapped(shape_index: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        multiply(shape_index, a, b, c)
        c[:] = c[:, ::-1]  # outputs go to the wrong commands

    run.device.compute.multiply = swapped
    run.run()
    with pytest.raises(AssertionError, match="of request 0"):
        run.check()
    run.close()

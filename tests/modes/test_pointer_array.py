"""pointer_array on the CPU: one launch per batch, with operands anywhere, and every output is right."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.modes.batch_runs import ALWAYS_PACK, Run, streams
from support.steps.programs import stream_of
from support.steps.step_runs import batches

from launchopt.command import Dtype, Op
from launchopt.modes import mode_class
from launchopt.modes.base import Takes
from launchopt.modes.pointer_array import PointerArray
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.streams.gemm_stream import CommandOrder, GemmStream
from launchopt.workloads.gemv import gemv

properties = settings(deadline=None, max_examples=40)


@properties
@given(streams, st.integers(1, 40), st.integers(1, 12), st.sampled_from([0, ALWAYS_PACK]))
def test_one_launch_a_batch(stream: GemmStream, chunk: int, most: int, pack_bytes: int) -> None:
    run = Run("pointer_array", stream, most, pack_bytes)
    sizes = [len(shapes) for shapes in run.submit_all(chunk)]
    run.finish()
    assert run.launches(LaunchColumn.SIZE) == sizes
    assert run.recorder.launch_calls == len(sizes)
    assert run.launches(LaunchColumn.BATCH) == list(range(len(sizes)))
    assert run.launches(LaunchColumn.STRATEGY) == [
        Strategy.single if size == 1 else Strategy.pointers for size in sizes
    ]
    assert not any(run.launches(LaunchColumn.PACKED_BYTES)), "here nothing is uploaded, and nothing packed"


def test_scattered_operands_take_no_more_launches() -> None:
    """So the property above also holds for scattered batches, which its examples may lack."""
    run = Run("pointer_array", gemv(2, 1, 2, 64, Dtype.bf16, 32, CommandOrder(shuffle=True)), 16, ALWAYS_PACK)
    run.submit_all(64)
    run.finish()
    assert run.launches(LaunchColumn.SIZE) == [16] * 4


def test_takes_anything_in_batches() -> None:
    for name in ("layer", "linear_epilogue"):
        stream = stream_of(name, [(3, 2), (0, 2)])
        for kind in ("cpu", "cuda"):
            assert PointerArray.refusal(kind, stream) is None
        assert PointerArray.takes_of(stream) is Takes.batches
        assert {shape.op for shape in stream.shapes} - {Op.GEMM}, "others are launched as by mode=batched"
        assert next(batches(stream, 2)).size
    assert mode_class("pointer_array") is PointerArray

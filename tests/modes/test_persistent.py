"""mode=persistent without a GPU: its refusals. With a stand-in for its kernel: products, order, starts and ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.modes.batch_runs import Run
from support.resident.fake_resident import ELAPSED_MS, FakeResidentCuda, fake_resident_cuda
from support.steps.launching import recorded
from support.steps.programs import stream_of
from support.steps.straight import records_of

from launchopt.batching.batch import Batch, FlushReason, FlushRules
from launchopt.batching.batcher import Batcher
from launchopt.command import Dtype, as_words
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.resident import ring as rl
from launchopt.errors import RunError
from launchopt.kernels.shared import KernelState
from launchopt.modes import mode_class
from launchopt.modes.persistent import MOST_COMMANDS, MOST_SHAPES
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.verify.commands import CheckSettings, verify
from launchopt.workloads.gemv import gemv
from runner.config.modes import mode_settings

RING = 4096
properties = settings(deadline=None, max_examples=25)
sizes = st.sampled_from([1, 3, 16, 17, 40])
streams = st.builds(
    GemmStream,
    st.lists(st.tuples(sizes, sizes), min_size=1, max_size=3).filter(lambda linears: min(linears)[0] < 17),
    st.integers(1, 2),
    st.lists(
        st.builds(Segment, st.sampled_from([1, 2, 16, 17, 30]), st.integers(1, 6), st.integers(0, 2)),
        min_size=1,
        max_size=4,
    ),
    st.just(Dtype.fp32),
    st.integers(1, 4),
    st.builds(CommandOrder, st.booleans(), st.integers(0, 3), st.none(), st.booleans()),
)


@pytest.fixture
def device() -> Iterator[FakeResidentCuda]:
    with fake_resident_cuda() as found:
        yield found


def submitted(run: Run, chunk: int) -> None:
    """Submit all commands of a stream, `chunk` at a time."""
    records = records_of(run.stream)
    batcher, shape_of = Batcher(run.stream.shapes, list(run.limits.values()), FlushRules(0)), np.zeros(chunk, np.int32)
    for first in range(0, len(records), chunk):
        part = records[first : first + chunk]
        run.prepared.submit_each(as_words(part), batcher.classify(part, shape_of), flush_ns=0)


def kinds_of(stream: GemmStream) -> list[bool]:
    """Return for each command whether the kernel takes it."""
    records = records_of(stream)
    return [min(m, n) <= 16 for m, n in zip(records["m"].tolist(), records["n"].tolist(), strict=True)]


@properties
@given(streams, st.integers(1, 50))
def test_products_are_right_and_launches_counted(stream: GemmStream, chunk: int) -> None:
    """The kernel ends before a command that it does not take, and starts again for the next one that it takes."""
    kinds = kinds_of(stream)
    with fake_resident_cuda() as device:
        run = Run("persistent", stream, device=device)
        assert run.prepared.compiled_loop == all(kinds)
        submitted(run, chunk)
        run.finish()
        again = sum(now and not before for before, now in pairwise(kinds))
        assert run.recorder.launch_calls == 1 + again + kinds.count(False)
        assert run.prepared.resident.starts == 1 + again
    found = recorded(run.recorder)
    strategies = found.launches[found.of_launch, LaunchColumn.STRATEGY]
    assert strategies.tolist() == [Strategy.resident if kind else Strategy.single for kind in kinds]
    assert found.launches[:, LaunchColumn.SIZE].max() <= min(chunk, lt.MOST_POSTED)


def test_batches_are_taken_apart(device: FakeResidentCuda) -> None:
    stream = GemmStream([(3, 40), (40, 40)], 1, [Segment(1, 8), Segment(30, 4)], Dtype.fp32, 2)
    run = Run("persistent", stream, device=device)
    for index, shape in enumerate(stream.shapes):
        records = records_of(stream)
        own = records[(records["m"] == shape.m) & (records["n"] == shape.n)]
        run.prepared.submit(Batch(index, as_words(own), FlushReason.full), flush_ns=0)
    run.finish()
    assert run.launches(LaunchColumn.STRATEGY).count(Strategy.single) == 4


def test_far_more_commands_than_the_ring_holds(device: FakeResidentCuda) -> None:
    run = Run("persistent", gemv(2, 1, 3, 2 * RING + 500, Dtype.fp32, 7), device=device)
    submitted(run, 1000)
    run.finish()
    assert run.recorder.launch_calls == run.prepared.resident.starts == 1


def test_outputs_of_small_commands_come_to_the_host(device: FakeResidentCuda) -> None:
    """The caller gets an error for outputs of other commands, and for all outputs of a kernel that gave up."""
    stream = GemmStream([(3, 8), (20, 8), (5, 7)], 1, [Segment(1, 4)], Dtype.fp32, 2)
    run = Run("persistent", stream, device=device)
    submitted(run, 4)
    records = records_of(stream)
    for index, record in enumerate(records):
        shape = next(shape for shape in stream.shapes if (shape.m, shape.k) == (record["m"], record["k"]))
        found = run.prepared.resident.outputs(index, shape.m)
        assert (found is not None) == (shape.m == 3)
        if found is not None:
            (stored,) = device.arenas.matrices(stream.operands(shape)[2].arena, [int(record["slot_c"])])
            assert np.array_equal(found, stored.reshape(-1))
    run.finish()
    run.prepared.resident._control[0] = KernelState.GAVE_UP
    with pytest.raises(RunError, match=f"^{rl.GAVE_UP_LINE}$"):
        run.prepared.resident.outputs(len(records), 3)


def test_a_second_run_begins_anew(device: FakeResidentCuda) -> None:
    run = Run("persistent", GemmStream([(3, 5)], 2, [Segment(1, 9), Segment(2, 7, 1)], Dtype.fp32, 2), device=device)
    for number in range(3):
        if number:
            run.recorder.reset()
            device.arenas.poison()
            device.start(0, run.prepared.path)
        submitted(run, 10)
        device.finish()
        assert run.recorder.launch_calls == 1
    run.prepared.close()
    assert verify(run.stream, device.arenas, CheckSettings(64)).ok


@pytest.mark.parametrize("commands", [1, RING - 1])
def test_a_kernel_that_begins_when_all_is_in_its_ring(commands: int, device: FakeResidentCuda) -> None:
    """All commands and the END are in the ring before the kernel starts; this is repeated."""
    run = Run("persistent", gemv(2, 1, 3, commands, Dtype.fp32, commands), device=device)
    resident: Any = run.prepared.resident
    device.finish()
    for _ in range(2):
        device.arenas.poison()
        resident.reset()
        device.submit_each(as_words(records_of(run.stream)), np.zeros(commands, np.int32), 0)
        assert resident.run_posted() == ELAPSED_MS
        assert not resident.running
        assert verify(run.stream, device.arenas, CheckSettings(64)).ok
    run.prepared.close()


@pytest.mark.parametrize("commands", [1, 5])
def test_a_kernel_to_which_nothing_comes_gives_up_and_the_run_fails(commands: int, device: FakeResidentCuda) -> None:
    stream = gemv(2, 1, 3, 30, Dtype.fp32, 7)
    run = Run("persistent", stream, device=device, patience_s=0.1)
    resident: Any = run.prepared.resident
    words, shape_of = as_words(records_of(stream)), np.zeros(30, np.int32)
    run.prepared.submit_each(words[:commands], shape_of[:commands], flush_ns=0)
    resident._stream.synchronize()
    with pytest.raises(RunError, match=f"^{rl.GAVE_UP_LINE}$"):
        resident.check_alive()
    with pytest.raises(RunError, match=f"^{rl.GAVE_UP_LINE}$"):
        run.prepared.submit_each(words[commands:], shape_of[commands:], flush_ns=0)
    with pytest.raises(RunError, match=f"^{rl.GAVE_UP_LINE}$"):
        device.finish()
    run.prepared.close()


@pytest.mark.parametrize("by", ["settle", "settle_requests"])
def test_who_waits_for_a_command_of_a_kernel_that_gave_up_is_let_go(by: str, device: FakeResidentCuda) -> None:
    """A wait on the device's stream for a command that is never complete would block every wait for the device."""
    stream = GemmStream([(3, 5)], 1, [Segment(1, 9, request) for request in range(3)], Dtype.fp32, 2)
    run = Run("persistent", stream, device=device, patience_s=0.1)
    resident: Any = run.prepared.resident
    resident._stream.synchronize()
    resident._queue[rl.QueueWord.NEXT] = 5000  # posted, and never read
    resident._last[:3] = 4998, 4999, 5000
    resident.pause()
    resident.let_go()
    resident.running = True
    resident.settle() if by == "settle" else resident.settle_requests(np.arange(3))
    run.prepared.close()


def test_what_comes_later_waits_for_what_was_posted(device: FakeResidentCuda) -> None:
    stream = GemmStream([(3, 5)], 1, [Segment(1, 9, request) for request in range(3)], Dtype.fp32, 2)
    run = Run("persistent", stream, device=device)
    resident: Any = run.prepared.resident
    submitted(run, 27)
    resident.settle_requests(np.array([0, 2]))
    ends = [9, 27]
    assert [int(resident._host_done[end - 1]) for end in ends] == ends
    resident.settle()
    run.finish()


@pytest.mark.parametrize("commands", [1, 4])
def test_whoever_is_closed_in_the_middle_ends_its_kernel(commands: int, device: FakeResidentCuda) -> None:
    run = Run("persistent", gemv(2, 1, 3, 30, Dtype.fp32, 7), device=device)
    run.prepared.submit_each(as_words(records_of(run.stream))[:commands], np.zeros(30, np.int32), flush_ns=0)
    run.prepared.close()
    run.prepared.close()
    assert not run.prepared.resident.running


def test_patience_is_a_setting() -> None:
    assert mode_settings("persistent").options == {"patience_s": 60.0}


WIDE, NARROW = [(17, 8), (40, 40)], [(17, 8), (16, 40)]


@pytest.mark.parametrize(
    ("stream", "does"),
    [
        (GemmStream(WIDE, 1, [Segment(17, 2)], Dtype.fp32, 1), False),
        (GemmStream(WIDE, 1, [Segment(17, 2), Segment(16, 1)], Dtype.fp32, 1), True),
        (GemmStream(NARROW, 1, [Segment(17, 2)], Dtype.fp32, 1), True),
        (stream_of("elementwise", [(0, 2)]), False),
        (stream_of("linear", [(40, 2)]), True),
    ],
    ids=["wide", "at times narrow", "few rows", "no GEMM", "decode"],
)
def test_there_must_be_something_for_the_kernel(stream: Any, does: bool) -> None:
    why = None if does else "multiplies up to 16 columns or rows, and this workload has no such GEMM"
    kind = mode_class("persistent")
    assert kind.refusal("cuda", stream) == why
    assert kind.refusal("cpu", stream) == "needs a GPU: on the cpu device it has no meaning"


def test_a_commands_words_have_room_for_so_many() -> None:
    stream = gemv(2, 1, 3, 30, Dtype.fp32, 7)
    why = f"takes up to {MOST_COMMANDS - 1} commands of {MOST_SHAPES - 1} shapes"
    stream.commands = MOST_COMMANDS - 1
    assert mode_class("persistent").refusal("cuda", stream) is None
    stream.commands += 1
    assert mode_class("persistent").refusal("cuda", stream) == why
    stream.commands, stream.shapes = 1, stream.shapes * MOST_SHAPES
    assert mode_class("persistent").refusal("cuda", stream) == why

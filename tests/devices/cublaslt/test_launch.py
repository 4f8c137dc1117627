"""One launch of cuBLASLt or of a kernel, against stand-ins: the arguments that they get, and the returned status."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda.fake_kernels import CUDA_ERROR_INVALID_VALUE, FakeKernels, Launched, rows_at
from support.cuda.fake_lt import FAILURE, FakeLt
from support.resident.resident_ring import PAYLOAD, OwnRing, Posted
from support.steps.launching import recorded
from support.steps.straight import records_of

from launchopt.command import Dtype, Records, as_words
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.kernel_plans import KernelPlans, Launch
from launchopt.devices.cublaslt.launch_tables import ContextWord, PlanColumn, PlanKind, ResidentColumn, ShapeColumn
from launchopt.devices.resident import ring as rl
from launchopt.kernels.shared import KernelState
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.verify.commands import CheckSettings, verify

properties = settings(deadline=None, max_examples=40)
words64 = st.integers(-(2**63), 2**63 - 1)
PLENTY = 1 << 40


class Kernel:
    """One kernel plan, and a context for each stream."""

    def __init__(
        self, fake: FakeKernels, streams: int, words: list[int], grid: tuple[int, int, int] = (1, 1, 1)
    ) -> None:
        self.plans = KernelPlans(Dtype.fp32)
        launch = Launch(grid, (64, 1, 1), 0, np.array(words, np.int64))
        self.plan = np.array(self.plans.row(fake.kernel(), launch), np.int64)
        self.contexts = np.zeros((streams, len(ContextWord)), np.int64)
        self.contexts[:, ContextWord.LAUNCH_FUNCTION] = fake.address
        self.contexts[:, ContextWord.STREAM] = 0x1000 + np.arange(streams)


@properties
@given(st.tuples(*[words64] * 4), st.lists(words64, min_size=3, max_size=3), st.integers(0, 3))
def test_a_kernel_gets_its_operands_its_words_and_its_stream(
    operands: tuple[int, int, int, int], words: list[int], stream: int
) -> None:
    fake = FakeKernels(words=3)
    kernel = Kernel(fake, 4, words, (5, 6, 7))
    before = (1, 2, 3, 4)
    for given_now in (before, operands):
        assert lt.launch(kernel.contexts[stream], kernel.plan, *map(np.int64, given_now)) == lt.OK
    first, last = fake.launches
    assert (first.operands, last.operands) == (list(before), list(operands))
    assert last.words.tolist() == words
    assert (last.grid, last.block, last.stream) == ((5, 6, 7), (64, 1, 1), 0x1000 + stream)


def test_a_kernel_computes_what_its_words_say() -> None:
    """C[i] = A[i] * B[i] * factor + request, by the addresses and words that it was given."""

    def compute(launched: Launched) -> None:
        a, b, c = (rows_at(address, 1, int(launched.words[0]), 1) for address in launched.operands[:3])
        c[:] = a * b * launched.words[1] + launched.operands[3]

    fake = FakeKernels(words=2)
    plans, values = KernelPlans(Dtype.fp32), np.arange(24, dtype=np.float32).reshape(3, 8)
    plan = np.array(plans.row(fake.kernel(compute), Launch((1, 1, 1), (32, 1, 1), 0, np.array([8, 3]))), np.int64)
    context = np.zeros(len(ContextWord), np.int64)
    context[ContextWord.LAUNCH_FUNCTION] = fake.address
    a, b, c = (row.ctypes.data for row in values)
    assert lt.launch(context, plan, a, b, c, 1000) == lt.OK
    assert values[2].tolist() == (values[0] * values[1] * 3 + 1000).tolist()


def test_a_kernels_error_can_be_told_from_cublaslts() -> None:
    fake = FakeKernels(words=1, fail_at=1)
    kernel = Kernel(fake, 1, [0])
    status = lt.launch(kernel.contexts[0], kernel.plan, 0, 0, 0, 0)
    assert status == lt.KERNEL_STATUS * CUDA_ERROR_INVALID_VALUE
    assert status % lt.KERNEL_STATUS == 0
    assert FAILURE % lt.KERNEL_STATUS != 0


STREAM = GemmStream([(8, 16), (24, 8)], 2, [Segment(1, 20)], Dtype.fp32, 3)


def with_requests(stream: GemmStream, requests: int) -> Records:
    """Return the records of a stream, with its commands dealt to `requests` requests in turn."""
    records = records_of(stream)
    records["request"] = np.arange(len(records)) % requests
    return records


@pytest.mark.parametrize("streams", [1, 2, 8])
def test_each_command_goes_to_the_stream_of_its_request(streams: int) -> None:
    fake = FakeLt(STREAM, dict.fromkeys(STREAM.shapes, 1))
    seen: list[tuple[int, int]] = []
    shapes, plans, context = fake.tables
    contexts = np.tile(context, (streams, 1))
    contexts[:, ContextWord.STREAM] = 0x1000 + np.arange(streams)
    contexts[:, ContextWord.WORKSPACE] = 0x2000 + np.arange(streams)
    fake.spy = lambda arguments: seen.append((arguments[15], arguments[13]))
    records = with_requests(STREAM, 11)
    shape_of = np.array([STREAM.shapes.index(shape) for shape in shapes_of(records)], np.int32)
    common = (fake.records, (0, 0, 0))
    status = lt.launch_each(as_words(records), shape_of, 0, len(records), (shapes, plans, contexts), *common)
    assert status == lt.OK
    numbers = [(request % 11) % streams for request in range(len(records))]
    assert seen == [(0x1000 + number, 0x2000 + number) for number in numbers]
    assert verify(STREAM, fake.arenas, CheckSettings(64)).ok


def shapes_of(records: Records) -> list[object]:
    by_size = {(shape.m, shape.n, shape.k): shape for shape in STREAM.shapes}
    return [by_size[int(m), int(n), int(k)] for m, n, k in zip(records["m"], records["n"], records["k"], strict=True)]


@properties
@given(st.integers(1, 12), st.sampled_from(Strategy), st.sampled_from(Strategy))
def test_launches_are_noted_as_the_table_says(size: int, one: Strategy, many: Strategy) -> None:
    stream = GemmStream([(8, 16)], 1, [Segment(1, 24)], Dtype.fp32, 24)
    fake = FakeLt(stream, {stream.shapes[0]: 24})
    fake.tables[0][0, [ShapeColumn.ONE_IS, ShapeColumn.MANY_ARE]] = one, many
    words = as_words(records_of(stream))
    for first in range(0, 24, size):
        part = words[first : first + size]
        assert lt.launch_strided(part, 0, PLENTY, fake.tables, fake.records, (first, 2, 77)) == lt.OK
    launches = recorded(fake.recorder).launches
    expected = [one if count == 1 else many for count in launches[:, LaunchColumn.SIZE]]
    assert launches[:, LaunchColumn.STRATEGY].tolist() == expected
    assert launches[:, LaunchColumn.SIZE].sum() == 24
    assert verify(stream, fake.arenas, CheckSettings(64)).ok


def test_nothing_is_launched_where_that_would_take_too_many() -> None:
    stream = GemmStream([(8, 16)], 1, [Segment(1, 24)], Dtype.fp32, 24, CommandOrder(shuffle=True))
    fake = FakeLt(stream, {stream.shapes[0]: 24})
    words = as_words(records_of(stream))
    runs = lt.count_runs(words, 0, fake.tables[0], PLENTY)
    assert runs > 2
    common = (fake.tables, fake.records, (0, 0, 0))
    assert lt.launch_strided(words, 0, runs - 1, *common) == lt.TOO_MANY_LAUNCHES
    assert (fake.calls, fake.recorder.launch_count) == (0, 0)
    assert lt.launch_strided(words, 0, runs, *common) == lt.OK
    assert fake.calls == runs


def test_the_bare_loop_launches_and_notes_nothing() -> None:
    stream = GemmStream([(8, 16)], 1, [Segment(1, 24)], Dtype.fp32, 24)
    fake = FakeLt(stream, {stream.shapes[0]: 1}, fail_at=25)
    words = as_words(records_of(stream))
    assert lt.launch_bare(words, 0, fake.tables) == lt.OK
    assert (fake.calls, fake.recorder.launch_count) == (24, 0)
    assert verify(stream, fake.arenas, CheckSettings(64)).ok
    assert lt.launch_bare(words, 0, fake.tables) == FAILURE
    assert fake.calls == 25


@pytest.mark.parametrize("each", [True, False])
def test_a_status_that_is_not_0_ends_the_loop(each: bool) -> None:
    stream = GemmStream([(8, 16)], 1, [Segment(1, 24)], Dtype.fp32, 24, CommandOrder(shuffle=True))
    fake = FakeLt(stream, {stream.shapes[0]: 24}, fail_at=3)
    words = as_words(records_of(stream))
    common = (fake.tables, fake.records, (0, 0, 0))
    if each:
        status = lt.launch_each(words, np.zeros(24, np.int32), 0, 24, *common)
    else:
        status = lt.launch_strided(words, 0, PLENTY, *common)
    assert (status, fake.calls) == (FAILURE, 3)


def resident_plan(ring: OwnRing, number: int, swapped: bool) -> lt.Table:
    plan = np.zeros(len(PlanColumn), np.int64)
    plan[[ResidentColumn.QUEUE, ResidentColumn.NUMBER, ResidentColumn.SWAPPED]] = (
        ring.queue.ctypes.data,
        number,
        swapped,
    )
    plan[PlanColumn.KIND] = PlanKind.RESIDENT
    return plan


@properties
@given(*[st.integers(0, PAYLOAD)] * 3, st.integers(0, 3), st.integers(0, 0xFFFE), st.booleans())
def test_what_a_resident_kernel_does_is_posted_and_not_launched(
    a: int, b: int, c: int, request: int, number: int, swapped: bool
) -> None:
    ring, context = OwnRing(2, requests=4), np.zeros(len(ContextWord), np.int64)  # no address of a function
    for _ in range(2):
        assert lt.launch(context, resident_plan(ring, number, swapped), a, b, c, request) == lt.OK
    many, few = (b, a) if swapped else (a, b)
    assert [ring.reader.take() for _ in range(3)] == [
        *(Posted(many, few, c, number, before) for before in (0, 1)),
        None,
    ]


@pytest.mark.parametrize("each", [True, False])
def test_who_gave_up_ends_the_loop_with_a_status_of_its_own(each: bool) -> None:
    stream = GemmStream([(8, 16)], 1, [Segment(1, 24)], Dtype.fp32, 24)
    fake, ring = FakeLt(stream, {stream.shapes[0]: 1}), OwnRing(5)
    shapes, plans, _ = fake.tables
    plans[shapes[0, ShapeColumn.PLAN0] + 1] = resident_plan(ring, 3, swapped=False)
    shapes[0, ShapeColumn.ONE_IS] = Strategy.resident
    words, common = as_words(records_of(stream)), (fake.tables, fake.records, (0, 0, 0))

    def launch(first: int, stop: int) -> int:
        if each:
            return int(lt.launch_each(words, np.zeros(24, np.int32), first, stop, *common))
        return int(lt.launch_bare(words[first:stop], 0, fake.tables))

    assert launch(0, 10) == lt.OK
    taken = [ring.reader.take() for _ in range(10)]
    operands = [fake.arenas.arrays[operand.arena].ctypes.data for operand in stream.operands(stream.shapes[0])]
    assert taken[0] == Posted(*operands, 3, 0)
    assert len({each.c for each in taken if each}) == 10
    ring.state[0] = KernelState.GAVE_UP
    assert launch(10, 24) == rl.GONE
    assert rl.GONE not in (lt.OK, lt.TOO_MANY_LAUNCHES)
    assert (ring.posted, fake.calls) == (10, 0)
    if each:
        assert recorded(fake.recorder).launches[:, [LaunchColumn.STRATEGY, LaunchColumn.SIZE]].tolist() == [
            [Strategy.resident, 10]
        ]


def blocks_of(shape_of: list[int], posted: list[bool]) -> list[list[int]]:
    """Return the commands recorded together: posted commands of one shape, up to MOST_POSTED; others one by one."""
    blocks: list[list[int]] = []
    for shape, here in zip(shape_of, [posted[shape] for shape in shape_of], strict=True):
        if here and blocks and blocks[-1][0] == shape and blocks[-1][1] < lt.MOST_POSTED:
            blocks[-1][1] += 1
        else:
            blocks.append([shape, 1])
    return blocks


@properties
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 90)), max_size=6), st.data())
def test_what_is_posted_is_noted_in_blocks_and_what_is_launched_alone(
    runs: list[tuple[int, int]], data: st.DataObject
) -> None:
    stream = GemmStream([(8, 16), (8, 24), (8, 32)], 1, [Segment(1, 300)], Dtype.fp32, 300)
    fake, ring = FakeLt(stream, dict.fromkeys(stream.shapes, 1)), OwnRing(10)
    shapes, plans, _ = fake.tables
    posted = data.draw(st.tuples(*[st.booleans()] * 3).map(list), label="posted")
    for shape in np.flatnonzero(posted):
        plans[shapes[shape, ShapeColumn.PLAN0] + 1] = resident_plan(ring, int(shape), swapped=False)
        shapes[shape, ShapeColumn.ONE_IS] = Strategy.resident
    records = records_of(stream)
    by_shape = [np.flatnonzero(records["k"] == shape.k) for shape in stream.shapes]
    wanted = [shape for shape, count in runs for _ in range(count)]
    words = as_words(np.concatenate([records[:0], *(records[by_shape[shape][:1]] for shape in wanted)]))
    shape_of = np.array(wanted, np.int32)
    assert lt.launch_each(words, shape_of, 0, len(wanted), fake.tables, fake.records, (7, 0, 0)) == lt.OK
    launches = recorded(fake.recorder).launches
    expected = blocks_of(wanted, posted)
    assert launches[:, [LaunchColumn.SHAPE, LaunchColumn.SIZE]].tolist() == expected
    firsts = np.cumsum([0, *(size for _, size in expected)])[:-1]
    assert launches[:, LaunchColumn.BATCH].tolist() == (7 + firsts).tolist()
    assert fake.calls == sum(not posted[shape] for shape in wanted)
    assert ring.posted == sum(posted[shape] for shape in wanted)


def test_of_a_block_that_fails_what_was_posted_is_noted() -> None:
    stream = GemmStream([(8, 16)], 1, [Segment(1, 24)], Dtype.fp32, 24)
    fake, ring = FakeLt(stream, {stream.shapes[0]: 1}), OwnRing(3)
    shapes, plans, _ = fake.tables
    plans[shapes[0, ShapeColumn.PLAN0] + 1] = resident_plan(ring, 0, swapped=False)
    shapes[0, ShapeColumn.ONE_IS] = Strategy.resident

    def give_up() -> None:
        while ring.posted < ring.capacity:  # the next one waits for its slot
            pass
        ring.state[0] = KernelState.GAVE_UP

    with ThreadPoolExecutor() as pool:
        gone = pool.submit(give_up)
        words = as_words(records_of(stream))
        status = lt.launch_each(words, np.zeros(24, np.int32), 0, 24, fake.tables, fake.records, (0, 0, 0))
        gone.result()
    assert status == rl.GONE
    assert recorded(fake.recorder).launches[:, [LaunchColumn.STRATEGY, LaunchColumn.SIZE]].tolist() == [
        [Strategy.resident, ring.capacity]
    ]

"""Tables of pointers: every address is in its place, and launches use them, against stand-ins on the host."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda.fake_copy import STREAM, FakeCopy
from support.cuda.fake_lt import FAILURE, POINTERS, FakeLt
from support.steps.launching import recorded
from support.steps.straight import records_of

from launchopt.command import COMMAND_DTYPE, Dtype, as_words
from launchopt.devices.cublaslt import launch as lt
from launchopt.devices.cublaslt.launch_tables import BASES, BYTES, ContextWord, ShapeColumn
from launchopt.devices.cublaslt.pointer_loops import fill_pointers, launch_pointers, pad_pointers
from launchopt.recording.launch_rows import LaunchColumn, Strategy
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.verify.commands import CheckSettings, verify

properties = settings(deadline=None, max_examples=60)
slots = st.integers(0, 2**32 - 1)
UNTOUCHED = -7


@properties
@given(
    st.lists(st.tuples(slots, slots, slots), min_size=1, max_size=20),
    st.tuples(*[st.integers(0, 2**47)] * 3),
    st.tuples(*[st.integers(0, 2**14)] * 3),
    st.integers(0, 20),
)
def test_addresses_of_a_then_b_then_c(
    of_each: list[tuple[int, int, int]], bases: tuple[int, int, int], sizes: tuple[int, int, int], count: int
) -> None:
    count = min(count, len(of_each))
    records = np.zeros(len(of_each), COMMAND_DTYPE)
    records["slot_a"], records["slot_b"], records["slot_c"] = np.array(of_each, np.uint64).T
    records["request"] = 2**32 - 1  # in the same word as slot c
    shape = np.zeros(len(ShapeColumn), np.int64)
    shape[BASES], shape[BYTES] = bases, sizes
    out = np.full(3 * len(of_each) + 1, UNTOUCHED, np.int64)
    fill_pointers(as_words(records), shape, count, out)
    expected = [bases[i] + of_each[at][i] * sizes[i] for i in range(3) for at in range(count)]
    assert out.tolist() == expected + [UNTOUCHED] * (len(out) - 3 * count)


@properties
@given(st.integers(1, 20), st.integers(0, 20))
def test_who_is_missing_is_the_first_written_to_scratch(count: int, missing: int) -> None:
    size, scratch = count + missing, -99
    out = np.full(3 * size + 1, UNTOUCHED, np.int64)
    a, b, c = (np.arange(count) + 100 * operand for operand in (1, 2, 3))
    out[: 3 * count] = np.concatenate([a, b, c])
    pad_pointers(out, count, size, scratch)
    assert out[:size].tolist() == [*a, *[a[0]] * missing]
    assert out[size : 2 * size].tolist() == [*b, *[b[0]] * missing]
    assert out[2 * size : 3 * size].tolist() == [*c, *[scratch] * missing]
    assert out[-1] == UNTOUCHED


def stream_of(commands: int, replicas: int) -> GemmStream:
    return GemmStream([(8, 16), (24, 8)], 1, [Segment(1, commands)], Dtype.fp32, replicas, CommandOrder(shuffle=True))


def with_tables(fake: FakeLt, most: int) -> None:
    """Plan each shape for `most` commands by tables of pointers."""
    fake.base.plans = fake.base.plans[:0]
    for index, shape in enumerate(fake.stream.shapes):
        leading = fake.row_elements(shape)
        fake.base.add(
            index,
            range(1, most + 1),
            lambda size, shape=shape, leading=leading: (fake.plan(shape, size, [POINTERS] * 3, leading), b""),
        )


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 12))
def test_every_product_is_right_wherever_its_operands_lie(commands: int, most: int, replicas: int) -> None:
    stream = stream_of(commands, replicas)
    fake, copy = FakeLt(stream, dict.fromkeys(stream.shapes, 1)), FakeCopy(3 * most)
    with_tables(fake, most)
    fake.base.contexts[0, ContextWord.STREAM] = STREAM
    records, sizes, number = records_of(stream), [], 0
    for index, shape in enumerate(stream.shapes):
        own = as_words(np.ascontiguousarray(records[records["m"] == shape.m]))
        for first in range(0, len(own), most):
            part = own[first : first + most]
            what = (number, index, int(Strategy.pointers), 3, 55)
            status = launch_pointers(part, index, fake.base.arrays, fake.records, what, copy.staged, copy.upload)
            assert status == lt.OK
            sizes.append(len(part))
            number += 1
    assert verify(stream, fake.arenas, CheckSettings(64)).ok
    assert fake.recorder.faults() == []
    assert copy.copies == [(24 * size, STREAM) for size in sizes]
    launches = recorded(fake.recorder).launches
    assert fake.calls == len(launches) == number
    assert launches[:, LaunchColumn.SIZE].tolist() == sizes
    assert launches[:, LaunchColumn.BATCH].tolist() == list(range(number))
    assert set(launches[:, LaunchColumn.STRATEGY]) == {Strategy.pointers}
    assert (launches[:, LaunchColumn.SUBMIT_START_NS] <= launches[:, LaunchColumn.SUBMIT_END_NS]).all()


def test_nothing_is_launched_where_the_upload_fails() -> None:
    stream = stream_of(4, 2)
    fake, copy = FakeLt(stream, dict.fromkeys(stream.shapes, 1)), FakeCopy(12, status=700)
    with_tables(fake, 4)
    words = as_words(np.ascontiguousarray(records_of(stream)[:1]))
    common = (fake.base.arrays, fake.records, (0, 0, 0, 0, 0), copy.staged, copy.upload)
    assert launch_pointers(words, 0, *common) == 700 * lt.KERNEL_STATUS
    assert (fake.calls, fake.recorder.launch_count) == (0, 0)


def test_the_status_of_a_launch_is_told() -> None:
    stream = stream_of(4, 2)
    fake, copy = FakeLt(stream, dict.fromkeys(stream.shapes, 1), fail_at=1), FakeCopy(12)
    with_tables(fake, 4)
    words = as_words(np.ascontiguousarray(records_of(stream)[:1]))
    common = (fake.base.arrays, fake.records, (0, 0, 0, 0, 0), copy.staged, copy.upload)
    assert launch_pointers(words, 0, *common) == FAILURE

"""The streams of gemv, decode and prefill: their strides, batches, requests and due times."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from support.steps.straight import records_of

from launchopt.arrivals.requests import Requests
from launchopt.batching.batch import FlushRules
from launchopt.batching.batcher import Batcher
from launchopt.command import COMMAND_DTYPE, Dtype, ShapeKey
from launchopt.devices.runs import run_end
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.streams.model import ModelShape
from launchopt.workloads.decode import decode, decode_requests
from launchopt.workloads.gemv import gemv
from launchopt.workloads.prefill import prefill, prefill_requests

SMALL = ModelShape("small_1024", 1024, 8, 8, 2, 128, 4096, gated=False)
TINY = ModelShape("tiny", 8, 2, 2, 1, 4, 16)


def common_moves(stream: GemmStream, shape: ShapeKey) -> tuple[int, ...]:
    records = records_of(stream)
    own = records[(records["m"] == shape.m) & (records["n"] == shape.n) & (records["k"] == shape.k)]
    slots = np.stack([own[f"slot_{role}"].astype(np.int64) for role in "abc"], axis=1)
    (move, _), *_ = Counter(map(tuple, np.diff(slots, axis=0).tolist())).most_common(1)
    return tuple(move)


@pytest.mark.parametrize(
    "stream",
    [
        gemv(64, 1, 64, 5000, Dtype.fp16, 32),
        decode(SMALL, 8, 40, 1, Dtype.fp16, 2),
        decode(TINY, 2, 300, 3, Dtype.fp32, 8),
    ],
    ids=["gemv", "decode", "tiny"],
)
def test_strides_are_the_most_common_move(stream: GemmStream) -> None:
    assert stream.strides() == {shape: common_moves(stream, shape) for shape in stream.shapes}


def batches_of(stream: GemmStream, limit: int) -> tuple[Counter[int], int]:
    """Return how many batches of each size a batcher makes of the stream, and how many strided calls they need."""
    limits = [min(limit, stream.counts[shape]) for shape in stream.shapes]
    batcher, strides = Batcher(stream.shapes, limits, FlushRules(1 << 40)), stream.strides()
    sizes: Counter[int] = Counter()
    calls = 0

    def runs() -> int:
        first, count, moves = 0, 0, strides[stream.shapes[batch.shape_index]]
        while first < len(batch):
            first, count = run_end(batch.words, first, *moves), count + 1
        return count

    nothing = np.zeros(0, COMMAND_DTYPE)
    for records in (*(block.records for block in stream.blocks()), nothing):
        for batch in batcher.take(records, 0, is_drained=records is nothing):
            sizes[len(batch)] += 1
            calls += runs()
    return sizes, calls


def test_the_six_tables_gemv_is_2_000_000_commands_in_3907_batches() -> None:
    stream = gemv(64, 1, 8192, 2_000_000, Dtype.fp32, 512)
    assert stream.commands == 2_000_000
    assert batches_of(stream, 512) == ({512: 3906, 128: 1}, 3907)


def test_the_six_tables_decode_is_400_000_commands_in_25_000_batches() -> None:
    stream = decode(SMALL, 8, 12_500, 1, Dtype.fp16, 4)
    assert stream.commands == 400_000
    assert batches_of(stream, 16) == ({16: 25_000}, 25_000)


def test_the_six_tables_prefill_is_256_commands_in_32_batches() -> None:
    stream = prefill(SMALL, 64, 1, 256, Dtype.fp16, 1)
    assert (stream.commands, {shape.n for shape in stream.shapes}) == (256, {256})
    assert batches_of(stream, 8)[0] == {8: 32}


REQUESTS = Requests(np.array([0, 10_000, 30_000]), np.array([5, 1, 7]), np.array([2, 0, 3]))


def test_replayed_decode_is_a_prefill_and_a_step_a_token() -> None:
    stream = decode_requests(TINY, 2, REQUESTS, 2.0, Dtype.fp32, 1)
    assert stream.segments == (
        Segment(5, 1, 0, 0),
        Segment(1, 2, 0, 0),
        Segment(1, 1, 1, 5_000),
        Segment(7, 1, 2, 15_000),
        Segment(1, 3, 2, 15_000),
    )
    assert stream.commands == 8 * (3 + 1 + 4)
    assert stream.requests == 3
    third = records_of(stream)
    third = third[third["request"] == 2]
    assert third["step"].tolist() == list(range(32))  # steps are counted over both segments
    assert third["n"].tolist() == [7] * 8 + [1] * 24
    due_ns = [block.due_ns for block in stream.blocks()]
    assert [None if each is None else each.tolist() for each in due_ns] == [
        [due] * 8 * steps for due, steps in ((0, 1), (0, 2), (5_000, 1), (15_000, 1), (15_000, 3))
    ]


def test_gemv_commands_are_requests_of_their_own_due_when_said() -> None:
    due_ns = np.arange(10_000) * 7
    stream = gemv(2, 1, 2, 10_000, Dtype.fp32, 3, CommandOrder(due_ns=due_ns))
    records = records_of(stream)
    assert records["request"].tolist() == list(range(10_000))
    assert not records["step"].any()
    assert (stream.requests, stream.independent) == (10_000, True)
    blocks = [block.due_ns for block in stream.blocks(100)]
    assert np.concatenate([each for each in blocks if each is not None]).tolist() == due_ns.tolist()
    assert all(block.due_ns is None for block in gemv(2, 1, 2, 10_000, Dtype.fp32, 3).blocks(100))


def test_replayed_prefill_is_the_contexts() -> None:
    stream = prefill_requests(TINY, 1, REQUESTS, 0.5, Dtype.fp32, 1)
    assert stream.segments == (Segment(5, 1, 0, 0), Segment(1, 1, 1, 20_000), Segment(7, 1, 2, 60_000))


def test_prompts_are_requests() -> None:
    records = records_of(prefill(TINY, 2, 3, 9, Dtype.bf16, 1))
    assert records["request"].tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert set(records["n"].tolist()) == {9}

"""Copies of the weights: as many as a cold cache needs, or as a hot cache holds.

No schedule and no cache reads less from memory than the lower bound.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.programs import PROGRAMS, requests_of, stream_of
from support.steps.step_runs import batches

from launchopt.command import WORDS, Dtype, Op, ShapeKey, as_records
from launchopt.streams.chains.chain import ChainStream
from launchopt.streams.footprint import COLD_CACHES, Cache, least_memory_bytes, replicas_for
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.workloads.gemv import gemv

Weight = tuple[int, ...]  # m, k and what tells it from others of these sizes: its slot, and the GEMM of a step
LINEARS = [(64, 64), (64, 128), (128, 64)]


@settings(deadline=None, max_examples=60)
@given(weights=st.integers(1, 10**6), cache=st.integers(1, 10**8), multiple=st.integers(1, 600))
def test_cold_copies_are_the_fewest_that_fill_the_cache_four_times(weights: int, cache: int, multiple: int) -> None:
    copies = replicas_for(Cache.cold, weights, cache, multiple)
    assert copies % multiple == 0
    assert copies * weights >= COLD_CACHES * cache
    assert (copies - multiple) * weights < COLD_CACHES * cache


@settings(deadline=None, max_examples=60)
@given(weights=st.integers(1, 10**6), cache=st.integers(1, 10**8))
def test_hot_copies_are_the_most_that_fit_in_half_the_cache(weights: int, cache: int) -> None:
    copies = replicas_for(Cache.hot, weights, cache)
    assert copies == 1 or copies * weights <= cache / 2
    assert (copies + 1) * weights > cache / 2


def launches(stream: GemmStream, most: int) -> Iterator[list[Weight]]:
    """The weights of each launch: a bucket for each shape, launched when it has `most` commands or the stream ends."""
    buckets: dict[tuple[int, int, int], list[Weight]] = defaultdict(list)
    for block in stream.blocks():
        for record in block.records:
            m, n, k = (int(record[name]) for name in "mnk")
            bucket = buckets[m, n, k]
            bucket.append((m, k, int(record["slot_a"])))
            if len(bucket) == most:
                yield buckets.pop((m, n, k))
    yield from buckets.values()


def read_by_best_cache(every: Iterable[Iterable[Weight]], itemsize: int, cache_bytes: int) -> int:
    """Bytes from memory if each launch reads each of its weights once, and a cache drops what is used latest."""
    order = [weight for launch in every for weight in dict.fromkeys(launch)]
    uses: dict[Weight, deque[int]] = defaultdict(deque)
    for at, weight in enumerate(order):
        uses[weight].append(at)
    kept: dict[Weight, int] = {}
    read = 0
    for weight in order:
        size = weight[0] * weight[1] * itemsize
        uses[weight].popleft()
        read += 0 if weight in kept else size
        kept[weight] = size
        while sum(kept.values()) > cache_bytes:
            del kept[max(kept, key=lambda each: uses[each][0] if uses[each] else 1 << 60)]
    return read


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_no_schedule_of_independent_commands_reads_less(data: st.DataObject) -> None:
    linears = data.draw(st.lists(st.sampled_from(LINEARS), min_size=1, max_size=3, unique=True))
    widths = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=4))
    segments = [Segment(n, data.draw(st.integers(1, 12))) for n in widths]
    order = CommandOrder(shuffle=data.draw(st.booleans()), seed=1)
    layers, replicas = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 9))
    stream = GemmStream(linears, layers, segments, Dtype.fp32, replicas, order)
    most, cache_bytes = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 1 << 19))
    read = read_by_best_cache(launches(stream, most), 4, cache_bytes)
    assert least_memory_bytes(stream, most, cache_bytes) <= read


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_no_schedule_of_requests_reads_less(data: st.DataObject) -> None:
    sizes = st.tuples(st.integers(0, 5), st.integers(1, 6))
    requests = data.draw(st.lists(sizes, min_size=1, max_size=5))
    name, vocab = data.draw(st.sampled_from(sorted(PROGRAMS))), data.draw(st.sampled_from([None, 96]))
    stream = stream_of(name, requests, replicas=data.draw(st.integers(1, 4)), vocab=vocab, chunk=3)
    most, cache_bytes = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 1 << 17))
    weights = []
    for batch in batches(stream, most, seed=data.draw(st.sampled_from([None, 1, 2]))):
        rows = as_records(batch.words.reshape(-1, WORDS)).reshape(batch.rows, batch.size)
        for number, launch in enumerate(row for row in rows if row["op"][0] == Op.GEMM):
            weights.append([(int(each["m"]), int(each["k"]), int(each["slot_a"]), number) for each in launch])
    assert least_memory_bytes(stream, most, cache_bytes) <= read_by_best_cache(weights, 4, cache_bytes) + small(stream)


def small(stream: ChainStream) -> int:
    """Bytes of gains and biases, which the schedules above leave out, over the whole run."""
    vectors = sum(key.slot_bytes * slots for key, slots in stream.arenas.items() if key.role in ("bias", "gain"))
    return vectors * stream.tokens


MIB = 1 << 20


def test_a_cold_stream_reads_three_quarters_of_each_pass_or_more() -> None:
    stream = gemv(256, 1, 256, 256, Dtype.fp32, 64)  # 64 weights of 256 KiB, four times
    assert least_memory_bytes(stream, 16, 4 * MIB) == 4 * 12 * MIB
    assert least_memory_bytes(stream, 16, 0) == stream.counts[ShapeKey(256, 1, 256, Dtype.fp32)] * MIB // 4


def test_a_batch_reads_a_weight_that_its_commands_share_once() -> None:
    stream = gemv(256, 1, 256, 256, Dtype.fp32, 16)
    assert least_memory_bytes(stream, 64, MIB) == 4 * 3 * MIB  # four batches


def test_what_a_cache_holds_need_not_come_from_memory() -> None:
    assert least_memory_bytes(gemv(256, 1, 256, 256, Dtype.fp32, 16), 1, 4 * MIB) == 0


@pytest.mark.parametrize("requests", [1, 8])
def test_requests_share_each_read_of_a_copy_of_the_weights(requests: int) -> None:
    stream = ChainStream([(256, 256)], 4, requests_of([(0, 6)] * requests), Dtype.fp32, 2)
    assert stream.input_bytes == 2 * MIB
    assert least_memory_bytes(stream, 1, MIB) == 6 * MIB - 3 * MIB

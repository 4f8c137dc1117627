"""The compiled loops for independent commands, against a stand-in for cuBLASLt: the same numbers, counts and order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cuda.fake_lt import FAILURE, FakeLt
from support.steps.launching import recorded

from launchopt.batching.batch import FlushReason, FlushRules
from launchopt.batching.batcher import Batcher
from launchopt.command import Dtype
from launchopt.devices.loops.batches import pump_batches
from launchopt.devices.loops.commands import pump_commands
from launchopt.devices.loops.runner import BatchLoop, CommandLoop, LoopSettings
from launchopt.errors import Interrupted, RunError
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from launchopt.recording.launch_rows import CommandColumn, CursorWord, LaunchColumn
from launchopt.recording.recorder import Recorder
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.verify.commands import CheckSettings, verify

SECOND_NS = 10**9


def a_stream(steps: int, shuffle: bool = False, layers: int = 2, replicas: int = 3) -> GemmStream:
    return GemmStream(
        [(8, 16), (24, 8), (8, 24)], layers, [Segment(1, steps)], Dtype.fp32, replicas, CommandOrder(shuffle)
    )


RULES = FlushRules(SECOND_NS)
WAITS = LoopSettings(spin_ns=20_000, sleep_ns=20_000, pack_bytes_per_launch=1 << 30)


def loop_of(
    fake: FakeLt, ring: Ring, batcher: Batcher, every: int = 0, by_batch: bool = True
) -> BatchLoop | CommandLoop:
    """A loop over batches, or single commands; about one launch in `every` goes through Python."""
    kind = BatchLoop if by_batch else CommandLoop
    return kind(ring, batcher, fake.launcher(every), WAITS)


def push_all(ring: Ring, stream: GemmStream, chunk: int = 1 << 30, gap_s: float = 0.0) -> None:
    records = np.concatenate([block.records for block in stream.blocks()])
    for start in range(0, len(records), chunk):
        part = records[start : start + chunk]
        while len(part):
            part = part[ring.push(part, stamp=True) :]
        time.sleep(gap_s)
    ring.close()


@pytest.fixture
def ring() -> Iterator[Ring]:
    with Ring.create(4096) as made:
        yield made


@pytest.mark.parametrize("by_batch", [True, False])
def test_a_new_loop_has_its_code_loaded_and_has_taken_nothing(ring: Ring, by_batch: bool) -> None:
    stream = a_stream(4)
    fake = FakeLt(stream, dict.fromkeys(stream.shapes, 2))
    push_all(ring, stream)
    loop = loop_of(fake, ring, Batcher(stream.shapes, [2] * len(stream.shapes), RULES), by_batch=by_batch)
    pump = pump_batches if by_batch else pump_commands
    assert pump.signatures  # type: ignore[attr-defined]  # of Numba
    assert (ring.word(HeaderWord.TAIL), fake.calls) == (0, 0)
    loop.run()
    assert ring.word(HeaderWord.TAIL) == stream.commands


@settings(max_examples=25, deadline=None)
@given(
    steps=st.integers(1, 40),
    limit=st.integers(1, 20),
    every=st.integers(0, 5),
    shuffle=st.booleans(),
    by_batch=st.booleans(),
)
def test_every_command_is_right_whatever_the_batches(
    steps: int, limit: int, every: int, shuffle: bool, by_batch: bool
) -> None:
    stream = a_stream(steps, shuffle)
    limits = {shape: min(limit, stream.counts[shape]) for shape in stream.shapes}
    fake = FakeLt(stream, limits)
    with Ring.create(4096) as ring:
        push_all(ring, stream)
        batcher = Batcher(stream.shapes, list(limits.values()), RULES)
        loop_of(fake, ring, batcher, every, by_batch).run()
    assert fake.recorder.faults() == []
    assert verify(stream, fake.arenas, CheckSettings(64)).ok
    run = recorded(fake.recorder)
    launches = run.launches
    assert len(launches) == fake.calls
    if by_batch:
        assert sum(batcher.flushes) == len(np.unique(launches[:, LaunchColumn.BATCH]))
        assert batcher.held == 0
    else:
        assert (launches[:, LaunchColumn.SIZE] == 1).all()
        assert (run.commands[:, CommandColumn.SEQ] == np.arange(stream.commands)).all(), "arrival order"
        assert batcher.flushes[FlushReason.full] == stream.commands
    if every:
        assert (launches[:, LaunchColumn.SAMPLE] == 0).any() or len(launches) < 2 * every


@settings(max_examples=15, deadline=None)
@given(limit=st.integers(1, 20), every=st.integers(0, 5), shuffle=st.booleans(), by_batch=st.booleans())
def test_no_row_is_lost_where_buffers_hold_just_what_they_must(
    limit: int, every: int, shuffle: bool, by_batch: bool
) -> None:
    stream, capacity = a_stream(60, shuffle), 16
    limits = {shape: min(limit, stream.counts[shape]) for shape in stream.shapes}
    recorder = Recorder(stream.commands, capacity + sum(limits.values()), least_rows=2)
    fake = FakeLt(stream, limits, recorder=recorder)
    with Ring.create(capacity) as ring:
        feeder = threading.Thread(target=push_all, args=(ring, stream))
        feeder.start()
        batcher = Batcher(stream.shapes, list(limits.values()), RULES)
        loop_of(fake, ring, batcher, every, by_batch).run()
        feeder.join()
    assert recorder.cursor[CursorWord.SPOOLED_COMMANDS] > 0, "the buffers were large enough for all: a test of nothing"
    assert recorder.faults() == []
    assert len(recorded(recorder).launches) == fake.calls
    assert verify(stream, fake.arenas, CheckSettings(64)).ok


def test_full_buckets_in_a_closed_loop_make_the_launches_that_arithmetic_says(ring: Ring) -> None:
    stream = a_stream(64, layers=4, replicas=4)  # 256 commands of each shape over 16 weights
    limits = dict.fromkeys(stream.shapes, 16)
    fake = FakeLt(stream, limits)
    push_all(ring, stream)
    batcher = Batcher(stream.shapes, [16] * 3, RULES)
    loop_of(fake, ring, batcher).run()
    assert batcher.flushes == [48, 0, 0, 0, 0]
    assert fake.calls == 48


@pytest.mark.parametrize(
    ("rules", "reason"), [(FlushRules(0), FlushReason.deadline), (FlushRules(SECOND_NS, 0), FlushReason.idle)]
)
def test_a_lone_command_does_not_wait_for_company(ring: Ring, rules: FlushRules, reason: FlushReason) -> None:
    stream = GemmStream([(8, 16)], 1, [Segment(1, 20)], Dtype.fp32, 4)
    fake = FakeLt(stream, {stream.shapes[0]: 16})
    batcher = Batcher(stream.shapes, [16], rules)
    loop = loop_of(fake, ring, batcher)
    feeder = threading.Thread(target=push_all, args=(ring, stream, 1, 0.002))
    feeder.start()
    loop.run()
    feeder.join()
    assert verify(stream, fake.arenas, CheckSettings(64)).ok
    assert batcher.flushes[reason] > 1
    assert batcher.flushes[FlushReason.full] == 0


def test_scattered_slots_go_to_python_where_packing_pays(ring: Ring) -> None:
    stream = GemmStream([(8, 16)], 1, [Segment(1, 256)], Dtype.fp32, 64, CommandOrder(shuffle=True))
    fake = FakeLt(stream, {stream.shapes[0]: 32})
    push_all(ring, stream)
    batcher = Batcher(stream.shapes, [32], RULES)
    settings = replace(WAITS, pack_bytes_per_launch=1 << 20)
    BatchLoop(ring, batcher, fake.launcher(slot_bytes=[768]), settings).run()
    launches = recorded(fake.recorder).launches
    assert (launches[:, LaunchColumn.SAMPLE] == 0).all(), "FakeLt.submit marks what Python launched"
    assert fake.recorder.faults() == []


def test_a_failing_launch_an_unknown_shape_and_a_stop_end_the_loop(ring: Ring) -> None:
    stream = a_stream(10)
    limits = dict.fromkeys(stream.shapes, 4)
    fake = FakeLt(stream, limits, fail_at=3)
    push_all(ring, stream)
    with pytest.raises(RuntimeError, match=f"status {FAILURE}"):
        loop_of(fake, ring, Batcher(stream.shapes, [4] * 3, RULES)).run()
    ring.reset()
    other = GemmStream([(9, 9)], 1, [Segment(1, 1)], Dtype.fp32, 1)
    for by_batch in (True, False):
        push_all(ring, other)
        with pytest.raises(RunError, match="9x1x9"):
            loop_of(fake, ring, Batcher(stream.shapes, [4] * 3, RULES), by_batch=by_batch).run()
        ring.reset()
    ring.set_word(HeaderWord.STOP, 1)
    with pytest.raises(Interrupted):
        loop_of(fake, ring, Batcher(stream.shapes, [4] * 3, RULES)).run()


def test_python_makes_every_launch_where_nothing_is_compiled(ring: Ring) -> None:
    """`submit_each` gets each block of commands whole, and `submit` each batch. The loop itself launches nothing."""
    stream = a_stream(20)
    records = np.concatenate([block.records for block in stream.blocks()])
    for by_batch in (False, True):
        fake, got = FakeLt(stream, dict.fromkeys(stream.shapes, 4)), []
        launcher = replace(
            fake.launcher(),
            is_compiled=False,
            submit=lambda batch, flush_ns, got=got: got.append((batch.reason, len(batch))),
            submit_each=lambda words, shape_of, flush_ns, got=got: got.append(shape_of.tolist()),
        )
        push_all(ring, stream)
        batcher = Batcher(stream.shapes, [4] * 3, RULES)
        (BatchLoop if by_batch else CommandLoop)(ring, batcher, launcher, WAITS).run()
        ring.reset()
        assert fake.calls == 0
        assert fake.recorder.next_batch() == 0, "who launches numbers the batches"
        if by_batch:
            assert got == [(FlushReason.full, 4)] * (stream.commands // 4)
        else:
            assert got == [batcher.classify(records, np.zeros(len(records), np.int32)).tolist()]
        assert batcher.flushes[FlushReason.full] == sum(batcher.flushes) == (len(got) if by_batch else len(records))

"""The persistent kernel on a GPU, with commands posted alone or in small groups after all earlier ones are complete."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from launchopt.batching.batcher import shape_finder
from launchopt.command import COMMAND_DTYPE, LOW_HALF, Dtype, RecordWord, as_words
from launchopt.devices.resident.ring import is_sent
from launchopt.queue.ring import Ring
from launchopt.streams.gemm_stream import CommandOrder, GemmStream, Segment
from launchopt.verify.commands import CheckSettings, verify
from runner.bench.dispatch import job
from runner.plan.job import Arm
from runner.worker.consumer import Consumer

pytestmark = pytest.mark.gpu

ALL_COLUMNS = 1 << 20
CAPACITY = 1 << 14
LATE_S, PATIENCE_S = 0.3, 0.4


class Posting:
    """Posts the commands of a stream in order."""

    def __init__(self, stream: GemmStream, consumer: Consumer) -> None:
        self.prepared: Any = consumer.prepared[0]
        self._stream, self._device = stream, consumer.device
        self._words = as_words(np.concatenate([block.records for block in stream.blocks()]))
        records = self._words.reshape(-1).view(COMMAND_DTYPE)
        batcher = shape_finder(stream.shapes)
        self._shape_of = batcher.classify(records, np.zeros(len(self._words), np.int32))
        self.shapes = [stream.shapes[number] for number in self._shape_of.tolist()]
        self.posted = 0

    def stored(self, index: int) -> Any:
        """Return a command's output of one column from C, as float32."""
        c = self._stream.operands(self.shapes[index])[2].arena
        place = int(self._words[index, RecordWord.SLOT_C_REQUEST] & LOW_HALF)
        return self._device.arenas.matrices(c, [place]).get().reshape(-1)

    def post(self, count: int) -> None:
        first, self.posted = self.posted, self.posted + count
        self.prepared.submit_each(self._words[first : self.posted], self._shape_of[first : self.posted], 0)

    def wait(self) -> None:
        """Wait until all posted commands are complete."""
        done, limit_s = self.prepared.resident._host_done, time.monotonic() + LATE_S
        recent = np.arange(max(0, self.posted - len(done)), self.posted)
        while (done[recent % len(done)] != recent + 1).any():
            self.prepared.resident.check_alive()
            assert time.monotonic() < limit_s

    def end(self) -> None:
        """End the kernel after all commands are complete. Only then may other work use the device."""
        self.prepared.resident.pause()
        self._device.synchronize()
        self.prepared.resident.check()


@contextmanager
def posting(stream: GemmStream, **options: Any) -> Iterator[Posting]:
    """Yield a `Posting`. At the end check that the whole stream was posted, and that every output is right."""
    with Ring.create(CAPACITY) as ring:
        plain = job(stream, ring, "cuda", (Arm("persistent", 1, 0.0, None, options),))
        with Consumer(replace(plain, verify_columns=ALL_COLUMNS)) as consumer:
            consumer.arm(0)
            on = Posting(stream, consumer)
            yield on
            assert on.posted == stream.commands
            on.end()
            checked = verify(stream, consumer.device.arenas, CheckSettings(ALL_COLUMNS, 0))
    assert checked.ok
    assert checked.compared_share == 1.0


@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
def test_lone_commands(dtype: Dtype) -> None:
    """The sizes suit the dispatcher's warp, its group, or workers."""
    pairs = [(1, 8), (3, 64), (16, 64), (16, 128), (33, 264), (64, 256), (7, 1000), (5, 2056), (40, 65), (300, 512)]
    stream = GemmStream(pairs, 3, [Segment(1, 2)], dtype, 2, CommandOrder(independent=True))
    with posting(stream) as on:
        for _ in range(stream.commands):
            on.post(1)
            on.wait()


@pytest.mark.parametrize("dtype", Dtype, ids=lambda dtype: dtype.name)
def test_outputs_of_small_commands_are_sent(dtype: Dtype) -> None:
    """Sent outputs equal C bit for bit. The host is sent no output of a command that needs more than a warp."""
    pairs = [(1, 8), (3, 64), (16, 64), (11, 40), (15, 16), (16, 56), (17, 64), (300, 512)]
    stream = GemmStream(pairs, 30, [Segment(1, 2)], dtype, 60, CommandOrder(independent=True))
    with posting(stream) as on:
        found = []
        for index in range(stream.commands):
            on.post(1)
            found.append(on.prepared.resident.outputs(index, on.shapes[index].m))
        on.end()
        for index, outputs in enumerate(found):
            assert (outputs is not None) == is_sent(on.shapes[index])
            assert outputs is None or np.array_equal(outputs, on.stored(index))


def test_many_after_some_after_one() -> None:
    """The kernel polls for one, for some and for many commands over many laps of the ring. Some polls find nothing."""
    generator = np.random.default_rng(11)
    stream = GemmStream(
        [(16, 64), (9, 40), (33, 264), (300, 64)],
        500,
        [Segment(1, 10)],
        Dtype.fp32,
        500,
        CommandOrder(independent=True),
    )
    with posting(stream) as on:
        while left := stream.commands - on.posted:
            on.post(min(left, int(generator.choice([1, 1, 1, 2, 7, 8, 8, 9, 16, 24, 40, 300]))))
            if generator.random() < 0.8:
                on.wait()


def test_patience_counts_from_the_last_command() -> None:
    """Commands arrive for longer than the patience, then none arrives for a while."""
    stream = GemmStream([(300, 512)], 1, [Segment(1, 20_000)], Dtype.fp32, 1, CommandOrder(independent=True))
    with posting(stream, patience_s=PATIENCE_S) as on:
        until_s = time.monotonic() + 2 * PATIENCE_S
        while time.monotonic() < until_s:
            if on.posted < stream.commands - 1:
                on.post(1)
            time.sleep(1e-4)
        time.sleep(PATIENCE_S / 4)
        on.post(stream.commands - on.posted)
        on.wait()

"""A run whose clock goes too fast fails, on the CPU too, where requests share weights, and where a batch does.

A run is one of this process: the consumer of a run on the CPU, whose ceilings are given, and whose clock is slowed down
behind the last result.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.steps.programs import requests_of

from launchopt.command import Dtype
from launchopt.devices.cpu import ceilings as cpu_ceilings
from launchopt.devices.cpu.info import CACHE_VARIABLE
from launchopt.queue.ring import Ring
from launchopt.recording.launch_rows import LaunchColumn
from launchopt.recording.results import Row
from launchopt.streams.chains.chain import ChainStream, Stream
from launchopt.timing.activity import Bandwidths, Ceilings
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import job
from runner.plan.job import Arm
from runner.worker import ceilings as module
from runner.worker.consumer import Consumer
from runner.worker.producer import open_producer

FASTER = 10**6
GIVEN = Ceilings(copy_gb_per_s=100.0, read_gb_per_s=80.0, peak_tflops=1e9)
MOST = 16
STREAMS: dict[str, Stream] = {
    "a cold cache of the CPU": gemv(256, 1, 256, 64, Dtype.fp32, 16),
    "several requests": ChainStream([(256, 256)], 4, requests_of([(0, 8)] * 4), Dtype.fp32, 4),
    "fewer weights than a batch has commands": gemv(1024, 1, 256, 64, Dtype.fp32, 4),
}


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "1")
    monkeypatch.setattr(cpu_ceilings, "measure", lambda cache_bytes, threads: GIVEN)
    monkeypatch.setattr(cpu_ceilings, "memory", lambda cache_bytes, threads: Bandwidths(100.0, 60.0))
    monkeypatch.setattr(module, "_highest", {})
    monkeypatch.setattr(module, "_latest", {})


def clock_too_fast(consumer: Consumer) -> None:
    """Shorten all times since the start, those of the launches too, so that the clocks agree with each other."""
    timing, launches = consumer._timing, consumer.recorder.launches
    for column in (LaunchColumn.FLUSH_NS, LaunchColumn.SUBMIT_START_NS, LaunchColumn.SUBMIT_END_NS):
        launches[:, column] = timing.start_ns + (launches[:, column] - timing.start_ns) // FASTER
    launches[:, LaunchColumn.SUBMIT_END_NS] += 1  # no launch takes no time
    end_ns = timing.start_ns + (timing.span.end_ns - timing.start_ns) // FASTER + 2
    consumer._timing = replace(timing, span=replace(timing.span, end_ns=end_ns))


def rows_of(stream: Stream) -> list[Row]:
    """Return the rows of a right repeat and of one whose clock went too fast."""
    rows = []
    with Ring.create(4096) as ring, Ring.create(4096) as back, ThreadPoolExecutor(1) as pool:
        todo = replace(job(stream, ring, "cpu", (Arm("batched", MOST, 1e6, None),)), back_name=back.name)
        with Consumer(todo) as consumer, open_producer(todo) as producer:
            for repeat in range(2):
                ring.reset()
                back.reset()
                consumer.arm(0)
                produced = pool.submit(producer.produce, todo.arms[0])
                consumer.consume()
                produced.result()
                producer.prepare()
                if repeat:
                    clock_too_fast(consumer)
                rows.append(consumer.result(0, repeat).row)
            assert consumer.ended()["ceilings_change"] == pytest.approx(80 / 60 - 1)
    return rows


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_a_clock_that_goes_too_fast_fails_its_repeat_and_no_other(stream: Stream) -> None:
    right, wrong = rows_of(stream)
    assert (right["status"], right["verified"]) == ("ok", True)
    assert 0 < right["least_memory_bytes"] < right["weight_bytes"] == wrong["weight_bytes"]
    assert wrong["status"].startswith("failed: impossible rate: ")
    assert wrong["status"].endswith(" GB/s: no cache holds these bytes, and nothing explains it")
    assert wrong["above_ceiling"] in wrong["status"]

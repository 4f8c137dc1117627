"""Measures what the consumer adds to a launch, against a bare compiled loop over the same cuBLASLt function.

Two bursts of the same commands alternate: (a) a loop that only reads slots and calls `cublasLtMatmul`; (b) the
consumer, which pops from the ring, finds the shape, launches, reads the clock and records. Bursts are shorter than the
GPU's launch queue, which therefore blocks neither. A further figure times a lone command, which another process pushes
into an idle pipeline, from enqueue to launch call.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batcher import shape_finder
from launchopt.command import COMMAND_DTYPE, Dtype, as_words
from launchopt.devices.base import gpu_of
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from launchopt.recording.launch_rows import CommandColumn, LaunchColumn
from launchopt.streams.chains.chain import Stream
from launchopt.streams.gemm_stream import GemmStream
from launchopt.workloads.gemv import gemv
from runner.bench.figures import Figure, in_turn, ratios
from runner.bench.peers import with_peer
from runner.plan.job import Arm, Job
from runner.worker.consumer import Consumer

BURST = 400
LONE_COMMANDS, LONE_GAP_S = 2000, 0.001
GOAL_RATIO, GOAL_LONE_US = 1.10, 5.0
SHAPES = ((64, 8192), (256, 256))


def job(stream: Stream, ring: Ring, device: str, arms: tuple[Arm, ...]) -> Job:
    """Return a job for a consumer in this process: untraced, without tables."""
    return Job(
        run_id="bench",
        folder=Path(tempfile.gettempdir()),
        config={},
        stream=stream,
        arms=arms,
        device_kind=device,
        device_index=0,
        threads=1 if device == "cpu" else None,
        pin_cpu=None,
        timing="host",
        sample_every=0,
        capacity=ring.capacity,
        spin_us=2000,
        sleep_us=50,
        seed=0,
        verify_columns=256,
        verify_budget_s=None,
        residency="a benchmark of the host",
        record_launches=False,
        record_commands=False,
        ring_name=ring.name,
    )


def suite(repeats: int, device: str) -> Iterator[Figure]:
    """Yield the figures of dispatch. The ratios need a GPU."""
    if device == "cuda":
        for m, k in SHAPES:
            for dtype in (Dtype.fp32, Dtype.fp16):
                yield from _ratio(m, k, dtype, 10 * repeats)
    _lone_us(device)  # loads the compiled code
    samples = [_lone_us(device) for _ in range(repeats)]
    for percent, goal in ((50, GOAL_LONE_US if device == "cuda" else None), (99, None)):
        each = [float(np.percentile(sample, percent)) for sample in samples]
        yield Figure("dispatch", f"lone command, enqueue to launch call, p{percent} ({device})", "us", each, goal)


def _ratio(m: int, k: int, dtype: Dtype, repeats: int) -> Iterator[Figure]:
    from launchopt.devices.cublaslt.launch import launch_bare

    stream = gemv(m, 1, k, BURST, dtype, BURST)
    with Ring.create(4096) as ring, Consumer(job(stream, ring, "cuda", (Arm("baseline", 1, 0, None),))) as consumer:
        device = gpu_of(consumer.device)
        records = np.concatenate([block.records for block in stream.blocks()])
        words, buffer = as_words(records), np.zeros(4096, COMMAND_DTYPE)
        batcher, shape_of = shape_finder(stream.shapes), np.zeros(4096, np.int32)
        consumer.arm(0)  # a warm-up run would put events around every launch
        prepared, recorder = consumer.prepared[0], consumer.recorder

        def bare() -> float:
            device.synchronize()
            start_ns = time.perf_counter_ns()
            launch_bare(words, 0, device.tables)
            return (time.perf_counter_ns() - start_ns) / BURST

        def whole() -> float:
            device.synchronize()
            recorder.reset()
            ring.push(records, stamp=True)
            start_ns = time.perf_counter_ns()
            popped = buffer[: ring.pop(buffer)]
            prepared.submit_each(as_words(popped), batcher.classify(popped, shape_of), time.monotonic_ns())
            return (time.perf_counter_ns() - start_ns) / BURST

        bare_ns, whole_ns = in_turn(repeats, bare, whole)
        device.synchronize()
    case = f"baseline {m}x1x{k} {dtype.name}, host time a launch"
    yield Figure("dispatch", f"{case}: bare loop", "ns", bare_ns)
    yield Figure("dispatch", f"{case}: whole consumer", "ns", whole_ns)
    yield Figure("dispatch", f"{case}: ratio", "x", ratios(whole_ns, bare_ns), GOAL_RATIO)


def push_slowly(name: str, capacity: int, stream: GemmStream) -> None:
    """Push one command per millisecond (the other process)."""
    records = np.concatenate([block.records for block in stream.blocks()])
    with Ring.attach(name, capacity) as ring:
        ring.set_word(HeaderWord.START_NS, time.monotonic_ns())
        for i in range(len(records)):
            time.sleep(LONE_GAP_S)
            ring.push(records[i : i + 1], stamp=True)
        ring.close()


def _lone_us(device: str) -> NDArray[np.float64]:
    """Return the us from enqueue to launch call of each command: float64 [commands], without the first tenth."""
    m, k = (256, 256) if device == "cuda" else (8, 16)
    stream = gemv(m, 1, k, LONE_COMMANDS, Dtype.fp32, 64)
    with Ring.create(4096) as ring:
        todo = replace(job(stream, ring, device, (Arm("batched", 64, 0.0, None),)))
        with Consumer(todo) as consumer:
            consumer.arm(0)
            with_peer(push_slowly, (ring.name, 4096, stream), consumer.consume)
            waited_ns = [
                chunk.launches[chunk.of_launch, LaunchColumn.SUBMIT_START_NS]
                - chunk.commands[:, CommandColumn.ENQUEUE_NS]
                for chunk in consumer.recorder.chunks()
            ]
    waited: NDArray[np.float64] = np.concatenate(waited_ns) / 1e3
    return waited[LONE_COMMANDS // 10 :]

"""Measures what CUPTI adds to a launch: traced and untraced bursts of baseline launches alternate.

In an untraced burst, CUPTI's library is loaded and nothing is enabled. In a traced one, CUPTI records kernels, copies,
fills and both APIs, as with `timing=cupti`. Bursts are shorter than the GPU's launch queue. A burst that lost a kernel
raises a RunError.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from launchopt.batching.batcher import shape_finder
from launchopt.command import Dtype, as_words
from launchopt.errors import DeviceError, RunError
from launchopt.queue.ring import Ring
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import BURST, SHAPES, job
from runner.bench.figures import Figure, in_turn, ratios
from runner.plan.job import Arm
from runner.worker.consumer import Consumer


def suite(repeats: int, device: str) -> Iterator[Figure]:
    """Yield figures for each shape of `dispatch`, fp32; none without a GPU or cupti-python."""
    from launchopt.timing.cupti import require

    if device != "cuda":
        return
    try:
        require()
    except DeviceError:
        return
    for m, k in SHAPES:
        yield from _traced(m, k, 10 * repeats)


def _traced(m: int, k: int, repeats: int) -> Iterator[Figure]:
    from launchopt.timing.cupti import tracer

    stream = gemv(m, 1, k, BURST, Dtype.fp32, BURST)
    with Ring.create(4096) as ring, Consumer(job(stream, ring, "cuda", (Arm("baseline", 1, 0, None),))) as consumer:
        records = np.concatenate([block.records for block in stream.blocks()])
        shape_of = shape_finder(stream.shapes).classify(records, np.zeros(BURST, np.int32))
        consumer.arm(0)

        def off() -> float:
            consumer.recorder.reset()
            consumer.device.synchronize()
            start_ns = time.perf_counter_ns()
            consumer.prepared[0].submit_each(as_words(records), shape_of, time.monotonic_ns())
            host_ns = time.perf_counter_ns() - start_ns
            consumer.device.synchronize()
            return host_ns / BURST

        def on() -> float:
            tracer().start()
            host_ns = off()
            seen = tracer().stop()
            if seen.dropped or seen.kernels < BURST:
                raise RunError(f"CUPTI saw {seen.kernels} kernels of {BURST} launches, and lost {seen.dropped} records")
            return host_ns

        off_ns, on_ns = in_turn(repeats, off, on)
    case = f"baseline {m}x1x{k} fp32, host time a launch"
    yield Figure("tracing", f"{case}: untraced", "ns", off_ns)
    yield Figure("tracing", f"{case}: timing=cupti", "ns", on_ns)
    yield Figure("tracing", f"{case}: ratio", "x", ratios(on_ns, off_ns))

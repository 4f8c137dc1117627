"""Measures each mode's Python time around its launch calls.

Batches, or whole steps, are made once and submitted repeatedly, in bursts shorter than the GPU's launch queue. The
figure is the time of a burst, minus the time within its launch calls (the recorder's SUBMIT_START to SUBMIT_END),
divided by the number of calls. It covers the lookup of plans and graphs, marks and records. Work within a call, such as
filling a table of pointers, belongs to the call.

Every mode that can run here is measured. A mode that takes commands or batches runs on gemv_256. A mode that takes
whole steps runs on the first workload of requests that it can run, since its Python is the same on all. Modes of a
compiled loop (`compiled_loop`) have no Python of their own and are skipped; so is a mode of quantised weights alone. On
the cpu device workloads are tiny, and there is no goal.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

from launchopt.arrivals.requests import Requests
from launchopt.batching.batch import Batch, FlushReason
from launchopt.command import Dtype, as_words
from launchopt.modes import MODES, broken_modes, mode_class
from launchopt.modes.base import Prepared, Takes
from launchopt.modes.baseline import shape_of_all
from launchopt.queue.ring import Ring
from launchopt.recording.launch_rows import LaunchColumn
from launchopt.streams.chains.chain import ChainStream, Stream, chain_of
from launchopt.streams.chains.program import elementwise_program, linear_epilogue_program, linear_program, qkv_program
from launchopt.streams.model import ModelShape
from launchopt.streams.stream import commands_of
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import job
from runner.bench.figures import Figure, in_turn
from runner.plan.job import Arm
from runner.worker.consumer import Consumer

GOAL_US = 5.0
BUCKET = 64  # commands of a batch
BATCHES = 8  # batches that alternate
REQUESTS, LAYERS, HEAD_DIM = 4, 2, 128
COPIES = 2  # copies of the weights, which alternate
# A burst ends at either limit, so that it never waits: the GPU's queue holds 1,024 launches, and tables of pointers
# have 64 staging places.
MOST_CALLS, MOST_SUBMITS = 400, 40
BURSTS = 5  # bursts of each mode in one repeat
CAPACITY = 4096


def suite(repeats: int, device: str) -> Iterator[Figure]:
    """Yield a figure for each mode, in the order of the workloads. Only a GPU has a goal."""
    done = set(broken_modes())
    for workload, stream in _workloads(device):
        names = [name for name in MODES if name not in done and _takes(name, device, stream)]
        if not names:
            continue
        if stream.has_steps:
            done.update(names)
        samples = _measured(BURSTS * repeats, device, stream, names)
        for name, around_us in zip(names, samples, strict=True):
            case = f"{name}: Python around a launch call ({workload})"
            yield Figure("modes", case, "us", around_us, GOAL_US if device == "cuda" else None)


def _workloads(device: str) -> Iterator[tuple[str, Stream]]:
    """Yield names and streams; those of requests are last."""
    is_gpu = device == "cuda"
    side, hidden, dtype = (256, 1024, Dtype.fp16) if is_gpu else (16, HEAD_DIM, Dtype.fp32)
    commands = BUCKET * BATCHES
    name = "gemv_256" if is_gpu else f"gemv {side}x1x{side}"
    yield f"{name} fp32", gemv(side, 1, side, commands, Dtype.fp32, commands)
    heads = hidden // HEAD_DIM
    model = ModelShape("bench", hidden, LAYERS, heads, max(1, heads // 4), HEAD_DIM, 2 * hidden)
    programs = {
        "decode": linear_program(model.linear_sizes()),
        "elementwise_chain": elementwise_program(hidden),
        "linear_epilogue": linear_epilogue_program(hidden),
        "qkv": qkv_program(model),
    }
    nothing, tokens = np.zeros(REQUESTS, np.int64), np.full(REQUESTS, COPIES)
    for name, program in programs.items():
        stream = ChainStream(program, LAYERS, Requests(nothing, nothing, tokens), dtype, COPIES)
        yield f"{name} {dtype.name}, {REQUESTS} requests", stream
    one_copy = ChainStream(programs["decode"], LAYERS, Requests(nothing, nothing, tokens), dtype, 1)
    yield f"decode {dtype.name}, {REQUESTS} requests, one copy of the weights", one_copy  # loops of steps take no other


def _takes(name: str, device: str, stream: Stream) -> bool:
    """Return whether a mode is measured on a stream: it takes that kind of stream, and launches from Python."""
    mode = mode_class(name)
    if mode.compiled_loop or mode.refusal(device, stream) or mode.lacks():
        return False
    return (mode.takes_of(stream) is Takes.steps) == stream.has_steps


def _measured(bursts: int, device: str, stream: Stream, names: Sequence[str]) -> list[list[float]]:
    """Return samples for each mode: us per launch call, outside of these calls.

    Modes alternate on the same operands.
    """
    todo = tuple(Arm(name, BUCKET, 0.0, None) for name in names)
    with Ring.create(CAPACITY) as ring:
        plain = job(stream, ring, device, todo)
        with Ring.create(plain.back_capacity) as back, Consumer(replace(plain, back_name=back.name)) as consumer:
            batches = batches_of(stream)
            works = [partial(around_us, consumer, index, batches) for index in range(len(names))]
            try:
                return in_turn(bursts, *works)
            finally:
                consumer.device.synchronize()
                gc.enable()  # `Consumer.arm` disabled it


def batches_of(stream: Stream) -> list[Batch]:
    """Return full buckets, or steps of all requests with each copy of the weights, as a batcher emits them."""
    if stream.has_steps:
        stream = chain_of(stream)
        from launchopt.devices.steps.stages import step_of

        return [step_of(stream, stream.requests, copy) for copy in range(stream.replicas)]
    words = as_words(np.concatenate([block.records for block in commands_of(stream).blocks()]))
    return [Batch(0, part, FlushReason.full) for part in np.split(words, len(words) // BUCKET)]


def around_us(consumer: Consumer, index: int, batches: Sequence[Batch]) -> float:
    """Return the us per launch call that the mode spends outside its launch calls, over one burst."""
    consumer.arm(index)  # a warm-up run would put events around every launch
    device, recorder, clock_ns = consumer.device, consumer.recorder, time.monotonic_ns
    submit = _submit_of(consumer.prepared[index], batches[0])
    for batch in (*batches, *batches):  # plans and graphs exist after the first time
        submit(batch, clock_ns())
    submits = MOST_CALLS * 2 * len(batches) // recorder.launch_calls
    burst = list(islice(cycle(batches), max(1, min(submits, MOST_SUBMITS))))
    device.synchronize()
    recorder.reset()
    start_ns = clock_ns()
    for batch in burst:
        submit(batch, clock_ns())
    took_ns = clock_ns() - start_ns
    within_ns = sum(
        int((rows[:, LaunchColumn.SUBMIT_END_NS] - rows[:, LaunchColumn.SUBMIT_START_NS]).sum())
        for _, rows in recorder.launch_chunks()
    )
    return (took_ns - within_ns) / recorder.launch_calls / 1e3


def _submit_of(prepared: Prepared, batch: Batch) -> Callable[[Any, int], None]:
    """Return the function (batch, flush_ns) that submits a batch in the form that the mode takes."""
    takes = prepared.mode.takes_of(prepared.device.work)
    if takes is not Takes.commands:
        return prepared.submit_steps if takes is Takes.steps else prepared.submit
    shape_of = shape_of_all(batch)
    return lambda commands, now_ns: prepared.submit_each(commands.words, shape_of, now_ns)

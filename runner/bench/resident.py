"""Measures commands of the persistent kernel: one command there and back, and many that wait in its ring.

One command at a time goes into the idle kernel. The host stores it and spins until it is complete, which means that the
outputs are in the GPU's memory. For a small command a second figure ends when the host has the outputs. Two further
kernels give lower bounds for it: one that multiplies nothing and sends zeros, and one that only echoes the command's
words, the minimum on this machine. `hot` commands share their operands, which the L2 cache serves; others read operands
of their own from memory.

Many commands: the kernel starts when all are in its ring, and ends after the last one. So its time contains no host,
and a profiler can replay it. A kernel that multiplies nothing is measured, too.

All outputs are compared with float64 at the end, and with the outputs that the host received, unless nothing was
multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.batching.batcher import shape_finder
from launchopt.command import COMMAND_DTYPE, LOW_HALF, Dtype, RecordWord, ShapeKey, as_words
from launchopt.devices.cublaslt.launch import launch_at
from launchopt.devices.resident import ring as rl
from launchopt.devices.resident.ring import is_sent
from launchopt.modes.persistent import PreparedPersistent
from launchopt.native import compiled, cpu_pause, load_word, monotonic_ns, store_fence
from launchopt.queue.ring import Ring
from launchopt.streams.gemm_stream import GemmStream
from launchopt.timing import nvtx_ranges
from launchopt.types import Table
from launchopt.verify.commands import CheckSettings, verify
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import job
from runner.bench.figures import Figure
from runner.plan.job import Arm
from runner.worker.consumer import Consumer

COMMANDS = 4000
GOAL_US = 2.0
# (m, k, whether commands share their operands)
CASES = ((16, 64, True), (64, 256, True), (256, 256, True), (256, 256, False), (1024, 1024, False), (64, 8192, False))
# (m, k, dtype, number of commands) of each workload stream. Operands are many times larger than the L2 cache.
STREAMS = ((256, 256, Dtype.fp32, 4000), (256, 256, Dtype.fp16, 4000), (64, 8192, Dtype.fp32, 1000))


class Kernel(NamedTuple):
    """A kernel's file in kernels/, with macros."""

    file: str
    macros: dict[str, int]


WHOLE, WITHOUT_PRODUCTS, ECHO = Kernel("persistent", {}), Kernel("persistent", {"WITHOUT": 1}), Kernel("echo", {})


@compiled
def _round_trips(
    words: NDArray[np.uint64], shape: Table, plans: Table, contexts: Table, queue: int, ns: Table, outputs: Table
) -> int:
    """Post each command of `words`, store its time in `ns`, and return how many were posted.

    outputs: int64 [commands, rows]. The host waits for the outputs and stores them. With no rows it waits for the
    completion instead.
    """
    mask, rows = (1 << load_word(queue + 8 * rl.QueueWord.BITS)) - 1, outputs.shape[1]
    done = load_word(queue + 8 * rl.QueueWord.DONE)
    for i in range(len(words)):
        index, start_ns = load_word(queue + 8 * rl.QueueWord.NEXT), monotonic_ns()
        if launch_at(words, i, shape, 1, plans, contexts) != rl.OK:
            return i
        store_fence()
        if rows == 0:
            while load_word(done + 8 * (index & mask)) != index + 1:
                cpu_pause()
        elif rl.await_outputs(queue, index, rows) != rl.OK:
            return i
        ns[i] = monotonic_ns() - start_ns
        for row in range(rows):
            outputs[i, row] = load_word(rl.outputs_of(queue, index) + 8 * row)
    return len(words)


def suite(repeats: int, device: str) -> Iterator[Figure]:
    """Yield the p50 and p99 of each case, us per command. Needs a GPU."""
    if device != "cuda":
        return
    for m, k, hot in CASES:
        what = f"one command there and back, {m}x1x{k} fp32, {'hot' if hot else 'from memory'}"
        sent = is_sent(ShapeKey(m, 1, k, Dtype.fp32))
        if sent:
            outputs = _round_trips_us(m, k, hot, repeats, sent=True)
            yield from _figures(f"{what}, its outputs with the host", outputs, GOAL_US)
            nothing = _round_trips_us(m, k, hot, repeats, sent=True, kernel=WITHOUT_PRODUCTS)
            yield from _figures(f"{what}, as much sent, nothing multiplied", nothing, None)
            words = _round_trips_us(m, k, hot, repeats, kernel=ECHO)
            yield from _figures(f"{what}, its words alone", words, None)
        yield from _figures(f"{what}, complete", _round_trips_us(m, k, hot, repeats), GOAL_US)


def _figures(what: str, runs: list[NDArray[np.float64]], goal_us: float | None) -> Iterator[Figure]:
    for percent, goal in ((50, goal_us), (99, None)):
        yield Figure(
            "resident", f"{what}, p{percent}", "us", [float(np.percentile(run, percent)) for run in runs], goal
        )


@compiled
def _post(words: NDArray[np.uint64], shape: Table, plans: Table, contexts: Table) -> int:
    """Post every command of `words` and return how many were posted."""
    for i in range(len(words)):
        if launch_at(words, i, shape, 1, plans, contexts) != rl.OK:
            return i
    store_fence()
    return len(words)


def streams(repeats: int, device: str) -> Iterator[Figure]:
    """Yield the ns per command of each stream: measured, measured without products, and the minimum by its bytes.

    Needs a GPU.
    """
    if device != "cuda":
        return
    for m, k, dtype, commands in STREAMS:
        stream = gemv(m, 1, k, commands, dtype, commands)
        what = f"a command of {commands:,} {m}x1x{k} {dtype.name}"
        with _posting(stream) as on:
            whole = _streams_ns(on, stream, repeats)
            _assert_right(stream, on.consumer)
            on.prepared.resident.use(WITHOUT_PRODUCTS.file, **WITHOUT_PRODUCTS.macros)
            without = _streams_ns(on, stream, repeats)
            copy_gb_per_s = on.consumer.about()["ceilings"]["copy_gb_per_s"]
        yield Figure("stream", f"{what}, as they wait in the ring", "ns", whole)
        yield Figure("stream", f"{what}, nothing multiplied", "ns", without)
        least_ns = stream.bytes_moved / commands / copy_gb_per_s
        yield Figure("stream", f"{what}, its bytes at the measured copy bandwidth", "ns", [least_ns])


def _streams_ns(on: _Posting, stream: GemmStream, repeats: int) -> list[float]:
    resident, domain = on.prepared.resident, nvtx_ranges.domain()
    name = nvtx_ranges.range_name("persistent", stream.shapes[0], stream.dtype)
    attributes = nvtx_ranges.attributes(domain, name, stream.commands)
    each_ns = []
    for _ in range(repeats + 1):  # the first loads the kernel
        on.consumer.device.arenas.poison()
        on.consumer.device.synchronize()
        resident.reset()
        assert _post(on.words, *on.plans) == len(on.words)
        domain.push_range(attributes)
        each_ns.append(resident.run_posted() * 1e6 / stream.commands)
        domain.pop_range()
    return each_ns[1:]


class _Posting(NamedTuple):
    """The command records of a stream, their plans, and the prepared persistent kernel that they are posted to."""

    consumer: Consumer
    prepared: PreparedPersistent
    words: NDArray[np.uint64]
    plans: tuple[Table, Table, Table]  # plans of the stream's only shape


@contextmanager
def _posting(stream: GemmStream) -> Iterator[_Posting]:
    words = np.concatenate([as_words(block.records).copy() for block in stream.blocks()])
    arm = Arm("persistent", 1, 0, None)
    with Ring.create(4096) as ring, Consumer(job(stream, ring, "cuda", (arm,))) as consumer:
        prepared = consumer.prepared[0]
        assert isinstance(prepared, PreparedPersistent)
        assert prepared.path.tables is not None
        shapes, plans, contexts = prepared.path.tables.arrays
        records = words.reshape(-1).view(COMMAND_DTYPE)
        index = shape_finder(stream.shapes).classify(records, np.zeros(len(words), np.int32))
        yield _Posting(consumer, prepared, words, (shapes[index[0]], plans, contexts))


def _round_trips_us(
    m: int, k: int, hot: bool, repeats: int, sent: bool = False, kernel: Kernel = WHOLE
) -> list[NDArray[np.float64]]:
    """Return the us of each command, an array for each repeat. With `sent` until the host has the outputs."""
    stream = gemv(m, 1, k, COMMANDS, Dtype.fp32, 1 if hot else COMMANDS)
    with _posting(stream) as on:
        ns, device, resident = np.zeros(len(on.words), np.int64), on.consumer.device, on.prepared.resident
        outputs = np.zeros((len(ns), m if sent else 0), np.int64)
        runs: list[NDArray[np.float64]] = []
        resident.use(kernel.file, **kernel.macros)
        for _ in range(repeats + 1):  # the first loads the kernel
            device.arenas.poison()
            device.synchronize()
            resident.start()
            posted = _round_trips(on.words, *on.plans, resident.queue, ns, outputs)
            resident.pause()
            device.synchronize()
            resident.check()
            assert posted == len(on.words)
            if kernel is WHOLE:
                _assert_right(stream, on.consumer)
                _assert_sent(stream, on, outputs)
            runs.append((ns * 1e-3).astype(np.float64))
        return runs[1:]


def _assert_sent(stream: GemmStream, on: _Posting, outputs: Table) -> None:
    """Check the received outputs of the last command of each slot of C against that slot."""
    places = (on.words[:, RecordWord.SLOT_C_REQUEST] & LOW_HALF).astype(np.int64)
    _, from_behind = np.unique(places[::-1], return_index=True)
    last = len(places) - 1 - from_behind
    arenas, arena = on.consumer.device.arenas, stream.operands(stream.shapes[0])[2].arena
    values = arenas.xp.asarray(rl.values_of(outputs[last]))
    stored = arenas.matrices(arena, places[last]).reshape(len(last), -1)[:, : values.shape[1]]
    assert (stored == values).all(), "outputs that the host received differ from C"


def _assert_right(stream: GemmStream, consumer: Consumer) -> None:
    checked = verify(stream, consumer.device.arenas, CheckSettings(256, 0))
    assert checked.ok, f"{checked.wrong} of {checked.commands} outputs wrong"

"""What one command costs a kernel that stays on the GPU: from the host's store to the host's sight of its completion.

One at a time, into an idle kernel: post, spin on the completion's word. Every output is compared with float64 at the
end. `hot`: the same operands again and again, from the L2 cache; else each command has its own, from memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.batcher import Batcher
from launchopt.command import COMMAND_DTYPE, Dtype, as_words
from launchopt.devices import resident_loops as rl
from launchopt.devices.lt_launch import launch_at
from launchopt.native import compiled, cpu_pause, load_word, monotonic_ns
from launchopt.ring import Ring
from launchopt.verify import verify
from launchopt.workloads.gemv import gemv
from runner.bench.dispatch import job
from runner.bench.figures import Figure
from runner.consumer import Consumer
from runner.job import Arm

COMMANDS = 4000
GOAL_US = 2.0
# m, k, whether the operands are hot.
CASES = ((16, 64, True), (64, 256, True), (256, 256, True), (256, 256, False), (1024, 1024, False), (64, 8192, False))
Table = NDArray[np.int64]


@compiled
def _round_trips(words: NDArray[np.uint64], shape: Table, plans: Table, contexts: Table, queue: int, ns: Table) -> int:
    """Time of each of `words` in `ns`; returns how many were posted."""
    mask, done = (1 << load_word(queue + 8 * rl.BITS)) - 1, load_word(queue + 8 * rl.DONE)
    for i in range(len(words)):
        index, start_ns = load_word(queue + 8 * rl.NEXT), monotonic_ns()
        if launch_at(words, i, shape, 1, plans, contexts) != rl.OK:
            return i
        while load_word(done + 8 * (index & mask)) != index + 1:
            cpu_pause()
        ns[i] = monotonic_ns() - start_ns
    return len(words)


def suite(repeats: int, device: str) -> Iterator[Figure]:
    """p50 and p99 of each case; needs a GPU."""
    if device != "cuda":
        return
    for m, k, hot in CASES:
        runs = _round_trips_us(m, k, hot, repeats)
        what = f"{m}x1x{k} fp32, {'hot' if hot else 'from memory'}"
        for percent, goal in ((50, GOAL_US), (99, None)):
            each = [float(np.percentile(run, percent)) for run in runs]
            yield Figure("resident", f"one command there and back, {what}, p{percent}", "us", each, goal)


def _round_trips_us(m: int, k: int, hot: bool, repeats: int) -> list[NDArray[np.float64]]:
    stream = gemv(m, 1, k, COMMANDS, Dtype.fp32, 1 if hot else COMMANDS, False, 0)
    words = np.concatenate([as_words(block.records).copy() for block in stream.blocks()])
    with Ring.create(4096) as ring, Consumer(job(stream, ring, "cuda", (Arm("persistent", 1, 0, None),))) as consumer:
        mode: Any = consumer.modes[0]
        shapes, plans, contexts = mode.tables.arrays
        index = Batcher(stream.shapes, [1], 0).classify(
            words.reshape(-1).view(COMMAND_DTYPE), np.zeros(len(words), np.int32)
        )
        ns = np.zeros(len(words), np.int64)
        runs: list[NDArray[np.float64]] = []
        for _ in range(repeats + 1):  # the first loads the kernel
            consumer.device.arenas.poison()
            consumer.device.synchronize()
            mode.resident.start()
            posted = _round_trips(words, shapes[index[0]], plans, contexts, mode.resident.queue, ns)
            mode.resident.pause()
            consumer.device.synchronize()
            mode.resident.check()
            assert posted == len(words)
            checked = verify(stream, consumer.device.arenas, 256, 0)
            assert checked.ok, f"{checked.wrong} of {checked.commands} outputs wrong"
            runs.append((ns * 1e-3).astype(np.float64))
        return runs[1:]

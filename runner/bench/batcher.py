"""Measures the batcher alone: commands per second through buckets, with 1, 8 and 64 shapes in random order."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from launchopt.batching.batch import FlushRules
from launchopt.batching.batcher import Batcher
from launchopt.command import COMMAND_DTYPE, Dtype, Records, ShapeKey
from runner.bench.figures import Figure

COMMANDS, BLOCK, MAX_BATCH = 4_000_000, 4096, 512
GOALS = {1: 50e6, 8: 30e6, 64: 20e6}


def suite(repeats: int) -> Iterator[Figure]:
    """Yield the figures of the batcher. Needs one core."""
    for count, goal in GOALS.items():
        shapes = [ShapeKey(64 + 8 * i, 1, 256, Dtype.fp16) for i in range(count)]
        blocks = _blocks(shapes)
        _rate(shapes, blocks[:2])  # loads the compiled code
        samples = [_rate(shapes, blocks) for _ in range(repeats)]
        case = f"{count} shape{'s at random' if count > 1 else ''}, batches of {MAX_BATCH}"
        yield Figure("batcher", case, "commands/s", samples, goal, higher_is_better=True)


def _blocks(shapes: list[ShapeKey]) -> list[Records]:
    which = np.random.default_rng(0).integers(0, len(shapes), COMMANDS)
    records = np.zeros(COMMANDS, COMMAND_DTYPE)
    records["m"] = np.array([shape.m for shape in shapes])[which]
    records["n"], records["k"], records["dtype"] = 1, 256, Dtype.fp16
    records["seq"] = np.arange(COMMANDS)
    return np.split(records, range(BLOCK, COMMANDS, BLOCK))


def _rate(shapes: list[ShapeKey], blocks: list[Records]) -> float:
    batcher = Batcher(shapes, [MAX_BATCH] * len(shapes), FlushRules(10**9))
    taken, start_ns = 0, time.perf_counter_ns()
    for now_ns, block in enumerate(blocks):
        for batch in batcher.take(block, now_ns):
            taken += len(batch.words)
    for batch in batcher.take(blocks[0][:0], len(blocks), is_drained=True):
        taken += len(batch.words)
    elapsed_ns = time.perf_counter_ns() - start_ns
    assert taken == sum(map(len, blocks))
    return taken / elapsed_ns * 1e9

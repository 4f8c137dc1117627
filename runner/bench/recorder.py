"""The recorder alone: what noting one launch call costs, and one NVTX range with no tool attached."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launchopt.command import COMMAND_DTYPE, as_words
from launchopt.native import compiled
from launchopt.recorder import Recorder, note
from launchopt.timing import nvtx_ranges
from runner.bench.figures import Figure

LAUNCHES, BATCH, RANGES = 500_000, 64, 200_000
GOAL_NOTE_NS, GOAL_RANGE_NS = 100, 50


def suite(repeats: int) -> Iterator[Figure]:
    """Figures of the recorder; one core."""
    records = np.zeros(LAUNCHES, COMMAND_DTYPE)
    records["seq"] = np.arange(LAUNCHES)
    for size, goal in ((1, GOAL_NOTE_NS), (BATCH, None)):
        recorder = Recorder(LAUNCHES)
        _note_ns(recorder, as_words(records), size)
        samples = [_note_ns(recorder, as_words(records), size) for _ in range(repeats)]
        yield Figure("recorder", f"noting one launch of {size}", "ns", samples, goal)
    if not nvtx_ranges.attached():
        samples = [_range_ns() for _ in range(repeats)]
        yield Figure("recorder", "NVTX range, no tool attached", "ns", samples, GOAL_RANGE_NS)


@compiled
def _note_all(records: Any, words: NDArray[np.uint64], size: int) -> None:
    launches, commands, cursor = records
    first = 0
    while first + size <= len(words):
        note(launches, commands, cursor, words, first, first + size, (0, 0, 0, 0, 0), 0, 0)
        first += size


def _note_ns(recorder: Recorder, words: NDArray[np.uint64], size: int) -> float:
    recorder.reset()
    start_ns = time.perf_counter_ns()
    _note_all((recorder.launches, recorder.commands, recorder.cursor), words, size)
    return (time.perf_counter_ns() - start_ns) / recorder.launch_count


def _range_ns() -> float:
    """One push and pop of registered attributes, the empty loop taken off."""
    domain = nvtx_ranges.domain()
    attributes = nvtx_ranges.attributes(domain, "bench 64x1x8192 fp32", 512)
    push, pop = domain.push_range, domain.pop_range
    start_ns = time.perf_counter_ns()
    for _ in range(RANGES):
        push(attributes)
        pop()
    with_ns = time.perf_counter_ns() - start_ns
    start_ns = time.perf_counter_ns()
    for _ in range(RANGES):
        pass
    return (with_ns - (time.perf_counter_ns() - start_ns)) / RANGES

"""Measures the recorder alone: the cost of recording one launch call, its memory, and an idle NVTX range.

Rows go to a temporary file; those of a run go to its folder. Memory is the peak of a separate process, minus its memory
before it made the recorder.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from launchopt.command import COMMAND_DTYPE, RecordWord, as_words
from launchopt.native import compiled
from launchopt.queue.ring import MOST_AT_ONCE
from launchopt.recording.launch_rows import RecordingArrays
from launchopt.recording.recorder import Recorder
from launchopt.recording.row_writer import note
from launchopt.timing import nvtx_ranges
from launchopt.types import Words
from runner.bench.figures import Figure
from runner.bench.peers import with_peer

LAUNCHES, BATCH, RANGES = 500_000, 64, 200_000
MEMORY_LAUNCHES = 10_000_000 // MOST_AT_ONCE * MOST_AT_ONCE
GOAL_NOTE_NS, GOAL_RANGE_NS, GOAL_MEMORY_MB = 100, 50, 64


def suite(repeats: int) -> Iterator[Figure]:
    """Yield the figures of the recorder. Needs one core."""
    for size, goal in ((1, GOAL_NOTE_NS), (BATCH, None)):
        _note_ns(size, spool=True)
        for what, spool in (("noting", False), ("noting and spooling", True)):
            samples = [_note_ns(size, spool) for _ in range(repeats)]
            yield Figure("recorder", f"{what} one launch of {size}", "ns", samples, goal)
    samples = [_peak_mb() for _ in range(repeats)]
    yield Figure("recorder", "peak memory for 10 M commands", "MB", samples, GOAL_MEMORY_MB)
    if not nvtx_ranges.attached():
        samples = [_range_ns() for _ in range(repeats)]
        yield Figure("recorder", "NVTX range, no tool attached", "ns", samples, GOAL_RANGE_NS)


@compiled
def _note_all(records: RecordingArrays, words: Words, size: int) -> None:
    first = 0
    while first + size <= len(words):
        note(records, words, first, first + size, (0, 0, 0, 0, 0), 0, 0)
        first += size


def _blocks(recorder: Recorder, commands: int, size: int, spool: bool) -> int:
    """Record commands in blocks, like a consumer, and return the ns. Without `spool` the rows are dropped."""
    words = as_words(np.zeros(MOST_AT_ONCE, COMMAND_DTYPE))
    words[:, RecordWord.SEQ] = np.arange(MOST_AT_ONCE)
    arrays = recorder.arrays
    between = recorder.spool if spool else recorder.reset
    took_ns = 0
    for _ in range(commands // MOST_AT_ONCE):
        start_ns = time.perf_counter_ns()
        between()
        _note_all(arrays, words, size)
        took_ns += time.perf_counter_ns() - start_ns
        words[:, RecordWord.SEQ] += np.uint64(MOST_AT_ONCE)
    return took_ns


def _note_ns(size: int, spool: bool) -> float:
    """Return the ns per launch, with a new file each time: its first pages cost most."""
    recorder, launches = Recorder(LAUNCHES * size, MOST_AT_ONCE), LAUNCHES // max(1, size // 8)
    took_ns = _blocks(recorder, launches * size, size, spool)
    recorder.close()
    return took_ns / launches


def _peak_mb() -> float:
    ours, theirs = Pipe()
    return with_peer(note_many, (theirs,), lambda: _received(ours, theirs))


def _received(ours: Connection, theirs: Connection) -> float:
    theirs.close()
    grown_mb: float = ours.recv()
    return grown_mb


def note_many(pipe: Connection) -> None:
    """Record, spool and count rows (the other process). Send the peak memory minus that before the recorder, MB."""
    first = Recorder(0, MOST_AT_ONCE)
    _blocks(first, 8 * MOST_AT_ONCE, 1, spool=True)  # loads the compiled code
    list(first.chunks())
    first.close()
    del first
    before = _resident_bytes("VmRSS")
    recorder = Recorder(MEMORY_LAUNCHES, MOST_AT_ONCE)
    _blocks(recorder, MEMORY_LAUNCHES, 1, spool=True)
    assert recorder.faults() == []
    pipe.send((_resident_bytes("VmHWM") - before) / 1e6)


def _resident_bytes(which: str) -> int:
    """Return the resident bytes, now (VmRSS) or at the peak (VmHWM). getrusage would include the parent's peak."""
    found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def _range_ns() -> float:
    """Return the ns of one push and pop of registered attributes, without the loop around them."""
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

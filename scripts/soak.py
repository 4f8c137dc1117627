"""Sends a billion commands through ring, batcher and recorder in two processes: none may be lost, no memory may grow.

    python scripts/soak.py                        # 1e9 commands
    python scripts/soak.py --records 1e6          # as CI does
    python scripts/soak.py --json soak.json       # also save the figures, for the page on reliability

Prints the rate, and the memory of both processes after each lap of 2**22 commands. At the end of a lap all buckets are
flushed. Every command must have left the ring in order, with every field unchanged, and must be recorded exactly once.
No command is executed: the soak covers the parts that every run shares.

Exit code 0: no command was lost, and no memory grew. 1: a command was lost or memory grew; the error names the
first difference, and no file is written. 2: an option is wrong, or the file cannot be written.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from launchopt.batching.batch import Batch, FlushRules
from launchopt.batching.batcher import Batcher
from launchopt.command import COMMAND_DTYPE, Dtype, Records, ShapeKey, as_words
from launchopt.devices.cpu.info import cpu_info
from launchopt.errors import DataError
from launchopt.files import save_json
from launchopt.queue.ring import MOST_AT_ONCE, Ring
from launchopt.queue.segment import HeaderWord
from launchopt.queue.waiter import Waiter
from launchopt.recording.environment import environment
from launchopt.recording.launch_rows import Strategy
from launchopt.recording.recorder import Recorder
from runner.reading import CommandParser
from runner.worker.lifeline import bound_process, start

LAP = 1 << 22
BLOCK = 1 << 13  # commands that the producer makes and pushes together
CAPACITY = 1 << 14
MAX_BATCH = 64
SHAPES = [ShapeKey(64 * (1 + i), 1, 256, Dtype.fp32) for i in range(4)]
SPIN_US, SLEEP_US = 200.0, 50.0
SLACK_BYTES = 32 << 20  # resident memory may grow this much after the first lap, by allocators and page caches


class LostError(Exception):
    """Commands that the consumer popped differ from those that the producer pushed."""


@dataclass(slots=True)
class Memory:
    """Resident bytes of one process after the first lap, after the last, and the maximum; 0 if it had ended before."""

    first_bytes: int = 0
    last_bytes: int = 0
    peak_bytes: int = 0

    def add_lap(self, resident_bytes: int) -> None:
        """Record the bytes after one more lap."""
        self.first_bytes = self.first_bytes or resident_bytes
        self.last_bytes, self.peak_bytes = resident_bytes, max(self.peak_bytes, resident_bytes)


@dataclass(slots=True)
class Measured:
    """The figures of a soak without a loss."""

    records: int
    lost: int = 0
    seconds: float = 0.0
    records_per_s: float = 0.0
    batches: int = 0
    memory: dict[str, Memory] = field(default_factory=lambda: {"consumer": Memory(), "producer": Memory()})

    def as_json(self, started: datetime) -> dict[str, object]:
        """Return the figures with the machine and the time."""
        about = {"schema_version": 1, "started_utc": started.isoformat(timespec="seconds")}
        return {**about, **asdict(self), "processor": cpu_info().name, "environment": environment()}


def numbered(lap: int, first: int, stop: int) -> Records:
    """Return commands `first` to `stop` of a lap. Their fields follow from their number; shapes alternate."""
    records, numbers = np.zeros(stop - first, COMMAND_DTYPE), np.arange(first, stop)
    records["seq"], records["request"] = numbers, lap
    records["m"] = np.array([shape.m for shape in SHAPES])[numbers % len(SHAPES)]
    records["n"], records["k"], records["dtype"] = 1, 256, Dtype.fp32
    records["slot_a"], records["slot_b"], records["slot_c"] = numbers, numbers ^ lap, numbers
    return records


def laps(total: int) -> list[int]:
    """Return the number of commands of each lap."""
    return [min(LAP, total - first) for first in range(0, total, LAP)]


def push_all(name: str, total: int) -> None:
    """Push all commands: the producer's process."""
    with Ring.attach(name, CAPACITY) as ring:
        waiter = Waiter(ring.await_free_slots, SPIN_US, SLEEP_US)
        for lap, count in enumerate(laps(total)):
            for first in range(0, count, BLOCK):
                records = numbered(lap, first, min(first + BLOCK, count))
                while len(records):
                    records = records[ring.push(records) :]
                    if len(records):
                        waiter.wait()
                    if ring.word(HeaderWord.STOP):
                        return
        ring.close()


class Soak:
    """The consumer of a soak."""

    def __init__(self, ring: Ring) -> None:
        self._ring, self._waiter = ring, Waiter(ring.await_record, SPIN_US, SLEEP_US)
        self._batcher = Batcher(SHAPES, [MAX_BATCH] * len(SHAPES), FlushRules(10**12))
        self._buffer = np.zeros(MOST_AT_ONCE, COMMAND_DTYPE)
        self.batches = 0

    def lap(self, lap: int, count: int) -> None:
        """Take the commands of one lap; LostError if one is missing, changed or out of order."""
        recorder = Recorder(count, MOST_AT_ONCE + MAX_BATCH * len(SHAPES))
        taken = 0
        while taken < count:
            popped = self._ring.pop(self._buffer[: min(MOST_AT_ONCE, count - taken)])
            if not popped:
                self._wait(lap, taken)
                continue
            records = self._buffer[:popped]
            self._compare(records, numbered(lap, taken, taken + popped), lap)
            recorder.spool()
            for batch in self._batcher.take(records, 0):
                self._note(batch, recorder)
            taken += popped
        recorder.spool()
        for batch in self._batcher.take(self._buffer[:0], 0, is_drained=True):
            self._note(batch, recorder)
        if faults := recorder.faults():
            raise LostError(f"lap {lap}: {'; '.join(faults)}")
        recorder.close()

    def _wait(self, lap: int, taken: int) -> None:
        if self._ring.drained:
            raise LostError(f"lap {lap}: the ring was closed after {taken} commands")
        self._waiter.wait()

    def _compare(self, records: Records, expected: Records, lap: int) -> None:
        """Compare every field except the ring's own word."""
        same = (as_words(records)[:, :-1] == as_words(expected)[:, :-1]).all(axis=1)
        if not same.all():
            first = int(np.argmin(same))
            raise LostError(f"lap {lap}: instead of {expected[first]} came {records[first]}")

    def _note(self, batch: Batch, recorder: Recorder) -> None:
        what = (recorder.next_batch(), batch.shape_index, int(Strategy.packed), int(batch.reason), 0)
        recorder.note(batch.words, slice(0, len(batch)), what, 0, 0)
        self.batches += 1


def soak(total: int) -> Measured:
    """Run all laps; LostError if a command or a count of the ring differs, or memory grows."""
    with Ring.create(CAPACITY) as ring:
        producer = bound_process(push_all, (ring.name, total))
        start(producer)
        try:
            measured = _laps(Soak(ring), total, [psutil.Process(), psutil.Process(producer.pid)])
            producer.join()
            head, tail = ring.word(HeaderWord.HEAD), ring.word(HeaderWord.TAIL)
            if not ring.drained or tail != total:
                raise LostError(f"{total} commands to push, head {head:#x}, {tail} popped")
            return measured
        finally:
            ring.set_word(HeaderWord.STOP, 1)
            producer.join()


def _laps(consumer: Soak, total: int, processes: Sequence[psutil.Process]) -> Measured:
    start_s, done, first_bytes, measured = time.monotonic(), 0, 0, Measured(total)
    sizes = laps(total)
    for lap, count in enumerate(sizes):
        consumer.lap(lap, count)
        done += count
        elapsed_s = time.monotonic() - start_s
        held = _held(processes, measured)
        if lap == 1:  # lap 0 loads and allocates what all laps use
            first_bytes = sum(held)
        elif lap > 1 and len(held) == len(processes) and sum(held) > first_bytes + SLACK_BYTES:
            raise LostError(f"memory grew from {first_bytes / 1e6:.0f} to {sum(held) / 1e6:.0f} MB in {lap} laps")
        if lap % 16 == 0 or lap == len(sizes) - 1:
            memory = " + ".join(f"{each / 1e6:.0f}" for each in held)
            print(
                f"{done:>13,} commands  {done / elapsed_s / 1e6:6.2f} M/s  {elapsed_s:7.1f} s  {memory} MB", flush=True
            )
    print(f"none of {total:,} commands lost, {consumer.batches:,} batches")
    measured.seconds, measured.records_per_s = elapsed_s, total / elapsed_s
    measured.batches = consumer.batches
    return measured


def _held(processes: Sequence[psutil.Process], measured: Measured) -> list[int]:
    """Return the resident bytes of each process that still runs, and add them to `measured`."""
    held = []
    for process, memory in zip(processes, measured.memory.values(), strict=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if rss_bytes := process.memory_info().rss:  # 0: it has ended and its exit code is not read yet
                memory.add_lap(rss_bytes)
                held.append(rss_bytes)
    return held


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak and return the exit code."""
    parser = CommandParser("soak", __doc__)
    parser.add_argument("--records", type=float, default=1e9, metavar="N", help="how many commands (default: 1e9)")
    parser.add_argument("--json", type=Path, metavar="FILE.json", help="save the figures here")
    options = parser.parsed(arguments, needs_words=False)
    total, kept = options.records, options.json
    if not 1 <= total <= 1e15 or total != int(total):
        parser.error(f"--records={total:g}: must be a whole number from 1 to 1e15")
    if kept is not None and not kept.parent.is_dir():  # an error now, not after an hour
        parser.error(f"--json={kept}: {kept.parent} is no folder")
    started = datetime.now(UTC)
    try:
        measured = soak(int(total))
        if kept is not None:
            save_json(kept, measured.as_json(started))
    except LostError as lost:
        print(f"error: {lost}", file=sys.stderr)
        return 1
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

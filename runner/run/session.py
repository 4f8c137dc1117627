"""The parent's side of a run: starts producer and consumer, takes them through the runs, ends them whatever happens.

It sleeps on their pipes and sentinels, never spins; while a run is timed it wakes to read the GPU's clocks and power
(`timing.nvml`), which the children never do then. A child that dies ends the session with a RunError that carries the
child's own text, a child that hangs with the watchdog's; nothing is left behind: no process, no shared memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

from launchopt.errors import RunError
from launchopt.producing.blocks import Production
from launchopt.queue.ring import CLOSED_BIT, HeaderWord, Ring
from launchopt.recording.summary import differences
from launchopt.timing.nvml import GpuWatch, Readings
from launchopt.timing.nvtx_ranges import is_profiled
from launchopt.workloads.chain import ChainStream
from runner.plan.job import Job
from runner.run.children import GRACE_S, Child, hire, keep
from runner.run.leftovers import FOLDER, held
from runner.run.watchdog import Progress, StalledError, Watchdog

POLL_S = 0.1  # between two looks at the ring's tail, for the progress bar


class ChildError(RunError):
    """A child failed; `trace` is its traceback where the failure was not foreseen."""

    def __init__(self, text: str, exit_code: int, trace: str = "") -> None:
        super().__init__(text)
        self.exit_code, self.trace = exit_code, trace


class Session:
    """Both children of one job. A context manager; `about` is the consumer's word on device and ceilings.

    `watchdog_s`: how long nothing may move (0: for ever); under a profiler, which may halt anything, that is not asked.
    """

    def __init__(self, job: Job, progress: Progress, watch: GpuWatch | None = None, watchdog_s: float = 0.0) -> None:
        self._progress, self._watch = progress, watch
        self._watchdog = Watchdog(0.0 if is_profiled() else watchdog_s)
        self._children: list[Child] = []
        self._holds = contextlib.ExitStack()
        self._rings: list[Ring] = []
        self._open_loop = False
        self._announced = job.stream.commands
        self.about: dict[str, Any] = {}
        try:
            self._ring = self._made(job.capacity)
            if isinstance(job.stream, ChainStream):
                self._made(job.back_capacity)
            job = replace(job, ring_name=self._ring.name, back_name=self._rings[-1].name)
            self._consumer = self._start("consumer", job)
            self._producer = self._start("producer", job)
            if watch:
                watch.learn()  # while they start
            self._await(self._producer, "ready", "starting")
            self.about = self._await(self._consumer, "ready", "starting: operands, plans, warm-up")
            for index, arm in enumerate(job.arms):
                self._rehearse(index, f"rehearsing {arm.mode}")
        except BaseException:
            self.close()
            raise

    def _made(self, capacity: int) -> Ring:
        """A new ring, and the word that it is in use: nobody takes it for a dead process's."""
        ring = Ring.create(capacity)
        self._rings.append(ring)
        self._holds.enter_context(held(FOLDER / ring.name))
        return ring

    def _start(self, name: str, job: Job) -> Child:
        child = hire(name)
        self._children.append(child)
        child.send_job(job)
        return child

    def _rehearse(self, index: int, label: str) -> None:
        """The first commands through the whole path, unrecorded: loads every compiled loop before a clock starts."""
        produced = self._start_run("rehearse", index, 0, label)
        self._open_loop = produced.late_max_ns is not None

    def run(self, index: int, repeat: int, label: str) -> tuple[dict[str, Any], Production]:
        """One repeat of arm `index`: the consumer's result and the producer's."""
        produced = self._start_run("run", index, repeat, label)
        readings = self._watch.end() if self._watch else None
        result: dict[str, Any] = self._await(self._consumer, "result", f"{label}: checking every output")
        self._await(self._producer, "ready", label)
        if readings:
            self._add(readings, result)
        return result, produced

    def _add(self, readings: Readings, result: dict[str, Any]) -> None:
        """What the GPU was seen to do, to what the consumer measured."""
        row, start_ns = result["row"], self._ring.word(HeaderWord.START_NS)
        wall_ns = row["wall_ms"] * 1e6
        timed = readings.within(start_ns, start_ns + int(wall_ns))
        row |= timed.columns(row["commands"], wall_ns)
        result["extra"]["gpu"] = timed.about(wall_ns)

    def _start_run(self, kind: str, index: int, repeat: int, label: str) -> Production:
        for ring in self._rings:
            ring.reset()
        self._tell(self._consumer, kind, index, repeat)
        self._await(self._consumer, "armed", label)
        if self._watch and kind == "run":
            self._watch.begin()
        self._tell(self._producer, kind, index)
        moving = (self._consumer, self._producer)
        produced: Production = self._await(self._producer, "produced", label, moving)
        self._await(self._consumer, "consumed", label, moving[:1])
        return produced

    def _await(self, child: Child, expected: str, label: str, moving: Sequence[Child] = ()) -> Any:
        """The value of the child's next message, which must be `expected`; ChildError when any child fails.

        `moving`: who moves commands meanwhile, the likeliest to hang first.
        """
        self._watchdog.begin(label, timed=bool(moving))
        while True:
            self._progress(label, self._ring.word(HeaderWord.TAIL))
            pause_s = min(POLL_S, self._watch.pause_s()) if self._watch else POLL_S
            if not wait([child.pipe, *(other.process.sentinel for other in self._children)], pause_s) and self._watch:
                self._watch.look()
            if child.pipe.poll():
                name, value = self._receive(child)
                if name == "error":
                    raise ChildError(f"{child.name}: {value[0]}", value[1], value[2])
                assert name == expected, f"{child.name} said {name}, not {expected}"
                return value
            for other in self._children:
                if not other.process.is_alive():
                    raise self._death(other)
            self._look_for_flood()
            self._look_for_stall(moving or (child,))

    def _look_for_flood(self) -> None:
        """RunError where more was pushed than announced: such a run is wrong, and might never end."""
        counts = {"announced": self._announced, "pushed": self._ring.word(HeaderWord.HEAD) & ~CLOSED_BIT}
        if counts["pushed"] > self._announced:
            raise RunError(*differences(counts))

    def _look_for_stall(self, owing: Sequence[Child]) -> None:
        """StalledError, and the end of who stalled, where nothing has moved for too long."""
        words = tuple(ring.word(side) for ring in self._rings for side in (HeaderWord.HEAD, HeaderWord.TAIL))
        still_at_it = [child for child in owing if len(owing) == 1 or not child.pipe.poll()]
        may_wait = self._open_loop and words[0] == words[1] and words[0] < CLOSED_BIT
        try:
            self._watchdog.look(words, still_at_it, may_wait)
        except StalledError as stalled:
            for child in self._children:
                if child is stalled.child:
                    child.process.kill()
            raise

    def _tell(self, child: Child, *message: Any) -> None:
        """ChildError where it is not there any more."""
        try:
            child.pipe.send(message)
        except OSError:  # between two messages nobody looks at it
            raise self._death(child) from None

    def _receive(self, child: Child) -> tuple[str, Any]:
        try:
            message: tuple[str, Any] = child.pipe.recv()
        except (EOFError, OSError):
            raise self._death(child) from None
        return message

    def _death(self, child: Child) -> ChildError:
        """Why a child ended: its last message if it left one, else its exit code."""
        with contextlib.suppress(EOFError, OSError):
            while child.pipe.poll(0.2):
                name, value = child.pipe.recv()
                if name == "error":
                    return ChildError(f"{child.name}: {value[0]}", value[1], value[2])
        child.process.join(GRACE_S)
        code = child.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return ChildError(f"{child.name} {how}", 1)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._part()
        finally:
            self.close()

    def _part(self) -> None:
        """The job is done: both children put their things away and wait for another."""
        for child in list(self._children):
            self._tell(child, "done")
            self._await(child, "idle", "putting away")
            self._children.remove(child)
            keep(child)

    def close(self) -> None:
        """End the children that were not kept, remove the ring."""
        with contextlib.suppress(Exception):
            self._ring.stop()
        try:
            for child in self._children:
                child.end()
            self._children.clear()
        finally:
            for ring in self._rings:
                ring.release()
            self._holds.close()

"""The parent's side of a run: starts producer and consumer, takes them through the runs, and always ends them.

The parent sleeps on their pipes and sentinels and never spins. During a timed run it alone reads the GPU's clocks and
power (`timing.nvml`). A child that dies ends the session with a RunError that carries the child's text. A child that
hangs ends it with a StalledError. No process and no shared memory stays behind.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from types import TracebackType

from launchopt.devices.peers.segment import PeerSegment
from launchopt.errors import RunError
from launchopt.producing.production import Production
from launchopt.queue.segment import CLOSED_BIT, HeaderWord, RingSegment
from launchopt.recording.manifest import Manifest
from launchopt.recording.summary import differences
from launchopt.timing.laps import Laps
from launchopt.timing.nvml import GpuWatches
from launchopt.timing.nvtx_ranges import is_profiled
from runner.ending.signals import signals
from runner.plan.job import Job
from runner.plan.memory import oom_kills, out_of_memory
from runner.plan.split import member, new_team
from runner.run.children import GRACE_S, Child, ChildError, end_all, hire, keep, out_of_cpu_time
from runner.run.leftovers import FOLDER, held
from runner.run.notices import AUDITS, CHECKS
from runner.run.screens.pace import Pace
from runner.run.several import add_readings
from runner.run.watchdog import Moved, Progress, StalledError, Watchdog
from runner.worker.messages import Failure, Order, OrderKind, RepeatResult, Reply, ReplyKind

POLL_S = 0.1  # between two reads of the ring's tail, for the progress


class Session:
    """The children of one job: a producer, and a consumer for each of `jobs`. A context manager.

    `about` has versions and ceilings, from the consumer; after the job also the bandwidths behind its last run.

    `watch` reads the GPUs of `jobs`.

    `watchdog_s` is how long nothing may move; 0 is no limit. Under a profiler, which may pause any process, there is
    none either.

    `laps` gets the seconds of each phase.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        progress: Progress,
        watch: GpuWatches | None = None,
        watchdog_s: float = 0.0,
        laps: Laps | None = None,
    ) -> None:
        job = jobs[0]
        self._progress, self._watch, self._laps = progress, watch, laps or Laps()
        self._watchdog = Watchdog(0.0 if is_profiled() else watchdog_s)
        self._children: list[Child] = []
        self._holds = contextlib.ExitStack()
        self._rings: list[RingSegment] = []
        self._forward: list[RingSegment] = []  # those of commands
        self._teams: list[PeerSegment] = []  # one, if consumers split a model
        self._open_loop = False
        self._stream, self._oom_kills = job.stream, oom_kills()
        self._announced = job.stream.commands
        self._executions = len(jobs) if job.is_split else 1  # of each command, by different consumers
        self._is_counted = False  # True: the commands in the ring belong to a run under way
        self.about: Manifest = {}
        self._laps.begin("set-up")
        try:
            jobs = [self._with_rings(each) for each in self._with_team(jobs)]
            self._ring = self._forward[0]
            self._consumers = [self._start(consumer_name(each), each) for each in jobs]
            names = tuple((each.ring_name, each.back_name) for each in jobs) if len(jobs) > 1 else ()
            self._producer = self._start("producer", replace(jobs[0], all_rings=names))
            if watch:
                watch.learn()  # while the children start
            self._await(self._producer, ReplyKind.READY, "starting")
            for consumer in reversed(self._consumers):  # the facts of the first one count
                facts = self._await(consumer, ReplyKind.READY, "filling operands, making plans").value
                assert isinstance(facts, dict)
                self.about = facts
            pace = Pace(len(job.arms))
            for arm, each in enumerate(job.arms):
                self._warm_up(arm, f"of {each.mode} ({pace.place(arm)})")
                pace.finished(arm)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> dict[str, int]:
        """Process id of each child by name."""
        return {child.name: child.pid for child in self._children}

    def _with_team(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the jobs with the memory that consumers share if they split a model."""
        if not jobs[0].is_split:
            return jobs
        with signals.held():
            self._teams.append(new_team(jobs))
            self._holds.enter_context(held(FOLDER / self._teams[0].name))
        return [replace(job, team=member(job, self._teams[0])) for job in jobs]

    def _with_rings(self, job: Job) -> Job:
        """Return the job of a consumer with the names of new rings."""
        self._forward.append(self._new_ring(job.capacity))
        if job.stream.has_steps:
            self._new_ring(job.back_capacity)
        return replace(job, ring_name=self._forward[-1].name, back_name=self._rings[-1].name)

    def _new_ring(self, capacity: int) -> RingSegment:
        """Create a ring and lock it. Other processes remove only unlocked rings, which belong to dead processes."""
        with signals.held():
            ring = RingSegment.create(capacity)
            self._rings.append(ring)
            self._holds.enter_context(held(FOLDER / ring.name))
        return ring

    def _start(self, name: str, job: Job) -> Child:
        with signals.held():
            child = hire(name)
            self._children.append(child)
        child.send_job(job)
        return child

    def _warm_up(self, arm: int, label: str) -> None:
        """Make the runs of an arm that come before its timed runs, so that all of its code and plans are loaded."""
        self._laps.begin("warm-up runs")
        produced = self._start_run(Order(OrderKind.WARM_UP, arm=arm), f"warm-up run {label}")
        self._open_loop = produced.late_max_ns is not None
        if self._stream.has_steps and not is_profiled():  # a profile should show no launches of a check
            self._laps.begin(AUDITS)
            self._start_run(Order(OrderKind.AUDIT, arm=arm), f"audit run {label}, checking steps")

    def run(self, arm: int, repeat: int, label: str) -> tuple[list[RepeatResult], Production]:
        """Run one repeat of the arm with this index. Return the result of each consumer, and the producer's."""
        self._laps.begin("timed runs")
        produced = self._start_run(Order(OrderKind.RUN, arm=arm, repeat=repeat), label)
        self._laps.begin(CHECKS)
        readings = self._watch.end() if self._watch else None
        results = list[RepeatResult]()
        for consumer in self._consumers:
            result = self._await(consumer, ReplyKind.RESULT, f"{label}: checking outputs").value
            assert isinstance(result, RepeatResult)
            results.append(result)
        self._await(self._producer, ReplyKind.READY, f"{label}: preparing commands")
        self._is_counted = False
        self._laps.begin("saving")
        if readings:
            add_readings(results, readings, self._ring.word(HeaderWord.START_NS))
        return results, produced

    def _start_run(self, order: Order, label: str) -> Production:
        for ring in self._rings:
            ring.reset()
        self._is_counted = order.kind is OrderKind.RUN
        for consumer in self._consumers:
            self._send(consumer, order)
        for consumer in self._consumers:
            self._await(consumer, ReplyKind.ARMED, label)
        if self._watch and order.kind is OrderKind.RUN:
            self._watch.begin()
        self._send(self._producer, order)
        moving = (*self._consumers, self._producer)
        produced = self._await(self._producer, ReplyKind.PRODUCED, label, moving).value
        assert isinstance(produced, Production)
        for consumer in self._consumers:
            self._await(consumer, ReplyKind.CONSUMED, label, (consumer,))
        return produced

    def _await(self, child: Child, expected: ReplyKind, label: str, moving: Sequence[Child] = ()) -> Reply:
        """Return the child's next message, which must be `expected`; ChildError when any child fails.

        `moving` are the children that move commands meanwhile. The likeliest to hang is the first.
        """
        self._watchdog.begin(label, timed=bool(moving))
        while True:
            self._progress(label, self._moved(is_checking=expected is ReplyKind.RESULT))
            pause_s = min(POLL_S, self._watch.pause_s()) if self._watch else POLL_S
            if not wait([child.pipe, *(other.process.sentinel for other in self._children)], pause_s) and self._watch:
                self._watch.look()
            if child.pipe.poll():
                reply = self._receive(child)
                if isinstance(reply.value, Failure):
                    raise child.failed(reply.value)
                assert reply.kind is expected, f"{child.name} said {reply.kind}, not {expected}"
                return reply
            for other in self._children:
                if not other.process.is_alive():
                    raise self._death(other)
            self._look_for_flood()
            self._look_for_stall(moving or (child,))

    def _moved(self, is_checking: bool) -> Moved:
        if not self._is_counted:
            return Moved()
        return Moved(self._sum(HeaderWord.TAIL), self._sum(HeaderWord.CHECKED) if is_checking else 0)

    def _sum(self, word: HeaderWord) -> int:
        """Return the sum of a word over the rings of commands, without CLOSED_BIT."""
        return sum(ring.word(word) & ~CLOSED_BIT for ring in self._forward) // self._executions

    def _look_for_flood(self) -> None:
        """Raise RunError if the producer pushed more than it announced: such a run is wrong and might never end."""
        counts = {"announced": self._announced, "pushed": self._sum(HeaderWord.HEAD)}
        if counts["pushed"] > self._announced:
            raise RunError(*differences(counts))

    def _look_for_stall(self, owing: Sequence[Child]) -> None:
        """Kill the child that hangs and raise StalledError, if no command has moved for too long."""
        moving = (HeaderWord.HEAD, HeaderWord.TAIL, HeaderWord.CHECKED)
        words = tuple(ring.word(side) for ring in self._rings for side in moving)
        unanswered = [child for child in owing if len(owing) == 1 or not child.pipe.poll()]
        sides = [(ring.word(HeaderWord.HEAD), ring.word(HeaderWord.TAIL)) for ring in self._forward]
        may_wait = self._open_loop and all(head == tail < CLOSED_BIT for head, tail in sides)
        try:
            self._watchdog.look(words, unanswered, may_wait)
        except StalledError as stalled:
            for child in self._children:
                if child is stalled.child:
                    child.process.kill()
            raise

    def _send(self, child: Child, order: Order) -> None:
        """Send an order; ChildError if the child has ended since its last reply."""
        try:
            child.pipe.send(order)
        except OSError:
            raise self._death(child) from None

    def _receive(self, child: Child) -> Reply:
        try:
            reply: Reply = child.pipe.recv()
        except (EOFError, OSError):
            raise self._death(child) from None
        return reply

    def _death(self, child: Child) -> ChildError:
        """Return why a child ended: its last message if it sent one, else its exit code."""
        with contextlib.suppress(EOFError, OSError):
            while child.pipe.poll(0.2):
                reply: Reply = child.pipe.recv()
                if isinstance(reply.value, Failure):
                    return child.failed(reply.value)
        child.process.join(GRACE_S)
        code = child.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        memory = out_of_memory(self._stream, self._oom_kills) if code == -signal.SIGKILL else ""
        how += memory or out_of_cpu_time(code)
        return ChildError(f"{child.name} {how}", 1)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._release()
        finally:
            self.close()

    def _release(self) -> None:
        """End the job: both children write their results and wait for another job."""
        self._laps.begin("saving")
        for child in self._children:
            self._send(child, Order(OrderKind.DONE))  # to all first: GPUs that split a model wait for each other
        for child in list(self._children):
            ended = self._await(child, ReplyKind.IDLE, "writing results").value
            self.about |= ended if isinstance(ended, dict) else {}
            with signals.held():
                self._children.remove(child)
                keep(child)

    def close(self) -> None:
        """End the children that still work for this job and remove the rings."""
        with contextlib.suppress(Exception):
            for each in (*self._forward, *self._teams):
                each.stop()
        try:
            end_all(self._children)
            self._children.clear()
        finally:
            for segment in (*self._rings, *self._teams):
                segment.release()
            self._holds.close()


def consumer_name(job: Job) -> str:
    """Return the name of a consumer's process: `consumer`, and of several `consumer 1` for the second."""
    return f"consumer {job.consumer}" if job.consumer else "consumer"

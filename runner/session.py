"""The parent's side of a run: starts producer and consumer, takes them through the runs, ends them whatever happens.

It sleeps on their pipes and sentinels, never spins. A child that dies ends the session with a RunError that
carries the child's own text; nothing is left behind: no process, no shared memory.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from launchopt.errors import RunError
from launchopt.producer import Production
from launchopt.ring import STOP, TAIL, Ring
from runner.child import consumer_main, producer_main
from runner.job import Job

POLL_S = 0.1  # between two looks at the ring's tail, for the progress bar
GRACE_S = 5.0  # for a child to end by itself

Progress = Callable[[str, int], None]  # what is going on, commands popped so far


class ChildError(RunError):
    """A child failed; `trace` is its traceback where the failure was not foreseen."""

    def __init__(self, text: str, exit_code: int, trace: str = "") -> None:
        super().__init__(text)
        self.exit_code, self.trace = exit_code, trace


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """A child started in here never feels Ctrl-C, not even while it imports: the parent decides what it means."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Child:
    """A process and the parent's end of its pipe."""

    def __init__(self, name: str, target: Callable[[Job, Connection], None], job: Job) -> None:
        context = get_context("spawn")  # never fork: a forked CUDA context, or BLAS pool, is broken
        self.name = name
        self.pipe, other = context.Pipe()
        self.process: BaseProcess = context.Process(target=target, args=(job, other), name=f"launchopt-{name}")
        with _interrupts_held():
            self.process.start()
        other.close()

    def end(self) -> None:
        """Wait a little, then insist."""
        with contextlib.suppress(OSError):
            self.pipe.send(("stop",))
        self.process.join(GRACE_S)
        for insist in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                insist()
                self.process.join(GRACE_S)
        self.pipe.close()
        self.process.close()


class Session:
    """Both children of one job. A context manager; `about` is the consumer's word on device and ceilings."""

    def __init__(self, job: Job, progress: Progress) -> None:
        self._progress = progress
        self._children: list[_Child] = []
        self._ring = Ring.create(job.capacity)
        self.about: dict[str, Any] = {}
        try:
            job = replace(job, ring_name=self._ring.name)
            self._consumer = self._start("consumer", consumer_main, job)
            self._producer = self._start("producer", producer_main, job)
            self._await(self._producer, "ready", "starting")
            self.about = self._await(self._consumer, "ready", "starting: operands, plans, warm-up")
            for index, arm in enumerate(job.arms):
                self._rehearse(index, f"rehearsing {arm.mode}")
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, target: Callable[[Job, Connection], None], job: Job) -> _Child:
        child = _Child(name, target, job)
        self._children.append(child)
        return child

    def _rehearse(self, index: int, label: str) -> None:
        """The first commands through the whole path, unrecorded: loads every compiled loop before a clock starts."""
        self._start_run("rehearse", index, 0, label)

    def run(self, index: int, repeat: int, label: str) -> tuple[dict[str, Any], Production]:
        """One repeat of arm `index`: the consumer's result and the producer's."""
        produced = self._start_run("run", index, repeat, label)
        result: dict[str, Any] = self._await(self._consumer, "result", f"{label}: checking every output")
        self._await(self._producer, "ready", label)
        return result, produced

    def _start_run(self, kind: str, index: int, repeat: int, label: str) -> Production:
        self._ring.reset()
        self._consumer.pipe.send((kind, index, repeat))
        self._await(self._consumer, "armed", label)
        self._producer.pipe.send((kind,))
        produced: Production = self._await(self._producer, "produced", label)
        self._await(self._consumer, "consumed", label)
        return produced

    def _await(self, child: _Child, expected: str, label: str) -> Any:
        """The value of the child's next message, which must be `expected`; ChildError when any child fails."""
        while True:
            self._progress(label, self._ring.word(TAIL))
            wait([child.pipe, *(other.process.sentinel for other in self._children)], POLL_S)
            if child.pipe.poll():
                name, value = self._receive(child)
                if name == "error":
                    raise ChildError(f"{child.name}: {value[0]}", value[1], value[2])
                assert name == expected, f"{child.name} said {name}, not {expected}"
                return value
            for other in self._children:
                if not other.process.is_alive():
                    raise self._death(other)

    def _receive(self, child: _Child) -> tuple[str, Any]:
        try:
            message: tuple[str, Any] = child.pipe.recv()
        except (EOFError, OSError):
            raise self._death(child) from None
        return message

    def _death(self, child: _Child) -> ChildError:
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
        self.close()

    def close(self) -> None:
        """Stop both children, remove the ring."""
        with contextlib.suppress(Exception):
            self._ring.set_word(STOP, 1)
        try:
            for child in self._children:
                child.end()
            self._children.clear()
        finally:
            self._ring.release()

"""The child processes of a run, which all jobs of a sweep share.

The first job spawns a producer and a consumer. When a job ends well both wait for the next one, with their imports,
CUDA context and compiled loops. A child whose job failed is ended. A caller of `hire` calls `dismiss` at its end.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Iterable
from multiprocessing import Pipe
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING

from launchopt import caches
from launchopt.errors import RunError
from runner.ending.signals import signals
from runner.worker.child import consumer_main, producer_main
from runner.worker.lifeline import bound_process, start
from runner.worker.messages import Failure, Order, OrderKind

if TYPE_CHECKING:
    from runner.plan.job import Job

GRACE_S = 5.0  # a child may take this long to exit before it is killed

NAMES = ("consumer", "producer")
_waiting: dict[str, Child] = {}
os.register_at_fork(after_in_child=_waiting.clear)  # they are children of the process that forked


class ChildError(RunError):
    """A child failed. `trace` is its traceback if no part of this program expected the error, else empty."""

    def __init__(self, text: str, exit_code: int, trace: str = "") -> None:
        super().__init__(text)
        self.exit_code, self.trace = exit_code, trace


class Child:
    """A process and the parent's end of its pipe."""

    def __init__(self, name: str) -> None:
        mains = {"consumer": consumer_main, "producer": producer_main}
        main = mains[name.partition(" ")[0]]  # `consumer 1` is the second of several
        caches.prepare()
        self.name, self.has_worked = name, False
        self.pipe, other = Pipe()
        self.process = bound_process(main, (other,), f"launchopt-{name.replace(' ', '-')}")
        start(self.process)
        other.close()
        self._at_exit = Finalize(None, self.end, exitpriority=0)  # else this process would wait for it as it exits

    @property
    def pid(self) -> int:
        """Process id of the child."""
        assert self.process.pid is not None
        return self.process.pid

    def failed(self, failure: Failure) -> ChildError:
        """Return the error of this child's message of a failure."""
        return ChildError(f"{self.name}: {failure.text}", failure.exit_code, failure.trace)

    def send_job(self, job: Job) -> None:
        """Send a job from a thread: the call blocks if the job exceeds the pipe's buffer and the child hangs."""
        self.has_worked = True
        threading.Thread(target=self._send, args=(Order(OrderKind.JOB, job),), daemon=True).start()

    def _send(self, order: Order) -> None:
        with contextlib.suppress(OSError):  # the child died; its sentinel reports that
            self.pipe.send(order)

    def ask_to_exit(self) -> None:
        """Send an EXIT, unless the pipe is full of orders that the child has not read."""
        with contextlib.suppress(OSError, ValueError):
            if select.select([], [self.pipe], [], 0)[1]:
                self.pipe.send(Order(OrderKind.EXIT))

    def end(self, grace_s: float = GRACE_S) -> None:
        """Ask the child to exit; kill it after `grace_s`, or at once if it had no job. SIGKILL ends a stopped one."""
        self._at_exit.cancel()
        self.ask_to_exit()
        self.process.join(grace_s if self.has_worked else 0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(GRACE_S)
        self.pipe.close()
        if not self.process.is_alive():  # else it is stuck in a system call and ends after that
            self.process.close()


def end_all(children: Iterable[Child]) -> None:
    """Ask children to exit, and kill those that have not ended after GRACE_S."""
    until_s = time.monotonic() + GRACE_S
    asked = list(children)
    for child in asked:
        child.ask_to_exit()
    for child in asked:
        child.end(max(0.0, until_s - time.monotonic()))


def hire(name: str) -> Child:
    """Return the waiting child of this name; start one if none waits. Call it with signals held."""
    child = _waiting.pop(name, None)
    if child is not None and child.process.is_alive():
        return child
    if child is not None:
        child.end()
    return Child(name)


def out_of_cpu_time(code: int | None) -> str:
    """Return what to say of a child that a limit of CPU time ended; no text if it was another cause. code: its own.

    Linux sends SIGXCPU at the soft limit, and SIGKILL at the hard one.
    """
    _, hard_s = resource.getrlimit(resource.RLIMIT_CPU)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    is_hard = code == -signal.SIGKILL and 0 <= hard_s <= used.ru_utime + used.ru_stime + 1.0
    return ": it reached the limit of CPU time (ulimit -t)" if is_hard or code == -signal.SIGXCPU else ""


def start_early() -> None:
    """Start the children that the next job needs, unless they wait already."""
    with signals.held():
        for name in NAMES:
            keep(hire(name))


def keep(child: Child) -> None:
    """Keep a child that ended its job well, for the next job."""
    _waiting[child.name] = child


def dismiss(*, only_used: bool = False) -> None:
    """End the children that wait for a job. only_used: keep those that had none yet."""
    ended = [child for child in _waiting.values() if child.has_worked or not only_used]
    for child in ended:
        child.ask_to_exit()  # all of them first: each takes a moment to end
    for child in ended:
        child.end()
        del _waiting[child.name]

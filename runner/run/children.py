"""The child processes, and how they are kept from one job of a sweep to the next.

A producer and a consumer are spawned when the first job needs them, and wait for the next job when one has ended
well: the imports, the CUDA context and the compiled loops are then there already. A child whose job went wrong in any
way is ended, never kept. Whoever hires children calls `dismiss` in the end.
"""

from __future__ import annotations

import contextlib
import select
import signal
import threading
from collections.abc import Iterator
from multiprocessing import get_context, resource_tracker
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

GRACE_S = 5.0  # for a child to end by itself

NAMES = ("consumer", "producer")
_remembered: list[int] = []
_waiting: dict[str, Child] = {}


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """A child started in here feels no Ctrl-C, SIGTERM or SIGHUP while it imports; the parent decides about them."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        # Neither does Python's tracker of shared memory, which else would die of SIGHUP. It ignores the other two; on
        # its way it unblocks them here.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, held)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Child:
    """A process and the parent's end of its pipe."""

    def __init__(self, name: str) -> None:
        from runner.worker.child import consumer_main, producer_main  # compilers come with them: not for --help

        mains = {"consumer": consumer_main, "producer": producer_main}
        context = get_context("spawn")  # never fork: a forked CUDA context, or BLAS pool, is broken
        self.name = name
        self.pipe, other = context.Pipe()
        # The kernel takes a child along with the thread that started it: only the main thread lives as long as we do.
        bound = threading.current_thread() is threading.main_thread()
        self.process: BaseProcess = context.Process(target=mains[name], args=(other, bound), name=f"launchopt-{name}")
        with _interrupts_held():
            self.process.start()
        other.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self.process.pid is not None
        return self.process.pid

    def send_job(self, job: Any) -> None:
        """Without waiting until it is taken: it may not fit into the pipe, and a child that hangs takes nothing."""
        threading.Thread(target=self._send, args=(("job", job),), daemon=True).start()

    def _send(self, message: tuple[Any, ...]) -> None:
        with contextlib.suppress(OSError):  # it died: its sentinel will tell
            self.pipe.send(message)

    def ask_to_exit(self) -> None:
        """No further job will come."""
        with contextlib.suppress(OSError, ValueError):
            if select.select([], [self.pipe], [], 0)[1]:  # else it has not even read what came before
                self.pipe.send(("exit",))

    def end(self) -> None:
        """Ask, wait a little, then insist: SIGKILL ends a stopped process, too."""
        self.ask_to_exit()
        self.process.join(GRACE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(GRACE_S)
        self.pipe.close()
        if not self.process.is_alive():  # else it is stuck in the kernel, and dies with that
            self.process.close()


def hire(name: str) -> Child:
    """The child of that name that waits for a job, or a new one."""
    child = _waiting.pop(name, None)
    if child is not None and child.process.is_alive():
        return child
    if child is not None:
        child.end()
    return Child(name)


def start_early() -> None:
    """Start both children, where they do not wait already: a job is about to need them.

    Ctrl-C is only remembered from here on: `interrupted` tells whoever takes over, once there is something to put in
    order. (Blocking it would not do: a thread of a library would take it.)
    """
    signal.signal(signal.SIGINT, _remember)
    for name in NAMES:
        keep(hire(name))


def _remember(number: int, frame: FrameType | None) -> None:
    _remembered.append(number)


def interrupted() -> bool:
    """Whether Ctrl-C was pressed since the children were started."""
    return bool(_remembered)


def keep(child: Child) -> None:
    """It has ended its job well and waits for another."""
    _waiting[child.name] = child


def dismiss() -> None:
    """End the children that wait."""
    for child in _waiting.values():
        child.ask_to_exit()  # all at once: they take a moment each
    while _waiting:
        _waiting.popitem()[1].end()

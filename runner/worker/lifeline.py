"""Processes that end with the process that started them, however that one ends.

Linux sends a bound process SIGKILL when the thread that started it ends (PR_SET_PDEATHSIG). `start` therefore starts
each one from a thread that lives as long as its process. A second sign of the parent's end is a pipe, which closes.
`orphans` ends those that were stopped before they could do either.

A named semaphore outlives a SIGKILL. No process of a run makes any, unless a library does. `name_semaphores` gives them
names by which `runner.run.leftovers` finds those of dead processes.

    python -m runner.worker.lifeline PID WORDS...      `python -m runner WORDS...`, bound to the process PID
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import current_process, get_context, parent_process, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from runner.worker.orphans import marked

SEMAPHORES = "launchopt_{pid}"  # start of the name of a semaphore
GRACE_S = 10.0  # of a run that is asked to end
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Bind this process to the process `parent`, which started it. If that has ended, end at once.

    number: of the signal that this process gets when the thread that started it ends.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


class _Bind:
    """Unpickling it binds the process to the one that pickled it."""

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return end_with, (os.getpid(),)


def bound_process(target: Callable[..., None], args: tuple[object, ...], name: str | None = None) -> BaseProcess:
    """Return a process that will run `target(*args)`, bound to this one. `start` starts it."""
    name_semaphores()
    everything = (_Bind(), target, args)  # it is bound before it imports the module of `target`, which takes a while
    # A forked CUDA context or BLAS thread pool does not work.
    return get_context("spawn").Process(target=_bound, args=everything, name=name, daemon=False)


def start(process: BaseProcess) -> None:
    """Start a process from the main thread, or from a thread of this module: other threads may end before it.

    It starts with Ctrl-C, SIGTERM and SIGHUP blocked: a terminal sends them to its parent, too, which ends it.
    """
    if threading.current_thread() is threading.main_thread():
        _start(process)
    else:
        _starter().submit(_start, process).result()


def run_bound(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run `python -m runner` with `words` until it ends. It is bound to this process.

    If an exception, such as Ctrl-C, ends this call, the run is asked to end, and killed after GRACE_S.
    """
    call = [sys.executable, "-m", __name__, str(os.getpid()), *words]
    with marked():
        run = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    with run:
        try:
            outputs = run.communicate()
        except BaseException:
            run.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(GRACE_S)
            run.kill()
            raise
    return subprocess.CompletedProcess(call, run.returncode, *outputs)


def _start(process: BaseProcess) -> None:
    settings = current_process()._config  # type: ignore[attr-defined]
    is_daemon = settings.get("daemon")
    settings["daemon"] = False  # a worker of a pool may start no processes, lest they outlive it; these do not
    try:
        with marked(), _interrupts_held():
            process.start()
    finally:
        settings["daemon"] = is_daemon


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block Ctrl-C, SIGTERM and SIGHUP in this thread during this block, in which a process starts."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        # Start Python's tracker of shared memory here, too, or SIGHUP would end it. Its start unblocks Ctrl-C and
        # SIGTERM in this thread, so all three are blocked again.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, held)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@functools.cache
def _starter() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "launchopt-starter")


os.register_at_fork(after_in_child=_starter.cache_clear)  # a fork has no such thread


def _bound(binding: None, target: Callable[..., None], args: tuple[object, ...]) -> None:
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_wait_for_end, args=(parent.sentinel,), daemon=True).start()
    name_semaphores()
    target(*args)


def _wait_for_end(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def name_semaphores() -> None:
    """Give the named semaphores of this process, which outlive a SIGKILL, names that tell whose they are."""
    settings = current_process()._config  # type: ignore[attr-defined]
    settings["semprefix"] = f"/{SEMAPHORES.format(pid=os.getpid())}"


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    sys.argv[1:] = sys.argv[2:]
    runpy.run_module("runner", run_name="__main__", alter_sys=True)

"""Programs whose processes start the children of a job in unusual ways.

    python -m support.processes.job_starters WAY      one of WAYS

It prints the id of the job's process, and sleeps.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context

from runner.run import children
from runner.worker.lifeline import bound_process, run_bound, start

LONG_S = 300.0


def hire() -> None:
    """Start the children of a job, and print the id of this process."""
    children.start_early()
    print(os.getpid(), flush=True)


def hire_and_sleep() -> None:
    hire()
    time.sleep(LONG_S)


def in_main_thread() -> None:
    hire_and_sleep()


def in_a_thread_that_ends() -> None:
    thread = threading.Thread(target=hire)
    thread.start()
    thread.join()
    time.sleep(LONG_S)


def in_a_worker_of_a_pool() -> None:
    """The worker is a daemon of multiprocessing, which may have no children."""
    with get_context("fork").Pool(1) as pool:
        pool.apply(hire_and_sleep)


def in_a_forked_process() -> None:
    """This process has children of its own, which are none of its fork's."""
    children.start_early()
    if not os.fork():
        hire_and_sleep()
    time.sleep(LONG_S)


def in_a_daemon() -> None:
    """A process without a terminal and without the process that started it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    hire_and_sleep()


def beside_a_fork() -> None:
    """The fork holds the parent's end of every pipe."""
    children.start_early()
    if not os.fork():
        os.setsid()
        time.sleep(LONG_S)
    hire_and_sleep()


def with_a_peer_of_a_benchmark() -> None:
    start(bound_process(time.sleep, (LONG_S,)))
    hire_and_sleep()


def as_a_child_of_the_job() -> None:
    """Of the kind that `doctor --processes` and `bench` start: `python -m runner`."""
    threading.Thread(target=run_long, daemon=True).start()
    hire_and_sleep()


def run_long() -> None:
    """Run for many minutes; if the run ends before, tell why."""
    words = [
        "device=cpu",
        "workload.cache=hot",
        "repeats=1000",
        "against=[]",
        "hydra.run.dir=long",
    ]  # takes little memory
    print(run_bound(words), file=sys.stderr)


WAYS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        in_main_thread,
        in_a_thread_that_ends,
        in_a_worker_of_a_pool,
        in_a_forked_process,
        in_a_daemon,
        beside_a_fork,
        with_a_peer_of_a_benchmark,
        as_a_child_of_the_job,
    )
}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()

"""Limits of this process (ulimit, and the container's) below which libraries abort, crash or print many lines.

A command that finds such a limit ends with one line and exit code 2, before it imports a library. This module therefore
imports little.
"""

from __future__ import annotations

import os
import resource
import sys

TYPE_CHECKING = False  # that of `typing` takes 4 ms
if TYPE_CHECKING:
    from typing import NoReturn

EXIT_CODE = 2
FILES = 64  # open at the same time; a run has 20
READING_BYTES, RUNNING_BYTES = 2 << 30, 3 << 30  # of address space, most of which is never used; 2 cores measured
BYTES_A_CORE = 40 << 20  # that each thread of BLAS adds
BLAS_THREADS = 64  # maximum
FEW_THREADS = 4096  # a limit below this is tried out
THREADS_MAX = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")  # the container's limit; cgroups v2 and v1


def require(is_run: bool) -> None:
    """End the process if a limit is too low. is_run: for a run with its child processes, not for a reading command."""
    _require_files()
    _require_bytes(is_run)
    _require_threads(is_run)


def _require_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _is_below(soft, FILES):
        if _is_below(hard, FILES):
            _refuse(f"ulimit -n: at most {hard} open files are allowed, and launchopt needs {FILES}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))


def _require_bytes(is_run: bool) -> None:
    cores = min(len(os.sched_getaffinity(0)), BLAS_THREADS)
    needed = (RUNNING_BYTES if is_run else READING_BYTES) + BYTES_A_CORE * cores
    for option, limit, what in (("-v", resource.RLIMIT_AS, "address space"), ("-d", resource.RLIMIT_DATA, "data")):
        soft, _ = resource.getrlimit(limit)
        if _is_below(soft, needed):
            who = "a run" if is_run else "launchopt"
            _refuse(
                f"ulimit {option} {soft >> 10}: {soft >> 20} MiB of {what} are allowed, and {who} needs {needed >> 20}"
            )


def _require_threads(is_run: bool) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if not _is_below(
        min([soft, *_containers_limit()], key=lambda each: sys.maxsize if each < 0 else each), FEW_THREADS
    ):
        return
    cores = len(os.sched_getaffinity(0))
    needed = 8 * (cores + 1) if is_run else 4 * (cores + 2)  # with 2 cores a run has 14, a report 10
    started = _started(needed)
    if started < needed:
        who = "a run" if is_run else "launchopt"
        _refuse(
            f"ulimit -u, or the container's pids limit: {started} more threads are allowed, and {who} needs {needed}"
        )


def _containers_limit() -> list[int]:
    for path in THREADS_MAX:
        try:
            with open(path) as file:  # noqa: PTH123 (pathlib takes 5 ms)
                text = file.read().strip()
        except OSError:
            continue
        return [int(text)] if text.isdecimal() else []
    return []


def _started(most: int) -> int:
    """Return how many threads can run beside this one at the same time, at most `most`."""
    import threading

    is_done, threads = threading.Event(), []
    before = threading.stack_size(256 << 10)
    try:
        for _ in range(most):
            thread = threading.Thread(target=is_done.wait)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        pass
    finally:
        threading.stack_size(before)
        is_done.set()
    for thread in threads:
        thread.join()
    return len(threads)


def _is_below(limit: int, needed: int) -> bool:
    return 0 <= limit < needed  # RLIM_INFINITY is -1


def _refuse(why: str) -> NoReturn:
    print(f"error: {why}", file=sys.stderr, flush=True)
    sys.exit(EXIT_CODE)

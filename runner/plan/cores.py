"""Cores of its own for each job of a sweep whose jobs run side by side on one machine.

A job process locks a set of cores (`pool`). The process and its children are bound to its cores. A producer and a
consumer need LEAST cores. Where there are fewer, the processes share all of them, and `shares` says so: a rate measured
then is not compared with a ceiling. A process that has cores of its own, and is joined by one that shares them, says
so, too.

Runs outside of such sweeps lock nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from runner.plan.pool import Pool

LEAST = 2  # cores of a job
# Variables, which the children of a job inherit.
OWN, SHARED, AT_ONCE = "LAUNCHOPT_OWN_CORES", "LAUNCHOPT_SHARED_CORES", "LAUNCHOPT_JOBS_AT_ONCE"
_SHARING = "sharing"
_SIBLINGS = "/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"


def take(at_once: int, folder: Path | None = None) -> list[int]:
    """Bind this process to cores of its own for its lifetime, or share all; return them. at_once: jobs on them."""
    os.environ[AT_ONCE] = str(at_once)
    cores = usable()
    share = len(cores) // max(1, at_once)
    pool = Pool(folder)
    is_usable = pool.is_usable()
    for own in _sets(cores, share) if is_usable and share >= LEAST else ():
        if pool.take([f"core-{core}" for core in own]):
            os.sched_setaffinity(0, own)
            os.environ[OWN] = str(pool.folder)
            return own
    if is_usable:
        pool.share(_SHARING)
    why = f"{at_once} jobs at once" if share < LEAST else "other sweeps"
    os.environ[SHARED] = f"{len(cores)} cores with {why}"
    return cores


def usable() -> list[int]:
    """Return the cores that this process may use, with the hardware threads of one core next to each other."""
    return sorted(os.sched_getaffinity(0), key=_place)


def own() -> list[int] | None:
    """Return the cores that this process has locked; None if it has not."""
    return sorted(os.sched_getaffinity(0)) if os.environ.get(OWN) else None


def shares(since_s: float) -> str | None:
    """Return with whom this process has shared its cores since a time, of `time.time`; None if they were its own."""
    if found := os.environ.get(SHARED):
        return found
    if (folder := os.environ.get(OWN)) and Pool(Path(folder)).is_shared(_SHARING, since_s):
        return "its cores with other sweeps"
    return None


def _sets(cores: list[int], share: int) -> Iterator[list[int]]:
    """Yield the sets that cores are divided into."""
    for first in range(0, len(cores) - share + 1, share):
        yield cores[first : first + share]


def _place(core: int) -> tuple[int, int]:
    """Return a key that keeps the hardware threads of one core together."""
    try:
        first = Path(_SIBLINGS.format(core=core)).read_text().replace("-", ",").partition(",")[0]
        return int(first), core
    except (OSError, ValueError):
        return core, core

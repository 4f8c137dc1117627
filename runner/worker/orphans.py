"""Stopped processes that a killed run left.

A process asks Linux to end it with its parent (`lifeline`) as soon as it can, some 20 ms after its start. If it is
stopped (SIGSTOP) before that, and then its parent is killed, no signal ends it. Python's tracker of shared memory never
asks. Each process that a run starts therefore has the environment variable MARK, which names the run's process.
`end_orphans` kills processes of this user that have a mark, are stopped, and whose run has ended. A process that is not
stopped notices the end of its parent.

A process that is stopped in the fraction of a millisecond before its program is loaded (between fork and exec) has no
mark, and stays.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

MARK = "LAUNCHOPT_STARTED_BY"  # `PID START NAMESPACE`: ids are used again, and another container has other ids
_PROC = Path("/proc")
_ENDED, _STOPPED = "ZX", "T"  # states in /proc/PID/stat
_STATE, _START = 0, 19  # places in the part of /proc/PID/stat after the name of the program
_changing = threading.Lock()  # the environment: a process that starts meanwhile could get a part of it
os.register_at_fork(after_in_child=_changing._at_fork_reinit)  # type: ignore[attr-defined]


def mark() -> dict[str, str]:
    """Return the variable that names this process as the one that started another; none without /proc."""
    try:
        return {MARK: f"{os.getpid()} {_about(os.getpid())[_START]} {_namespace()}"}
    except OSError:
        return {}


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Let the environment, which processes inherit, name this process during this block, for one thread at a time."""
    with _changing:
        before = os.environ.get(MARK)
        os.environ.update(mark())
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(MARK, None)
            else:
                os.environ[MARK] = before


def orphans() -> dict[int, int]:
    """Return the ids of stopped processes whose run has ended, and the id of each one's run."""
    found = {}
    for each in _PROC.iterdir() if _PROC.is_dir() else ():
        if each.name.isdecimal() and (owner := _dead_owner(int(each.name))) is not None:
            found[int(each.name)] = owner
    return found


def end_orphans() -> dict[int, int]:
    """Kill the processes that `orphans` returns, and return those that were killed."""
    killed = {}
    for pid, owner in orphans().items():
        with contextlib.suppress(OSError):  # it ended meanwhile
            handle = os.pidfd_open(pid)
            try:
                if _dead_owner(pid) == owner:  # the id still belongs to the same process
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed[pid] = owner
            finally:
                os.close(handle)
    return killed


def _dead_owner(pid: int) -> int | None:
    """Return the id of the process that a stopped process has as its mark; None if that lives, or there is none."""
    try:
        if (_PROC / str(pid)).stat().st_uid != os.geteuid() or _about(pid)[_STATE] != _STOPPED:
            return None
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        own = str((_PROC / str(pid) / "ns/pid").readlink())
    except OSError:
        return None
    name = f"{MARK}=".encode()
    mark = next((each.removeprefix(name) for each in variables if each.startswith(name)), b"").decode(errors="replace")
    owner, _, rest = mark.partition(" ")
    start, _, namespace = rest.partition(" ")
    if not owner.isdecimal() or not start.isdecimal() or not namespace == own == _namespace():
        return None
    return None if _lives(int(owner), start) else int(owner)


def _lives(pid: int, start: str) -> bool:
    try:
        about = _about(pid)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # not known
    return about[_START] == start and about[_STATE] not in _ENDED


def _about(pid: int) -> list[str]:
    """Return what the kernel says of a process, from its state on; OSError if there is no such process."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except ProcessLookupError:  # it ended between opening and reading
        raise FileNotFoundError from None


def _namespace() -> str:
    return str((_PROC / "self/ns/pid").readlink())

"""Limits of a call: processor seconds and memory of this process, for hostile input."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn


class TooMuchTime(BaseException):
    """The call took too many processor seconds. It is no Exception, so that code under test cannot catch it."""


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise TooMuchTime


def address_space_bytes() -> int:
    """Return the size of this process's address space."""
    statm = Path("/proc/self/statm").read_text()
    return int(statm.split()[0]) * resource.getpagesize()


@contextmanager
def limited(cpu_s: float, more_bytes: int) -> Iterator[None]:
    """Raise TooMuchTime after `cpu_s` seconds of all threads, MemoryError beyond `more_bytes` more than now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes() + more_bytes, hard))
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, handler)

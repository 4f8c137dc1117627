"""A ceiling on what a call may take: processor seconds and memory of this process. For input that means harm."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn


class TooMuchTime(BaseException):
    """Not an Exception: nothing that is under test may catch it."""


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise TooMuchTime


def address_space_bytes() -> int:
    """Of this process, now."""
    statm = Path("/proc/self/statm").read_text()
    return int(statm.split()[0]) * resource.getpagesize()


@contextmanager
def limited(cpu_s: float, more_bytes: int) -> Iterator[None]:
    """TooMuchTime after so many processor seconds of all threads; MemoryError beyond so many bytes more than now."""
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

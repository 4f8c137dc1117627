"""A second process for benchmarks between two processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from runner.worker.lifeline import bound_process, start

Result = TypeVar("Result")


def with_peer(target: Callable[..., None], args: tuple[object, ...], work: Callable[[], Result]) -> Result:
    """Return the result of `work` while a spawned process runs `target`. That process has 30 s to end afterwards."""
    peer = bound_process(target, args)
    start(peer)
    try:
        result = work()
        peer.join(30)
        return result
    finally:
        peer.kill()

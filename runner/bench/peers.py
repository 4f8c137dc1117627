"""A second process for benchmarks between two processes."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from typing import TypeVar

Result = TypeVar("Result")


def with_peer(target: Callable[..., None], args: tuple[object, ...], work: Callable[[], Result]) -> Result:
    """Return the result of `work` while a spawned process runs `target`. That process has 30 s to end afterwards."""
    peer = get_context("spawn").Process(target=target, args=args, daemon=True)
    peer.start()
    try:
        return work()
    finally:
        peer.join(30)
        peer.kill()

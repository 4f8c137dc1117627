"""A process beside the one that measures."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from typing import Any


def with_peer(target: Callable[..., None], args: tuple[Any, ...], work: Callable[[], Any]) -> Any:
    """What `work` returns while a spawned process runs `target`; then that has 30 s to end."""
    peer = get_context("spawn").Process(target=target, args=args, daemon=True)
    peer.start()
    try:
        return work()
    finally:
        peer.join(30)
        peer.kill()

"""Further processes for benchmarks between processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from runner.worker.lifeline import bound_process, start

Result = TypeVar("Result")


def with_peer(target: Callable[..., None], args: tuple[object, ...], work: Callable[[], Result]) -> Result:
    """Return the result of `work` while a spawned process runs `target`. That process has 30 s to end afterwards."""
    return with_peers(target, [args], work)


def with_peers(
    target: Callable[..., None], args_of_each: Sequence[tuple[object, ...]], work: Callable[[], Result]
) -> Result:
    """Return the result of `work` while spawned processes run `target`, each with its arguments. As `with_peer`."""
    peers = [bound_process(target, args) for args in args_of_each]
    try:
        for peer in peers:
            start(peer)
        result = work()
        for peer in peers:
            peer.join(30)
        return result
    finally:
        for peer in peers:
            if peer.pid is not None:
                peer.kill()

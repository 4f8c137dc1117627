"""The driver of consumers that split a model: each gets every record in one order, and a step ends when all have it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.steps.driver_runs import AHEAD, CONTINUOUS, NONE, PATIENCE_S, Peer, Run, stream_of

from launchopt.errors import Interrupted, RunError
from launchopt.producing.production import Schedule, Tokens
from launchopt.producing.split_driver import SplitDriver
from launchopt.queue.ring import Ring
from launchopt.queue.segment import HeaderWord
from launchopt.streams.chains.chain import ChainStream

SIZES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)).filter(any), min_size=1, max_size=6)


class Rank(Peer):
    """A consumer that samples like the others."""

    def choose(self, request: int, token: int) -> int:
        """Return the id that follows from request and token."""
        return (request * 7919 + token * 104_729) % 32_000


class OddRank(Rank):
    """A consumer that samples another token once."""

    def choose(self, request: int, token: int) -> int:
        """Return an id of its own for one token."""
        return super().choose(request, token) + ((request, token) == (1, 2))


def play(
    stream: ChainStream, schedule: Schedule, capacity: int, kinds: Sequence[type[Peer]], seed: int
) -> tuple[list[Peer], tuple[Tokens, int, int]]:
    """Run a driver against several consumers until all rings are drained; return these, and the driver's result."""
    back_capacity, found = max(2, 1 << stream.requests.bit_length()), dict[str, Any]()
    with ExitStack() as stack:
        rings = [stack.enter_context(Ring.create(capacity)) for _ in kinds]
        backs = [stack.enter_context(Ring.create(back_capacity)) for _ in kinds]

        def drive() -> None:
            try:
                found["result"] = SplitDriver(stream, schedule, 20, 50).run(rings, backs)
            except Exception as error:
                found["error"] = error

        thread = threading.Thread(target=drive, daemon=True)
        thread.start()
        runs = [cast(Run, SimpleNamespace(ring=ring, back=back)) for ring, back in zip(rings, backs, strict=True)]
        ahead, end = schedule.ahead, time.monotonic() + PATIENCE_S
        peers = [
            kind(stream, run, seed + at, ahead=ahead) for at, (kind, run) in enumerate(zip(kinds, runs, strict=True))
        ]
        while thread.is_alive():
            assert time.monotonic() < end, "driver and consumers wait for each other"
            for peer, ring in zip(peers, rings, strict=True):
                if ahead and peer.random.random() < 0.3:
                    peer.left = len(peer.records)
                    ring.set_word(HeaderWord.STEPS_LEFT, peer.left)
                if peer.random.random() < 0.6:
                    peer.pop()
                else:
                    peer.answer()
        thread.join()
        if "error" in found:
            raise found["error"]
        for peer in peers:
            peer.check(found["result"][0], found["result"][1])
    return peers, found["result"]


@settings(deadline=None, max_examples=25)
@given(
    sizes=SIZES,
    chunk=st.none() | st.integers(1, 6),
    vocab=st.sampled_from([None, 50]),
    schedule=st.sampled_from([NONE, CONTINUOUS, AHEAD]),
    capacity=st.sampled_from([2, 16, 256]),
    ranks=st.integers(2, 4),
    seed=st.integers(0, 99),
)
def test_every_consumer_gets_every_record_in_one_order(
    sizes: list[tuple[int, int]],
    chunk: int | None,
    vocab: int | None,
    schedule: Schedule,
    capacity: int,
    ranks: int,
    seed: int,
) -> None:
    peers, _ = play(stream_of(sizes, chunk=chunk, vocab=vocab), schedule, capacity, [Rank] * ranks, seed)
    first = np.array(peers[0].records)
    for peer in peers[1:]:
        other = np.array(peer.records)
        assert all((first[name] == other[name]).all() for name in first.dtype.names if name != "turn")


def test_consumers_that_sample_different_tokens_end_the_run() -> None:
    with pytest.raises(RunError, match="1 tokens are not the same on all GPUs that split the model"):
        play(stream_of([(3, 4)] * 3, vocab=50), NONE, 64, [Rank, OddRank], seed=1)


def test_the_driver_ends_when_the_parent_says_stop() -> None:
    stream = stream_of([(3, 4)] * 3)
    with Ring.create(64) as ring, Ring.create(4) as back:
        ring.set_word(HeaderWord.STOP, 1)
        with pytest.raises(Interrupted, match="stopped while requests were under way"):
            SplitDriver(stream, NONE, 20, 50).run([ring], [back])

"""Counts of a run: its commands at each point of their path, those of one consumer, and the fewest launches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from launchopt.modes.base import Mode
from launchopt.queue.ring import Ring
from launchopt.queue.segment import CLOSED_BIT, HeaderWord
from launchopt.recording.recorder import Counted, Recorder
from launchopt.streams.chains.chain import Stream
from runner.worker.chains import Chains


def least_launches(stream: Stream, mode: Mode, limits: list[int]) -> int:
    """Return the minimum number of launches of a run. limits: as of `Arm.buckets`."""
    if mode.merges_shapes or mode.whole_pass(stream):
        return stream.commands // limits[0]
    counts = (stream.counts[shape] for shape in stream.shapes)
    return sum(-(-count // limit) for count, limit in zip(counts, limits, strict=True))


def own_work(stream: Stream, recorder: Recorder, chains: Chains | None) -> NDArray[np.bool_]:
    """Return whether this consumer executed each request, or each independent command."""
    if chains is None:
        return recorder.ran()[0]
    own = np.zeros(stream.requests, np.bool_)
    own[chains.own()] = True
    return own


def counts_of(ring: Ring, recorder: Recorder, counted: Counted) -> dict[str, int]:
    """Return the number of commands at four points of the path, each from a counter of its own."""
    return {
        "pushed": ring.word(HeaderWord.HEAD) & ~CLOSED_BIT,
        "popped": ring.word(HeaderWord.TAIL),
        "executed": recorder.command_count,
        "recorded": counted.distinct,
    }

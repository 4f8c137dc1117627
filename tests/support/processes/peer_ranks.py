"""A rank of the tests of all-reduces: importable by name, as `spawn` needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launchopt.command import Dtype, Op
from launchopt.devices.peers.host import HostPeers
from launchopt.devices.peers.segment import Team

ROUNDS = 200


class Sizes(NamedTuple):
    """Elements of a part, and bytes of a rank's memory: two parts and a sum."""

    part: int
    memory_bytes: int


SIZES = Sizes(64, 3 * 64 * 4)


def parts_of(rank: int, rounds: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the first element of a rank's part in each round."""
    return ((rank + 1) * 1000 + rounds).astype(np.float32)


def add_in_rounds(member: Team) -> NDArray[np.float32]:
    """Add parts in many rounds, in two places in turn; return the first element of each sum."""
    peers, found = HostPeers(member, Dtype.fp32, 3 * SIZES.part), np.zeros(ROUNDS, np.float32)
    places = peers.own.reshape(3, 1, 1, SIZES.part)
    values = parts_of(member.rank, np.arange(ROUNDS))
    for number in range(ROUNDS):
        places[number % 2][...] = values[number]
        peers.exchange(Op.ALL_REDUCE, [(places[number % 2], places[2])])
        found[number] = places[2].max()
        assert places[2].min() == found[number]
    del places
    peers.close()
    return found

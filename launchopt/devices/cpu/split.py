"""One rank of a model that several processes of the CPU device split: its arenas, its weights and its all-reduces."""

from __future__ import annotations

import numpy as np

from launchopt.devices.arenas import Arenas
from launchopt.devices.peers.host import HostPeers
from launchopt.devices.peers.segment import Collectives, Team
from launchopt.devices.shares import WeightShares, sources_of
from launchopt.streams.chains.chain import ChainStream


class CpuSplit:
    """Allocates the arenas of a rank, those of activations in memory that all ranks share, and copies its weights."""

    def __init__(self, stream: ChainStream, seed: int, team: Team) -> None:
        arena = stream.activations
        self.peers = HostPeers(team, stream.dtype, stream.arenas[arena] * arena.cols)
        self.arenas = Arenas(np, stream.arenas, stream.fills, sources_of(stream, self.peers.own))
        self.arenas.peers, self.arenas.rank = self.peers.others, team.rank
        self.shares = WeightShares(stream, np, team.rank, seed)
        self.shares.copy_to(self.arenas)
        self.updates_graphs = True

    def reset(self) -> None:
        """Begin a run."""
        self.peers.reset()

    def collectives(self) -> Collectives:
        """Return the all-reduces of this run."""
        return self.peers.collectives()

    def close(self) -> None:
        """Detach from the memory of the other ranks."""
        self.arenas.peers = ()
        self.arenas.arrays.clear()
        self.peers.close()

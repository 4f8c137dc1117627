"""elementwise_chain: bias, ReLU and scale. One launch could replace these three, which do hardly any work.

The vectors are small, and by default there is one copy of them. A cold cache would need more copies than a run has
steps, so each step would use new addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

from launchopt.arrivals.requests import Requests
from launchopt.options import option
from launchopt.streams.chains.program import Program, elementwise_program
from launchopt.streams.footprint import Cache
from launchopt.streams.model import ModelShape
from launchopt.workloads.base import OwnSize


@dataclass(slots=True)
class ElementwiseChain(OwnSize):
    """Bias, ReLU and scale, without a GEMM."""

    name: str = "elementwise_chain"
    cache: Cache = option(Cache.hot, "cold: inputs cycle over at least 4x the cache; hot: they fit in half of it")
    replicas: int | None = option(1, "copies of all layers; null: what `cache` asks for", low=1)

    def program(self, model: ModelShape, requests: Requests) -> Program:
        """Return the three ops of a layer."""
        return elementwise_program(self.hidden)

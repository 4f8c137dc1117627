"""linear_epilogue: a linear layer, its bias and its ReLU. One launch could replace these three."""

from __future__ import annotations

from dataclasses import dataclass

from launchopt.arrivals.requests import Requests
from launchopt.streams.chains.program import Program, linear_epilogue_program
from launchopt.streams.model import ModelShape
from launchopt.workloads.base import OwnSize


@dataclass(slots=True)
class LinearEpilogue(OwnSize):
    """A linear layer, its bias and its activation."""

    name: str = "linear_epilogue"

    def program(self, model: ModelShape, requests: Requests) -> Program:
        """Return the three ops of a layer: GEMM, bias and ReLU."""
        return linear_epilogue_program(self.hidden)

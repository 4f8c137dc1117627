"""bottleneck: a linear layer to a few features, a ReLU, and one back."""

from __future__ import annotations

from dataclasses import dataclass

from launchopt.interface import INPUT, ModelShape, Node, Op, OwnSize, Program, Requests, option


@dataclass(slots=True)
class Bottleneck(OwnSize):
    """Down, ReLU, up."""

    name: str = "bottleneck"
    narrow: int = option(64, "features between the two layers", low=1)

    def program(self, model: ModelShape, requests: Requests) -> Program:
        """Return the three ops of a layer."""
        down = Node("down", Op.GEMM, self.narrow, self.hidden, INPUT)
        relu = Node("relu", Op.RELU, self.narrow, self.narrow, "down")
        up = Node("up", Op.GEMM, self.hidden, self.narrow, "relu")
        return Program((down, relu, up), self.hidden)

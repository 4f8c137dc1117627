"""qkv: token after token through a model's linear layers, with q, k and v as three launches instead of one."""

from __future__ import annotations

from dataclasses import dataclass

from launchopt.arrivals.requests import Requests
from launchopt.streams.chains.program import Program, qkv_program
from launchopt.streams.model import ModelShape
from launchopt.workloads.base import Steps


@dataclass(slots=True)
class Qkv(Steps):
    """A model's linear layers, with q, k and v as separate GEMMs."""

    name: str = "qkv"

    def program(self, model: ModelShape, requests: Requests) -> Program:
        """Return a layer of six GEMMs: q, k, v, o, gate and up as one, and down."""
        return qkv_program(model)

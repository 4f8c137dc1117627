"""Workloads whose steps are more than a chain of GEMMs: what their groups may hold, and the program each asks for.

In: a checked workload and model, and the requests. Out: a `Program` of one layer. All of them are steps of requests, so
order is always kept: `ordering=none` is refused (`schema`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from omegaconf import MISSING

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.options import within
from launchopt.workloads.footprint import Cache
from launchopt.workloads.model import ModelShape
from launchopt.workloads.program import (
    Program,
    elementwise_program,
    layer_program,
    linear_epilogue_program,
    qkv_program,
)
from runner.config.groups import MOST_LAYERS


class Kv(enum.Enum):
    """How the KV cache of a request lies in memory."""

    contiguous = "contiguous"
    paged = "paged"


@dataclass(slots=True)
class Steps:
    """What all of these workloads have."""

    name: str = MISSING
    requests: int = 1  # side by side in a closed loop, else in all; a replay takes its own
    prompt_tokens: int = 0  # columns of a prompt before the first token; a replay takes its own
    tokens: int = 64  # generated a request; a replay takes its own
    layers: int | None = None  # None: all of the model's, or as many as fit into memory (said aloud)
    dtype: Dtype = Dtype.fp32
    cache: Cache = Cache.cold
    replicas: int | None = None

    def __post_init__(self) -> None:
        for key in ("requests", "tokens", "replicas"):
            within(f"workload.{key}", getattr(self, key), 1)
        within("workload.layers", self.layers, 1, MOST_LAYERS)
        within("workload.prompt_tokens", self.prompt_tokens, 0)


@dataclass(slots=True)
class Layer(Steps):
    """A transformer's layer, all of its launches."""

    layers: int | None = 1
    kv: Kv = Kv.contiguous
    page_tokens: int = 16  # of a paged cache

    def __post_init__(self) -> None:
        Steps.__post_init__(self)
        within("workload.page_tokens", self.page_tokens, 1)


@dataclass(slots=True)
class Qkv(Steps):
    """A model's linear layers, with q, k and v apart."""


@dataclass(slots=True)
class OwnSize(Steps):
    """Layers of no model, of `hidden` features each."""

    layers: int | None = 8
    hidden: int = 4096

    def __post_init__(self) -> None:
        Steps.__post_init__(self)
        within("workload.hidden", self.hidden, 1)


@dataclass(slots=True)
class LinearEpilogue(OwnSize):
    """A linear layer, its bias and its activation."""


@dataclass(slots=True)
class ElementwiseChain(OwnSize):
    """Bias, ReLU and scale, without a GEMM."""


def program_of(workload: Steps, model: ModelShape, requests: Requests) -> Program:
    """What a layer of the workload consists of; ConfigError where its sizes do not go together."""
    if isinstance(workload, LinearEpilogue):
        return linear_epilogue_program(workload.hidden)
    if isinstance(workload, ElementwiseChain):
        return elementwise_program(workload.hidden)
    if isinstance(workload, Qkv):
        return qkv_program(model)
    assert isinstance(workload, Layer)
    return layer_program(model, requests.longest, workload.page_tokens if workload.kv is Kv.paged else None)

"""layer: a transformer's layer, op by op: norms, projections, attention with its KV cache, MLP, residuals."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from launchopt.arrivals.requests import Requests
from launchopt.errors import ConfigError
from launchopt.options import option
from launchopt.streams.chains.program import Program, layer_program
from launchopt.streams.model import MOST_LAYERS, ModelShape
from launchopt.weights.packing import Packing, Scales, WeightFormat, packing_of
from launchopt.workloads.base import SCALES_HELP, WEIGHTS_HELP, Steps, Workload


class Kv(enum.Enum):
    """Layout of a request's KV cache in memory."""

    contiguous = "contiguous"
    paged = "paged"


@dataclass(slots=True)
class Layer(Steps):
    """A transformer's layer with all of its ops: norms, projections, attention with its KV cache, MLP, residuals."""

    name: str = "layer"
    layers: int | None = option(1, "null: the model's, or as many as fit into memory", low=1, high=MOST_LAYERS)
    kv: Kv = option(Kv.contiguous, "layout of a request's KV cache in memory")
    page_tokens: int = option(16, "tokens per page of a paged cache", low=1)
    merged: bool = option(True, "q, k and v are one GEMM, and so are gate and up; false: each is a GEMM of its own")
    weights: WeightFormat = option(WeightFormat.none, WEIGHTS_HELP)
    scales: Scales | None = option(None, SCALES_HELP)
    shared_prefix: int = option(0, "first tokens of a prompt that all prompts share, for scheduler.prefixes", low=0)

    def __post_init__(self) -> None:
        Workload.__post_init__(self)
        if self.shared_prefix > self.prompt_tokens:
            why = f"must be at most workload.prompt_tokens, which is {self.prompt_tokens}"
            raise ConfigError("workload.shared_prefix", self.shared_prefix, why)

    @property
    def page(self) -> int | None:
        """Tokens of a page of the KV cache; None: it has no pages."""
        return self.page_tokens if self.kv is Kv.paged else None

    @property
    def packing(self) -> Packing:
        """How weights of GEMMs are stored."""
        return packing_of(self.weights, self.scales)

    def program(self, model: ModelShape, requests: Requests) -> Program:
        """Return the ops of a layer whose KV cache has space for the longest request."""
        return layer_program(model, requests.longest, self.page, self.merged)

    def replayed(self, requests: Requests, path: str) -> Requests:
        """Return the requests; ConfigError if the options say what their prompts share."""
        if self.shared_prefix:
            why = f"is for prompts of workload.prompt_tokens: leave it out, as {path} has its own"
            raise ConfigError("workload.shared_prefix", self.shared_prefix, why)
        return requests

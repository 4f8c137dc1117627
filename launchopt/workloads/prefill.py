"""prefill: whole prompts through a model's layers. Each prompt is one step with a column per token.

With arrival=replay the prompts are those of a trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.errors import ConfigError
from launchopt.options import option
from launchopt.streams.chains.chain import Stream
from launchopt.streams.gemm_stream import GemmStream, Segment
from launchopt.streams.model import ModelShape
from launchopt.workloads.base import Asked, OfModel, Setting


def prefill(model: ModelShape, layers: int, prompts: int, tokens: int, dtype: Dtype, replicas: int) -> GemmStream:
    """Return `prompts` requests with a prompt of `tokens` tokens each."""
    segments = [Segment(tokens, 1, request) for request in range(prompts)]
    return GemmStream(model.linear_sizes(), layers, segments, dtype, replicas)


def prefill_requests(
    model: ModelShape, layers: int, requests: Requests, speed: float, dtype: Dtype, replicas: int
) -> GemmStream:
    """Return the context of each request as one step, due at `speed` times the pace of the trace."""
    rows = zip(requests.arrival_ns, requests.context_tokens, strict=True)
    segments = [Segment(int(n), 1, request, int(due / speed)) for request, (due, n) in enumerate(rows) if n]
    return GemmStream(model.linear_sizes(), layers, segments, dtype, replicas)


@dataclass(slots=True)
class Prefill(OfModel):
    """Whole prompts through the layers of a model."""

    name: str = "prefill"
    prompts: int = option(1, "number of prompts; a replay takes its own", low=1)
    tokens: int = option(256, "columns of a prompt; a replay takes its own", low=1)

    def asked(self) -> Asked:
        """Return the number and length of the prompts in a run without arrival=replay."""
        return Asked(self.prompts, self.tokens, 1)

    def replayed(self, requests: Requests, path: str) -> Requests:
        """Return the requests with their prompts and one token each. Raise ConfigError if a request has no prompt."""
        if not requests.context_tokens.all():
            raise ConfigError("workload", "prefill", f"a request of {path} has no prompt")
        tokens = np.ones(len(requests), np.int64)
        return Requests(requests.arrival_ns, requests.context_tokens, tokens, requests.after)

    def lower(self, is_ordered: bool) -> str:
        """Return the settings whose lower values need less memory, for an error text."""
        return "workload.layers or workload.prompts or workload.tokens"

    def widths(self, model: ModelShape) -> list[int]:
        """Return the features of the output of each GEMM of a layer."""
        return [m for m, _ in model.linear_sizes()]

    def stream(self, layers: int, setting: Setting) -> Stream:
        """Return a stream of prompts in order; with ordering=none a stream that ignores dependencies."""
        if setting.is_ordered:
            return OfModel.stream(self, layers, setting)
        model, requests = setting.model, setting.requests
        copies = self.copies(model.layer_weights * layers * self.dtype.itemsize, setting)
        if requests is None:
            return prefill(model, layers, self.prompts, self.tokens, self.dtype, copies)
        return prefill_requests(model, layers, requests, setting.speed, self.dtype, copies)

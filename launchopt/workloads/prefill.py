"""prefill: prompts, each one step with a column a token; of a trace, the requests' contexts."""

from __future__ import annotations

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.workloads.decode import linears
from launchopt.workloads.model import ModelShape
from launchopt.workloads.stream import GemmStream, Segment


def prefill(model: ModelShape, layers: int, prompts: int, tokens: int, dtype: Dtype, replicas: int) -> GemmStream:
    """`prompts` requests of `tokens` tokens each."""
    segments = [Segment(tokens, 1, request) for request in range(prompts)]
    return GemmStream(linears(model), layers, segments, dtype, replicas)


def prefill_requests(
    model: ModelShape, layers: int, requests: Requests, speed: float, dtype: Dtype, replicas: int
) -> GemmStream:
    """The context of each request, due at `speed` times the pace of the trace."""
    rows = zip(requests.arrival_ns, requests.context_tokens, strict=True)
    segments = [Segment(int(n), 1, request, int(due / speed)) for request, (due, n) in enumerate(rows) if n]
    return GemmStream(linears(model), layers, segments, dtype, replicas)

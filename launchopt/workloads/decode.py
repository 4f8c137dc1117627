"""decode: token after token of one batch of users, or the requests of a trace (a prefill, then decode steps)."""

from __future__ import annotations

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.workloads.model import ModelShape
from launchopt.workloads.stream import GemmStream, Segment


def linears(model: ModelShape) -> list[tuple[int, int]]:
    """(m, k) of each linear layer, in order."""
    return [(m, k) for _, m, k in model.linears()]


def decode(model: ModelShape, layers: int, tokens: int, users: int, dtype: Dtype, replicas: int) -> GemmStream:
    """`tokens` steps of `users` columns through `layers` layers, as one request."""
    return GemmStream(linears(model), layers, [Segment(users, tokens)], dtype, replicas)


def decode_requests(
    model: ModelShape, layers: int, requests: Requests, speed: float, dtype: Dtype, replicas: int
) -> GemmStream:
    """Each request: its context as one prefill, then a step of one column for each generated token.

    All of a request is due when it arrives, at `speed` times the pace of the trace. Without feedback from the
    consumer the steps of a request are not held back until the one before has ended: with dependencies ignored
    this is an upper bound on what batching can reach.
    """
    segments = []
    rows = zip(requests.arrival_ns, requests.context_tokens, requests.generated_tokens, strict=True)
    for request, (arrival_ns, context, generated) in enumerate(rows):
        due_ns = int(arrival_ns / speed)
        if context:
            segments.append(Segment(int(context), 1, request, due_ns))
        if generated:
            segments.append(Segment(1, int(generated), request, due_ns))
    return GemmStream(linears(model), layers, segments, dtype, replicas)

"""decode: token after token through a model's layers; with arrival=replay, the requests of a trace.

Without order it is one request of `users` columns a step, or each request of a trace as a prefill and decode steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.options import option
from launchopt.workloads.base import Asked, OfModel, Setting
from launchopt.workloads.chain import Stream
from launchopt.workloads.model import ModelShape
from launchopt.workloads.stream import GemmStream, Segment


def decode(model: ModelShape, layers: int, tokens: int, users: int, dtype: Dtype, replicas: int) -> GemmStream:
    """`tokens` steps of `users` columns through `layers` layers, as one request."""
    return GemmStream(model.linear_sizes(), layers, [Segment(users, tokens)], dtype, replicas)


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
    return GemmStream(model.linear_sizes(), layers, segments, dtype, replicas)


@dataclass(slots=True)
class Decode(OfModel):
    """Token after token through the layers of a model."""

    name: str = "decode"
    requests: int = option(1, "side by side in a closed loop, else in all; a replay takes its own", low=1)
    prompt_tokens: int = option(0, "columns of a prompt before the first token; a replay takes its own", low=0)
    tokens: int = option(64, "generated a request; a replay takes its own", low=1)
    users: int = option(1, "columns of each step, as if in step for ever (ordering=none)", low=1)

    def asked(self) -> Asked:
        """Return the requests of a run without a replay."""
        return Asked(self.requests, self.prompt_tokens, self.tokens)

    def lower(self, is_ordered: bool) -> str:
        """Return the settings that need less memory when lower."""
        return OfModel.lower(self, is_ordered) if is_ordered else "workload.layers or workload.tokens"

    def widths(self, model: ModelShape) -> list[int]:
        """Return the features of every output of a layer."""
        return [m for m, _ in model.linear_sizes()]

    def stream(self, layers: int, setting: Setting) -> Stream:
        """Return steps in order, or with dependencies ignored."""
        if setting.is_ordered:
            return OfModel.stream(self, layers, setting)
        model, requests = setting.model, setting.requests
        copies = self.copies(model.layer_weights * layers * self.dtype.itemsize, setting)
        if requests is None:
            return decode(model, layers, self.tokens, self.users, self.dtype, copies)
        return decode_requests(model, layers, requests, setting.speed, self.dtype, copies)

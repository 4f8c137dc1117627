"""decode: token after token through a model's layers; with arrival=replay, the requests of a trace.

With ordering=none the stream is one request whose steps have `users` columns. With a trace as well, each of its
requests becomes one prefill step and its decode steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from launchopt.arrivals.requests import Requests
from launchopt.command import Dtype
from launchopt.options import option
from launchopt.streams.chains.chain import Stream
from launchopt.streams.gemm_stream import IN_TURN, CommandOrder, GemmStream, Segment
from launchopt.streams.model import ModelShape
from launchopt.weights.packing import Packing, Scales, WeightFormat, packing_of
from launchopt.workloads.base import (
    PROMPT_TOKENS_HELP,
    REQUESTS_HELP,
    SCALES_HELP,
    TOKENS_HELP,
    WEIGHTS_HELP,
    Asked,
    OfModel,
    Setting,
)


def decode(
    model: ModelShape,
    layers: int,
    tokens: int,
    users: int,
    dtype: Dtype,
    replicas: int,
    order: CommandOrder = IN_TURN,
) -> GemmStream:
    """Return one request of `tokens` steps, each with `users` columns, through `layers` layers."""
    return GemmStream(model.linear_sizes(), layers, [Segment(users, tokens)], dtype, replicas, order)


def decode_requests(
    model: ModelShape,
    layers: int,
    requests: Requests,
    speed: float,
    dtype: Dtype,
    replicas: int,
    order: CommandOrder = IN_TURN,
) -> GemmStream:
    """Return for each request its context as one prefill step, then a step of one column per generated token.

    All steps of a request are due when it arrives, at `speed` times the pace of the trace. No step waits for the
    previous step of its request. So the gain of batching on this stream is an upper bound.
    """
    segments = []
    rows = zip(requests.arrival_ns, requests.context_tokens, requests.generated_tokens, strict=True)
    for request, (arrival_ns, context, generated) in enumerate(rows):
        due_ns = int(arrival_ns / speed)
        if context:
            segments.append(Segment(int(context), 1, request, due_ns))
        if generated:
            segments.append(Segment(1, int(generated), request, due_ns))
    return GemmStream(model.linear_sizes(), layers, segments, dtype, replicas, order)


@dataclass(slots=True)
class Decode(OfModel):
    """Requests that generate tokens, one per step, with the linear layers of a model."""

    name: str = "decode"
    requests: int = option(1, REQUESTS_HELP, low=1)
    prompt_tokens: int = option(0, PROMPT_TOKENS_HELP, low=0)
    tokens: int = option(64, TOKENS_HELP, low=1)
    users: int = option(1, "columns of each step: requests that stay in step all the time (ordering=none)", low=1)

    weights: WeightFormat = option(WeightFormat.none, WEIGHTS_HELP)
    scales: Scales | None = option(None, SCALES_HELP)

    runs_experts: ClassVar[bool] = True

    @property
    def packing(self) -> Packing:
        """How weights of GEMMs are stored."""
        return packing_of(self.weights, self.scales)

    def asked(self) -> Asked:
        """Return the number and lengths of the requests in a run without arrival=replay."""
        return Asked(self.requests, self.prompt_tokens, self.tokens)

    def lower(self, is_ordered: bool) -> str:
        """Return the settings whose lower values need less memory, for an error text."""
        return OfModel.lower(self, is_ordered) if is_ordered else "workload.layers or workload.tokens"

    def widths(self, model: ModelShape) -> list[int]:
        """Return the features of the output of each GEMM of a layer."""
        return [m for m, _ in model.linear_sizes()]

    def stream(self, layers: int, setting: Setting) -> Stream:
        """Return a stream of steps in order; with ordering=none a stream that ignores dependencies."""
        if setting.is_ordered:
            return OfModel.stream(self, layers, setting)
        model, requests, packing = setting.model, setting.requests, self.packing
        packings = model.packings(packing)
        layer = zip(model.linear_sizes(), packings, strict=True)
        of_layer = sum(own.bytes(m, k, self.dtype.itemsize) for (m, k), own in layer)
        copies = self.copies(of_layer * layers, setting)
        plain = frozenset(at for at, own in enumerate(packings) if own != packing)
        order = CommandOrder(packing=packing, plain=plain)
        if requests is None:
            return decode(model, layers, self.tokens, self.users, self.dtype, copies, order)
        return decode_requests(model, layers, requests, setting.speed, self.dtype, copies, order)

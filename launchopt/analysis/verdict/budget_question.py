"""The question of a budget: tokens a day, a model, and how many commands a stream has for each token of that model.

In: the numbers of `Ask`, and rows as `results.read_summaries` gives them. Out: commands per token, and texts. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from launchopt.analysis.stream_rows import counted, digits, stream_title
from launchopt.errors import ConfigError
from launchopt.recording.results import Row
from launchopt.streams.experts.stream import SINGLE

OPS_A_LAYER = 14  # launches per layer of workload=layer: norms, linears, attention, activation, residuals
OPS_OF_MLP = 3  # of them: gate and up, activation, down


@dataclass(frozen=True, slots=True)
class Ask:
    """The question: tokens per day, the model, and figures that replace measured ones.

    Raises ConfigError for impossible values.

    layers: of the model. linears: (out features, in features) of the linear layers that a token uses in each.
    experts_per_token: 0 for a model without experts.
    """

    tokens_per_day: float
    model: str | None = None
    layers: int | None = None
    linears: tuple[tuple[int, int], ...] = ()
    experts_per_token: int = 0
    launches_per_token: float | None = None
    launches_per_layer: float | None = None
    launch_us: float | None = None
    gpu_hour_cost: float | None = None

    def __post_init__(self) -> None:
        for key in ("tokens_per_day", "launches_per_token", "launches_per_layer", "launch_us", "gpu_hour_cost"):
            value, is_cost = getattr(self, key), key == "gpu_hour_cost"
            if value is not None and not (math.isfinite(value) and (value > 0 or (is_cost and value == 0))):
                raise ConfigError(key, value, "must be finite and " + ("0 or more" if is_cost else "above 0"))
        if self.launches_per_layer is not None and self.layers is None:
            raise ConfigError("launches_per_layer", self.launches_per_layer, "needs model=, which has the layers")
        if self.launches_per_layer is not None and self.launches_per_token is not None:
            raise ConfigError(
                "launches_per_layer", self.launches_per_layer, "not together with launches_per_token: give one of them"
            )


def ops_a_layer(ask: Ask) -> tuple[int, str]:
    """Return the operations of a layer for a token alone, and which ones they are."""
    if not ask.experts_per_token:
        return OPS_A_LAYER, "the operations of workload=layer, one launch each"
    others, experts = OPS_A_LAYER - OPS_OF_MLP, 2 * ask.experts_per_token
    of_experts = f"{SINGLE} + {experts} of workload=moe, with {ask.experts_per_token} experts for a token"
    return others + SINGLE + experts, f"{others} operations of workload=layer, {of_experts}, one launch each"


class CommandsPerToken(NamedTuple):
    """Commands per token. None: unknown.

    measured: in the run. asked: for the model of `ask`, as the user gave it, or else the measured number. If `ask` has
    a number of layers, the measured number is scaled to it.
    """

    measured: float | None
    asked: float | None


def tokens_of(stream: Row) -> int | None:
    """Return the tokens that a stream generates, or that pass through a layer with experts; None: none of a model.

    A stream that generates only the token behind each prompt has none.
    """
    if stream["expert_routing"] is not None:
        return int((stream["steps"] or 0) * (stream["step_tokens"] or 0)) or None
    generates = stream["model"] and stream["tokens"] and stream["tokens"] > stream["requests"]
    return int(stream["tokens"]) if generates else None


def layers_of(stream: Row) -> int | None:
    """Return the layers of a stream; None: it has no layers. `workload=moe` runs the experts of one layer."""
    return 1 if stream["expert_routing"] is not None else stream["layers"]


def commands_per_token(ask: Ask, stream: Row) -> CommandsPerToken:
    """Return the commands per token of a stream."""
    tokens, layers = tokens_of(stream), layers_of(stream)
    measured_ = stream["commands"] / tokens if tokens else None
    if ask.launches_per_token is not None:
        return CommandsPerToken(measured_, ask.launches_per_token)
    if ask.launches_per_layer is not None and ask.layers is not None:
        return CommandsPerToken(measured_, ask.launches_per_layer * ask.layers)
    if measured_ is None or ask.layers is None or not layers:
        return CommandsPerToken(measured_, measured_)
    return CommandsPerToken(measured_, measured_ / layers * ask.layers)


def title_of(stream: Row) -> str:
    """Return the title of a stream, with the tokens of a step with experts and how prompts share prefixes."""
    parts = [stream_title(stream)]
    parts += [] if stream["step_tokens"] is None else [f"steps of {counted(stream['step_tokens'], 'token')}"]
    parts += [] if stream["cached_tokens"] is None else [str(stream["scheduler"]).rpartition("continuous, ")[2]]
    return ", ".join(parts)


def is_scaled(ask: Ask, stream: Row) -> bool:
    """Return whether the model asked for is not the one that ran."""
    return ask.model is not None and stream["model"] != ask.model


def scaling_of(ask: Ask, stream: Row) -> str:
    """Return how the commands per token were scaled to the layers of the model asked for."""
    if ask.launches_per_layer is not None:
        return f"{digits(ask.launches_per_layer)} a layer as given x {ask.layers} layers of {ask.model}"
    per_layer = stream["commands"] / (tokens_of(stream) or 1) / (layers_of(stream) or 1)
    return f"{digits(per_layer, 4)} a layer of {stream['workload']}, measured, x {ask.layers} layers of {ask.model}"

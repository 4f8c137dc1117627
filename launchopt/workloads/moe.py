"""moe: the layer with experts of a model, in steps whose tokens are routed to experts.

The router, top-k, permutation, gate/up, SiLU(gate) * up, down and the weighted sum; with a GEMM for each expert that
has tokens. The routing is drawn from the seed, or replayed from a file (`launchopt.streams.experts.routing`).

In: the options, and a model with experts. Out: an `ExpertStream`. Wrong options raise a ConfigError, a wrong file a
DataError.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launchopt.command import Dtype
from launchopt.errors import ConfigError
from launchopt.files import user_path
from launchopt.options import option
from launchopt.streams.experts.layout import UNIT_BYTES, ExpertLayer
from launchopt.streams.experts.routing import Experts, Routing, RoutingKind, draw, read_experts
from launchopt.streams.experts.stream import SINGLE, ExpertStream
from launchopt.streams.footprint import Cache, replicas_for
from launchopt.streams.model import ModelShape
from launchopt.weights.packing import Packing, Scales, WeightFormat, packing_of
from launchopt.workloads.base import SCALES_HELP, Minimum, Setting, Workload

MOST_STEPS, MOST_TOKENS = 1 << 20, 1 << 16
CONFIG_JSON = "config.json of a model with experts"
LEAST_UNITS = 8  # of the outputs of a token, which take whole units, with one expert


@dataclass(slots=True)
class Moe(Workload):
    """Steps through a layer with experts."""

    name: str = "moe"
    dtype: Dtype = option(Dtype.fp32, "of weights, inputs and outputs")
    tokens: int = option(16, "tokens of a step: requests in decode, columns of a prompt", low=1, high=MOST_TOKENS)
    steps: int = option(128, "steps, each with a routing of its own", low=1, high=MOST_STEPS)
    routing: RoutingKind = option(RoutingKind.power_law, "how tokens get their experts")
    exponent: float = option(1.2, "of routing=power_law: rank**-exponent is the weight of an expert", low=0, high=16)
    ids: str | None = option(None, "of routing=replay: a file with the experts of a token in each line, 3,17,42")
    weights: WeightFormat = option(WeightFormat.none, "format of experts' weights; none: as workload.dtype")
    scales: Scales | None = option(None, SCALES_HELP)

    needs_order: ClassVar[bool] = True
    own_arrival: ClassVar[str] = "each step follows the one before"
    smallest: ClassVar[tuple[str, ...]] = ("model=tiny_moe", "workload.tokens=4", "workload.steps=4")

    def __post_init__(self) -> None:
        Workload.__post_init__(self)
        is_replay = self.routing is RoutingKind.replay
        if is_replay and self.ids is None:
            raise ConfigError("workload.routing", "replay", "needs a file: give workload.ids=FILE")
        if self.ids is not None and not is_replay:
            raise ConfigError("workload.ids", self.ids, "belongs to workload.routing=replay: give both, or neither")

    def lower(self, is_ordered: bool) -> str:
        """Return the settings whose lower values need less memory, for an error text."""
        return "workload.steps or workload.tokens, or give workload.replicas"

    def minimum(self) -> Minimum:
        """Return lower bounds of the commands, and of the bytes of all outputs."""
        return Minimum((SINGLE + 2) * self.steps, LEAST_UNITS * UNIT_BYTES * self.tokens * self.steps)

    @property
    def packing(self) -> Packing:
        """How weights of experts are stored."""
        return packing_of(self.weights, self.scales)

    @property
    def routing_name(self) -> str:
        """Name of the routing in results: balanced, power_law 1.2, or replay and the name of the file."""
        if self.routing is RoutingKind.power_law:
            return f"power_law {self.exponent:g}"
        return self.routing.value if self.ids is None else f"replay {Path(self.ids).name}"

    def stream(self, layers: int, setting: Setting) -> ExpertStream:
        """Return the stream. ConfigError for a model without experts, or whose experts have no gate."""
        layer = self._layer(setting.model)
        shape = self.steps, self.tokens, layer.top_k
        experts: Experts
        if self.ids is None:
            experts = draw(self.routing, self.exponent, shape, layer.experts, setting.seed)
        else:
            experts = read_experts(user_path("workload.ids", self.ids), shape, layer.experts)
        packing = self.packing
        stream = ExpertStream(layer, Routing(self.routing_name, layer.experts, experts), self.dtype, 1, packing)
        copies = self._copies(stream, setting)
        if setting.model.shared_intermediate:
            setting.notices.append(
                f"{setting.model.name}: workload=moe runs no shared expert, an MLP that every token takes"
            )
        return stream if copies == 1 else ExpertStream(layer, stream.routing, self.dtype, copies, packing)

    def _layer(self, model: ModelShape) -> ExpertLayer:
        if not model.experts:
            of = f"model={model.name} has no experts for workload=moe"
            raise ConfigError("model.experts", 0, f"{of}: use model=tiny_moe, model=qwen3_30b_a3b or a {CONFIG_JSON}")
        if not model.gated:
            raise ConfigError("model.gated", "false", "experts of workload=moe have a gate: use model.gated=true")
        return ExpertLayer(model.hidden, model.expert_intermediate, model.experts, model.experts_per_token, self.tokens)

    def _copies(self, stream: ExpertStream, setting: Setting) -> int:
        """Return the copies of the weights. With a cold cache, no expert is read from the cache.

        Steps between two uses of a copy read four times the size of the cache or more, by the step that reads least.
        """
        if self.replicas is not None:
            return self.replicas
        if self.cache is Cache.hot:
            whole = sum(key.slot_bytes * count for key, count in stream.layout.weights_of_copy.items())
            return replicas_for(Cache.hot, whole, setting.cache_bytes)
        least = int(stream.weight_bytes_by_step.min())
        return min(self.steps, replicas_for(Cache.cold, least, setting.cache_bytes))

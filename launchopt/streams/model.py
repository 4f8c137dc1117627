"""Dimensions of a transformer, and the linear layers that follow from them.

In: the numbers of a model card (conf/model/*.yaml, or a config.json; each a `Model`). Out: (m, k) of each weight of a
layer, in the order of use.

q, k and v are one weight, and so are gate and up, as in vLLM's weight-shape table (vllm-project/vllm,
benchmarks/kernels/weight_shapes.py). That table lists [K, N] = [k, m].

A mixture of experts (MoE) has a router, and each token uses `experts_per_token` of its experts. Multi-head latent
attention (MLA) compresses keys and values, and often queries, to a few features, as DeepSeek V2 and V3 do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from launchopt.errors import ConfigError
from launchopt.options import REQUIRED, check_options, option
from launchopt.sampling import MOST_VOCAB
from launchopt.weights.packing import PLAIN, Packing

NORM_EPSILON = 1e-5  # of models that do not say another one
MOST_LAYERS = 1024  # maximum layers of a model; the deepest published ones have under 130
MOST_EXPERTS = 4096  # maximum experts of a layer; published ones have up to 512


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The dimensions of a decoder-only transformer, in elements.

    q_heads * head_dim can differ from `hidden`, as in Qwen3-0.6B and Qwen3-32B. `gated`: the MLP has a gate
    (SwiGLU) beside its up-projection, each of `intermediate` features. `qk_norm`: each head of the queries and keys is
    normalized before it is rotated. `norm_epsilon`: what RMS norms add to the mean of the squares. `experts` is 0 in a
    model without experts, and `kv_rank` is 0 in one without MLA. `Model` describes the other fields.
    """

    name: str
    hidden: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    gated: bool = True
    qk_norm: bool = False
    norm_epsilon: float = NORM_EPSILON
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    v_dim: int = 0
    rope_theta: float = 10_000.0

    @property
    def is_dense(self) -> bool:
        """Whether a layer has four weights: no experts, and no MLA."""
        return not (self.experts or self.kv_rank)

    def linears(self) -> tuple[tuple[str, int, int], ...]:
        """Return (name, m, k) = (name, out features, in features) of the weights that a token uses in one layer.

        They are in the order of use. A dense layer has four. Of a layer's experts, the first `experts_per_token` count.
        """
        attention = self._latent_attention() if self.kv_rank else self._attention()
        return attention + (self._experts() if self.experts else self._mlp("", self.intermediate))

    def packings(self, packing: Packing) -> list[Packing]:
        """Return the packing of each of `linears`; ConfigError, with the option, for inputs that cannot be quantised.

        Engines do not quantise a router.
        """
        found = [PLAIN if name == "router" else packing for name, _, _ in self.linears()]
        for (name, _, k), own in zip(self.linears(), found, strict=True):
            own.check(k, self._inputs_option(name))
        return found

    def _inputs_option(self, linear: str) -> str:
        """Return the options that say how many inputs a linear has."""
        by_name = {
            "o": f"model.q_heads*model.{'v_dim' if self.kv_rank else 'head_dim'}",
            "q_b": "model.q_rank",
            "kv_b": "model.kv_rank",
            "down": "model.intermediate",
            "shared_down": "model.shared_intermediate",
        }
        of_expert = linear.startswith("expert") and linear.endswith("_down")
        return "model.expert_intermediate" if of_expert else by_name.get(linear, "model.hidden")

    def linear_sizes(self) -> list[tuple[int, int]]:
        """Return (m, k) of each of `linears`."""
        return [(m, k) for _, m, k in self.linears()]

    def linear_parts(self) -> list[tuple[int, ...]]:
        """Return the features of the vectors that each of `linears` computes side by side: q, k and v; gate and up."""
        queries, keys = self.q_heads * self.head_dim, self.kv_heads * self.head_dim
        inner = (self.intermediate,) * 2
        return [{"qkv": (queries, keys, keys), "gate_up": inner}.get(name, (m,)) for name, m, _ in self.linears()]

    def share(self, tensor: int) -> ModelShape:
        """Return the dimensions of the part that each of `tensor` GPUs has: a fraction of the heads and of the MLP.

        Raise ConfigError if these cannot be divided.
        """
        if not self.is_dense:
            why = f"model={self.name} has experts or latent attention: use a dense model"
            raise ConfigError("parallel.tensor", tensor, why)
        sizes = {"kv_heads": self.kv_heads, "q_heads": self.q_heads, "intermediate": self.intermediate}
        if wrong := [f"{name}={size}" for name, size in sizes.items() if size % tensor]:
            whole = math.gcd(*sizes.values())
            able = ", ".join(str(each) for each in range(1, whole + 1) if whole % each == 0)
            why = f"does not divide {' and '.join(wrong)} of model={self.name}: use one of {able}"
            raise ConfigError("parallel.tensor", tensor, why)
        return replace(
            self,
            q_heads=self.q_heads // tensor,
            kv_heads=self.kv_heads // tensor,
            intermediate=self.intermediate // tensor,
        )

    @property
    def cache_features(self) -> int:
        """Elements that a token keeps in the KV cache of one layer. MLA keeps what all heads share."""
        return self.kv_rank + self.rope_dim if self.kv_rank else 2 * self.kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Elements of the weights that a token uses in one layer."""
        return sum(m * k for m, k in self.linear_sizes())

    def _attention(self) -> tuple[tuple[str, int, int], ...]:
        queries = self.q_heads * self.head_dim
        return ("qkv", queries + 2 * self.kv_heads * self.head_dim, self.hidden), ("o", self.hidden, queries)

    def _latent_attention(self) -> tuple[tuple[str, int, int], ...]:
        """Return the projections of MLA. Each head of the keys has head_dim - rope_dim features of its own."""
        queries = self.q_heads * self.head_dim
        own = self.q_heads * (self.head_dim - self.rope_dim + self.v_dim)
        down = (("q_a", self.q_rank, self.hidden),) if self.q_rank else (("q", queries, self.hidden),)
        up = (("q_b", queries, self.q_rank),) if self.q_rank else ()
        return (
            *down,
            ("kv_a", self.kv_rank + self.rope_dim, self.hidden),
            *up,
            ("kv_b", own, self.kv_rank),
            ("o", self.hidden, self.q_heads * self.v_dim),
        )

    def _mlp(self, prefix: str, inner: int) -> tuple[tuple[str, int, int], ...]:
        up = ("gate_up", 2 * inner) if self.gated else ("up", inner)
        return (f"{prefix}{up[0]}", up[1], self.hidden), (f"{prefix}down", self.hidden, inner)

    def _experts(self) -> tuple[tuple[str, int, int], ...]:
        shared = self._mlp("shared_", self.shared_intermediate) if self.shared_intermediate else ()
        chosen = [self._mlp(f"expert{i}_", self.expert_intermediate) for i in range(self.experts_per_token)]
        return ("router", self.experts, self.hidden), *shared, *(each for pair in chosen for each in pair)


@dataclass(slots=True)
class Model:
    """Options of a model. A YAML in conf/model, or a config.json, gives them values."""

    name: str = REQUIRED
    hidden: int = option(REQUIRED, "features between layers", low=1)
    layers: int = option(REQUIRED, "number of layers", low=1, high=MOST_LAYERS)
    q_heads: int = option(REQUIRED, "query heads", low=1)
    kv_heads: int = option(REQUIRED, "key and value heads", low=1)
    head_dim: int = option(REQUIRED, "features a head", low=1)
    intermediate: int = option(REQUIRED, "features of the MLP", low=1)
    gated: bool = option(True, "the MLP has a gate beside its up-projection")
    qk_norm: bool = option(False, "heads of queries and keys are normalized, as in Qwen3")
    norm_epsilon: float = option(NORM_EPSILON, "what RMS norms add to the mean of the squares", low=1e-12, high=1)
    vocab: int | None = option(None, "width of the LM head; null: no sampling", low=1, high=MOST_VOCAB)
    rope_theta: float = option(10_000.0, "base of the angles by which heads are rotated", is_above_zero=True)
    experts: int = option(0, "experts of a layer; 0: no mixture of experts", low=0, high=MOST_EXPERTS)
    experts_per_token: int = option(0, "experts that a token uses", low=0, high=MOST_EXPERTS)
    expert_intermediate: int = option(0, "features of an expert's MLP", low=0)
    shared_intermediate: int = option(0, "features of the MLP that all tokens use beside their experts", low=0)
    q_rank: int = option(0, "features that latent attention compresses queries to; 0: it does not", low=0)
    kv_rank: int = option(0, "features that latent attention compresses keys and values to; 0: no MLA", low=0)
    rope_dim: int = option(0, "features of a head that latent attention rotates", low=0)
    v_dim: int = option(0, "features of a value's head in latent attention", low=0)
    dtype: str | None = None  # of the published weights, for a notice; workload.dtype is that of a run
    left_out: str | None = None  # parts of the published model that no workload runs, for a notice

    def __post_init__(self) -> None:
        check_options("model", self)
        if self.experts:
            self._require("experts_per_token", 1, self.experts)
            self._require("expert_intermediate", 1)
        if self.kv_rank:
            self._require("rope_dim", 0, self.head_dim - 1)
            self._require("v_dim", 1)

    def _require(self, name: str, low: int, high: int | None = None) -> None:
        """Raise ConfigError unless an option that experts or MLA need is from `low` to `high`."""
        value = getattr(self, name)
        if value < low or (high is not None and value > high):
            needs = f"model.experts={self.experts}" if name.startswith("expert") else f"model.kv_rank={self.kv_rank}"
            wanted = f"at least {low}" if high is None else f"from {low} to {high}"
            raise ConfigError(f"model.{name}", value, f"must be {wanted} with {needs}")

    def shape(self) -> ModelShape:
        """Return the dimensions from which the shapes of commands follow."""
        return ModelShape(**{each.name: getattr(self, each.name) for each in fields(ModelShape)})

"""Dimensions of a transformer, and the linear layers that follow from them.

In: the numbers of a model card (conf/model/*.yaml, each a `Model`). Out: (m, k) of each weight of a layer, in the order
of use.

q, k and v are one weight, and so are gate and up, as in vLLM's weight-shape table (vllm-project/vllm,
benchmarks/kernels/weight_shapes.py). That table lists [K, N] = [k, m].
"""

from __future__ import annotations

from dataclasses import dataclass

from launchopt.options import REQUIRED, check_options, option
from launchopt.sampling import MOST_VOCAB

NORM_EPSILON = 1e-5  # of models that do not say another one
MOST_LAYERS = 1024  # maximum layers of a model; the deepest published ones have under 130


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The dimensions of a dense decoder-only transformer, in elements.

    q_heads * head_dim can differ from `hidden`, as in Qwen3-0.6B and Qwen3-32B. `gated`: the MLP has a gate
    (SwiGLU) beside its up-projection, each of `intermediate` features. `qk_norm`: each head of the queries and keys is
    normalized before it is rotated. `norm_epsilon`: what RMS norms add to the mean of the squares.
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

    def linears(self) -> tuple[tuple[str, int, int], ...]:
        """Return (name, m, k) = (name, out features, in features) of one layer's four weights, in order of use."""
        attention = self.q_heads * self.head_dim
        qkv = attention + 2 * self.kv_heads * self.head_dim
        up = ("gate_up", 2 * self.intermediate) if self.gated else ("up", self.intermediate)
        return (
            ("qkv", qkv, self.hidden),
            ("o", self.hidden, attention),
            (*up, self.hidden),
            ("down", self.hidden, self.intermediate),
        )

    def linear_sizes(self) -> list[tuple[int, int]]:
        """Return (m, k) of one layer's four weights, in order of use."""
        return [(m, k) for _, m, k in self.linears()]

    @property
    def layer_weights(self) -> int:
        """Elements of one layer's weights."""
        return sum(m * k for m, k in self.linear_sizes())


@dataclass(slots=True)
class Model:
    """Options of a model. A YAML in conf/model gives each of them a value."""

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

    def __post_init__(self) -> None:
        check_options("model", self)

    def shape(self) -> ModelShape:
        """Return the dimensions from which the shapes of commands follow."""
        heads = (self.q_heads, self.kv_heads, self.head_dim)
        norms = (self.qk_norm, self.norm_epsilon)
        return ModelShape(self.name, self.hidden, self.layers, *heads, self.intermediate, self.gated, *norms)

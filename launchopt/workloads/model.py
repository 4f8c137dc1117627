"""A transformer's dimensions, and the linear layers that follow from them.

In: the numbers of a model card (conf/model/*.yaml; the runner validates them).
Out: the (m, k) of each weight that a token passes in a layer, in the order it passes them.

The rule is that of vLLM's weight-shape table (vllm-project/vllm, benchmarks/kernels/weight_shapes.py), which
lists [K, N] = [k, m]: q, k and v are one weight, and so are gate and up.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The dimensions of a dense decoder-only transformer, in elements.

    q_heads * head_dim need not be `hidden` (in Qwen3-0.6B and Qwen3-32B it is not). `gated`: the MLP has a
    gate beside its up-projection (SwiGLU), both of `intermediate` features.
    """

    name: str
    hidden: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    gated: bool = True

    def linears(self) -> tuple[tuple[str, int, int], ...]:
        """(name, m, k) = (name, out features, in features) of one layer's four weights, in order of use."""
        attention = self.q_heads * self.head_dim
        qkv = attention + 2 * self.kv_heads * self.head_dim
        up = ("gate_up", 2 * self.intermediate) if self.gated else ("up", self.intermediate)
        return (
            ("qkv", qkv, self.hidden),
            ("o", self.hidden, attention),
            (*up, self.hidden),
            ("down", self.hidden, self.intermediate),
        )

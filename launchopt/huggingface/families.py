"""Families of models, by `model_type`: what their config.json files leave unsaid, and which parts differ from Llama's.

Sources: the configuration and modeling files of each family in huggingface/transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from launchopt.huggingface.fields import Fields
from launchopt.streams.model import MOST_EXPERTS, MOST_LAYERS

GEMMA_NORMS = "the norms after attention and after the MLP"
GELU = {"hidden_activation": "gelu_pytorch_tanh"}


class Mixture(NamedTuple):
    """The experts of a model, in features and counts."""

    experts: int
    per_token: int
    intermediate: int
    shared: int = 0  # features of the MLP that all tokens use
    dense_layers: int = 0  # layers that have an MLP instead of experts


@dataclass(frozen=True, slots=True)
class Family:
    """What is the same in all models of a `model_type`.

    defaults: fields that a published file may lack; one that is null has none. mixture: reads the experts; None: the
    model has none. left_out: parts that every model of the family has and no workload runs. windows_by_flag:
    `use_sliding_window` must be true for sliding windows.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    qk_norm: bool = False
    norm_epsilon: float = 1e-6  # where a file has no rms_norm_eps
    has_latents: bool = False
    mixture: Callable[[Fields], Mixture | None] | None = None
    intermediate: str = "intermediate_size"
    left_out: tuple[str, ...] = ()
    windows_by_flag: bool = False


def _mixtral(fields: Fields) -> Mixture | None:
    return _mixture(fields, "num_local_experts", "num_experts_per_tok", "intermediate_size")


def _qwen(fields: Fields) -> Mixture | None:
    only, every = fields.numbers("mlp_only_layers"), fields.whole_or("decoder_sparse_step", 1, 1)
    dense = sum(i in only or (i + 1) % every > 0 for i in _layers(fields))
    shared = fields.whole_or("shared_expert_intermediate_size", 0)
    return _mixture(fields, "num_experts", "num_experts_per_tok", "moe_intermediate_size", shared, dense)


def _deepseek(fields: Fields) -> Mixture | None:
    first, every = fields.whole_or("first_k_dense_replace", 0), fields.whole_or("moe_layer_freq", 1, 1)
    dense = sum(i < first or i % every > 0 for i in _layers(fields))
    if "n_routed_experts" not in fields or dense == len(_layers(fields)):
        return None
    sizes = "moe_intermediate_size", "n_shared_experts"
    shared = fields.derived(fields.whole(sizes[0]) * fields.whole_or(sizes[1], 0), *sizes)
    return _mixture(fields, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", shared, dense)


def _llama4(fields: Fields) -> Mixture | None:
    every, listed = fields.whole_or("interleave_moe_layer_step", 1, 1), fields.numbers("moe_layers")
    layers, is_listed = _layers(fields), "moe_layers" in fields
    sparse = sum(i in listed if is_listed else (i + 1) % every == 0 for i in layers)
    shared = fields.whole("intermediate_size")
    names = ("num_local_experts", "num_experts_per_tok", "intermediate_size")
    return _mixture(fields, *names, shared, len(layers) - sparse)


def _gemma4(fields: Fields) -> Mixture | None:
    if not fields.flag("enable_moe_block"):
        return None
    shared = fields.whole("intermediate_size")
    return _mixture(fields, "num_experts", "top_k_experts", "moe_intermediate_size", shared)


def _mixture(
    fields: Fields, count: str, per_token: str, intermediate: str, shared: int = 0, dense: int = 0
) -> Mixture | None:
    """Return the experts that the named fields describe; None if no layer has any."""
    experts = fields.whole(count, 0, MOST_EXPERTS)
    if experts == 0 or dense == len(_layers(fields)):
        return None
    return Mixture(experts, fields.whole(per_token, 1, experts), fields.whole(intermediate), shared, dense)


def _layers(fields: Fields) -> range:
    return range(fields.whole("num_hidden_layers", 1, MOST_LAYERS))


FAMILIES = {
    "deepseek_v2": Family(has_latents=True, mixture=_deepseek),
    "deepseek_v3": Family(has_latents=True, mixture=_deepseek),
    "deepseek_v32": Family(has_latents=True, mixture=_deepseek, left_out=("the indexer of sparse attention",)),
    "gemma": Family({"head_dim": 256, **GELU}),
    "gemma2": Family(
        {
            "head_dim": 256,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "sliding_window": 4096,
            **GELU,
        },
        left_out=(GEMMA_NORMS,),
    ),
    "gemma3_text": Family(
        {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, **GELU}
        | {"rope_local_base_freq": 10_000.0},
        qk_norm=True,
        left_out=(GEMMA_NORMS,),
    ),
    "gemma4_text": Family(
        {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262144, **GELU},
        qk_norm=True,
        mixture=_gemma4,
        left_out=(GEMMA_NORMS, "the norms of values"),
    ),
    "llama": Family(),
    "llama4_text": Family(
        {"head_dim": 128, "rope_theta": 5e5},
        norm_epsilon=1e-5,
        mixture=_llama4,
        intermediate="intermediate_size_mlp",
        left_out=("layers without rotation, and norms of queries and keys",),
    ),
    "mistral": Family({"num_key_value_heads": 8}),
    "mixtral": Family({"num_key_value_heads": 8, "rope_theta": 1e6}, norm_epsilon=1e-5, mixture=_mixtral),
    "phi3": Family(norm_epsilon=1e-5),
    "qwen2": Family(left_out=("the biases of q, k and v",), windows_by_flag=True),
    "qwen2_moe": Family(
        mixture=_qwen,
        left_out=("the biases of q, k and v", "the gate of the shared expert"),
        windows_by_flag=True,
    ),
    "qwen3": Family({"head_dim": 128}, qk_norm=True, windows_by_flag=True),
    "qwen3_moe": Family(qk_norm=True, mixture=_qwen, windows_by_flag=True),
}
ALIASES = {  # other values of model_type whose text model is of one of these families
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "kimi_k2": "deepseek_v3",
    "llama4": "llama4_text",
    "ministral": "mistral",
    "ministral3": "mistral",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
}

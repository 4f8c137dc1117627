"""What the configuration classes of Transformers take for a field that a section of a file lacks, by `model_type`.

Transformers writes the text model of a file that has other models, too, as a section such as `text_config`, and
leaves out there what equals the default of the class. A file of one model has all sizes.

Sources: the configuration files of each family in huggingface/transformers 5.
"""

from __future__ import annotations

from typing import Any


def _sizes(vocab: int, hidden: int, inner: int, layers: int, heads: int, keys: int, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
    } | more


_LATENTS = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_QWEN2_VL = _sizes(152064, 8192, 29568, 80, 64, 8, rms_norm_eps=1e-5, rope_theta=1e6)

CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "deepseek_v2": _sizes(102400, 4096, 11008, 32, 32, 32, **_LATENTS)
    | {"n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407},
    "deepseek_v3": _sizes(129280, 7168, 18432, 61, 128, 128, **_LATENTS)
    | {"n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048}
    | {"num_experts_per_tok": 8, "first_k_dense_replace": 3},
    "gemma": _sizes(256000, 3072, 24576, 28, 16, 16),
    "gemma2": _sizes(256000, 2304, 9216, 26, 8, 4),
    "gemma3_text": _sizes(262208, 2304, 9216, 26, 8, 4, sliding_window=4096),
    "gemma4_text": _sizes(262144, 2304, 9216, 30, 8, 4, sliding_window=512, hidden_size_per_layer_input=256),
    "llama": _sizes(32000, 4096, 11008, 32, 32, 32),
    "llama4_text": _sizes(202048, 5120, 8192, 48, 40, 8, intermediate_size_mlp=16384, attention_chunk_size=8192)
    | {"num_local_experts": 16, "num_experts_per_tok": 1},
    "ministral3": _sizes(131072, 4096, 14336, 34, 32, 8, head_dim=128, rms_norm_eps=1e-5, rope_theta=1e6),
    "mistral": _sizes(32000, 4096, 14336, 32, 32, 8, sliding_window=4096),
    "mixtral": _sizes(32000, 4096, 14336, 32, 32, 8, num_local_experts=8, num_experts_per_tok=2),
    "phi3": _sizes(32064, 3072, 8192, 32, 32, 32),
    "qwen2": _sizes(151936, 4096, 22016, 32, 32, 32),
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_moe": _sizes(151936, 2048, 5632, 24, 16, 16, num_experts=60, num_experts_per_tok=4)
    | {"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632},
    "qwen3": _sizes(151936, 4096, 22016, 32, 32, 32),
    "qwen3_moe": _sizes(151936, 2048, 6144, 24, 32, 4, num_experts=128, num_experts_per_tok=8)
    | {"moe_intermediate_size": 768},
    "qwen3_vl_moe_text": _sizes(151936, 2048, 5632, 24, 16, 16, num_experts=60, num_experts_per_tok=4)
    | {"moe_intermediate_size": 1408, "rope_theta": 5e5},
    "qwen3_vl_text": _sizes(151936, 4096, 22016, 32, 32, 32, rope_theta=5e5),
}

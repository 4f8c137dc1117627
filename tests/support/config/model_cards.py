"""Facts of published models: what their config.json says that matters, and what their model cards say of the size.

The dimensions are facts from the published files. `billions` are parameters, in all and for each token, as the card
rounds them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TINY: dict[str, Any] = {  # a small one of the family of Llama, for runs
    "model_type": "llama",
    **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
}
TINY_MIXTURE = (
    TINY | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2} | {"num_key_value_heads": 2}
)
Linears = dict[str, tuple[int, int]]  # by name: (m, k)


@dataclass(frozen=True)
class Card:
    """A model. linears: those of a layer, without all experts but the first."""

    config: dict[str, Any]
    linears: Linears
    billions: float
    billions_active: float | None = None
    left_out: tuple[str, ...] = ()  # words that the notice must have
    dense_layers: int = 0  # layers without experts
    is_tied: bool = False  # the LM head is the embedding
    shape: dict[str, Any] = field(default_factory=dict)  # fields of the Model that the linears do not show


def write_config(folder: Path, content: object, name: str = "config.json") -> Path:
    """Write a file of a model into a folder, which is made; return its path. content: text, or what JSON can hold."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def _config(kind: str, hidden: int, layers: int, heads: int, inner: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "rms_norm_eps": 1e-6,
    } | more


LLAMA3 = {
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    "num_key_value_heads": 8,
}
QWEN3 = {"head_dim": 128, "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False}
QWEN3_MOE = _config("qwen3_moe", 2048, 48, 32, 6144, 151936, **QWEN3, num_key_value_heads=4, num_experts=128) | {
    **{"num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": []}
}
QWEN3_MOE_LINEARS = {
    **{"qkv": (5120, 2048), "o": (2048, 4096), "router": (128, 2048)},
    **{"expert0_gate_up": (1536, 2048), "expert0_down": (2048, 768)},
}
LATENT = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512}
GEMMA4_KINDS = (["sliding_attention"] * 5 + ["full_attention"]) * 5

REAL = {  # the ten files of ../shared/data/models/hf, by their names there
    "Qwen--Qwen3-0.6B": Card(
        _config("qwen3", 1024, 28, 16, 3072, 151936, **QWEN3, num_key_value_heads=8),
        {"qkv": (4096, 1024), "o": (1024, 2048), "gate_up": (6144, 1024), "down": (1024, 3072)},
        0.596,
        is_tied=True,
        shape={"qk_norm": True, "norm_epsilon": 1e-6, "rope_theta": 1e6, "dtype": "bfloat16"},
    ),
    "Qwen--Qwen3-8B": Card(
        _config("qwen3", 4096, 36, 32, 12288, 151936, **QWEN3, num_key_value_heads=8),
        {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (24576, 4096), "down": (4096, 12288)},
        8.19,
        shape={"qk_norm": True, "vocab": 151936},
    ),
    "Qwen--Qwen3-30B-A3B": Card(QWEN3_MOE, QWEN3_MOE_LINEARS, 30.5, 3.35, ("8 of 128 experts",)),
    "Qwen--Qwen3-30B-A3B-FP8": Card(
        QWEN3_MOE | {"quantization_config": {"quant_method": "fp8"}}, QWEN3_MOE_LINEARS, 30.5, 3.35, ("(fp8)",)
    ),
    "deepseek-ai--DeepSeek-V3": Card(
        _config("deepseek_v3", 7168, 61, 128, 18432, 129280, **LATENT, q_lora_rank=1536, num_key_value_heads=128)
        | {"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
        | {"first_k_dense_replace": 3, "moe_layer_freq": 1, "num_nextn_predict_layers": 1}
        | {"auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "rope_scaling": {"type": "yarn"}},
        {
            **{"q_a": (1536, 7168), "kv_a": (576, 7168), "q_b": (24576, 1536), "kv_b": (32768, 512)},
            **{"o": (7168, 16384), "router": (256, 7168)},
            **{"shared_gate_up": (4096, 7168), "shared_down": (7168, 2048)},
            **{"expert0_gate_up": (4096, 7168), "expert0_down": (7168, 2048)},
        },
        671,
        37.5,
        ("8 of 256 experts", "3 layers with an MLP", "(yarn)", "kv_b", "1 layer for the prediction"),
        dense_layers=3,
    ),
    "google--gemma-4-26B-A4B": Card(
        {
            "model_type": "gemma4",
            "architectures": ["Gemma4ForConditionalGeneration"],
            "vision_config": {"model_type": "gemma4_vision", "hidden_size": 1152},
            "text_config": _config("gemma4_text", 2816, 30, 16, 2112, 262144, head_dim=256, num_key_value_heads=8)
            | {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "dtype": "bfloat16", "top_k_experts": 8}
            | {"enable_moe_block": True, "num_experts": 128, "moe_intermediate_size": 704, "sliding_window": 1024}
            | {"layer_types": GEMMA4_KINDS, "global_head_dim": 512, "num_global_key_value_heads": 2}
            | {"attention_k_eq_v": True, "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0}
            | {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
        },
        {
            **{"qkv": (8192, 2816), "o": (2816, 4096), "router": (128, 2816)},
            **{"shared_gate_up": (4224, 2816), "shared_down": (2816, 2112)},
            **{"expert0_gate_up": (1408, 2816), "expert0_down": (2816, 704)},
        },
        25.2,
        3.8,
        ("gelu_pytorch_tanh", "1024 tokens", "5 of 30 layers", "softcaps", "the encoders of vision"),
        is_tied=True,
    ),
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": Card(
        {
            "model_type": "llama4",
            "text_config": _config("llama4_text", 5120, 48, 40, 8192, 202048, head_dim=128, num_key_value_heads=8)
            | {"intermediate_size_mlp": 16384, "num_local_experts": 16, "num_experts_per_tok": 1}
            | {"interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "rope_theta": 500000.0}
            | {"rms_norm_eps": 1e-5},
        },
        {
            **{"qkv": (7168, 5120), "o": (5120, 5120), "router": (16, 5120)},
            **{"shared_gate_up": (16384, 5120), "shared_down": (5120, 8192)},
            **{"expert0_gate_up": (16384, 5120), "expert0_down": (5120, 8192)},
        },
        108,
        17.2,
        ("chunks of 8192", "1 of 16 experts"),
        shape={"intermediate": 16384},
    ),
    "meta-llama--Meta-Llama-3.1-8B": Card(
        _config("llama", 4096, 32, 32, 14336, 128256, **LLAMA3),
        {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)},
        8.03,
        left_out=("rope scaling (llama3)",),
        shape={"head_dim": 128, "qk_norm": False, "norm_epsilon": 1e-5, "rope_theta": 5e5},
    ),
    "meta-llama--Meta-Llama-3.1-70B": Card(
        _config("llama", 8192, 80, 64, 28672, 128256, **LLAMA3),
        {"qkv": (10240, 8192), "o": (8192, 8192), "gate_up": (57344, 8192), "down": (8192, 28672)},
        70.6,
    ),
    "mistralai--Mixtral-8x7B-v0.1": Card(
        _config("mixtral", 4096, 32, 32, 14336, 32000, num_key_value_heads=8, rope_theta=1e6)
        | {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None, "rms_norm_eps": 1e-5},
        {
            **{"qkv": (6144, 4096), "o": (4096, 4096), "router": (8, 4096)},
            **{"expert0_gate_up": (28672, 4096), "expert0_down": (4096, 14336)},
        },
        46.7,
        12.9,
    ),
}
OTHERS = {  # more models of the same families
    "Llama-2-7b": Card(  # older files have neither num_key_value_heads nor head_dim
        _config("llama", 4096, 32, 32, 11008, 32000),
        {"qkv": (12288, 4096), "o": (4096, 4096), "gate_up": (22016, 4096), "down": (4096, 11008)},
        6.74,
        shape={"rope_theta": 1e4, "left_out": None},
    ),
    "Mistral-7B-v0.1": Card(
        _config("mistral", 4096, 32, 32, 14336, 32000, head_dim=None, sliding_window=4096),
        {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)},
        7.24,
        left_out=("sliding windows of 4096 tokens",),
    ),
    "Qwen2.5-7B": Card(
        _config("qwen2", 3584, 28, 28, 18944, 152064, num_key_value_heads=4)
        | {"sliding_window": 131072, "use_sliding_window": False},
        {"qkv": (4608, 3584), "o": (3584, 3584), "gate_up": (37888, 3584), "down": (3584, 18944)},
        7.61,
        shape={"left_out": "the biases of q, k and v"},
    ),
    "Qwen2-57B-A14B": Card(
        _config("qwen2_moe", 3584, 28, 28, 18944, 151936, num_key_value_heads=4, num_experts=64)
        | {"num_experts_per_tok": 8, "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20480},
        {
            **{"qkv": (4608, 3584), "o": (3584, 3584), "router": (64, 3584)},
            **{"shared_gate_up": (40960, 3584), "shared_down": (3584, 20480)},
            **{"expert0_gate_up": (5120, 3584), "expert0_down": (3584, 2560)},
        },
        57.4,
        14.2,
    ),
    "gemma-2b": Card(
        _config("gemma", 2048, 18, 8, 16384, 256000, num_key_value_heads=1, head_dim=256, hidden_act="gelu"),
        {"qkv": (2560, 2048), "o": (2048, 2048), "gate_up": (32768, 2048), "down": (2048, 16384)},
        2.51,
        left_out=("the activation gelu_pytorch_tanh",),
        is_tied=True,
    ),
    "gemma-2-9b": Card(
        _config("gemma2", 3584, 42, 16, 14336, 256000, num_key_value_heads=8, head_dim=256, sliding_window=4096)
        | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        {"qkv": (8192, 3584), "o": (3584, 4096), "gate_up": (28672, 3584), "down": (3584, 14336)},
        9.24,
        left_out=("attn_logit_softcapping, final_logit_softcapping", "4096 tokens", "norms after attention"),
        is_tied=True,
    ),
    "gemma-3-4b-it": Card(  # its text_config has only what differs from the defaults of the family
        {
            "model_type": "gemma3",
            "architectures": ["Gemma3ForConditionalGeneration"],
            "vision_config": {"model_type": "siglip_vision_model"},
            "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
            | {"intermediate_size": 10240, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
        },
        {"qkv": (4096, 2560), "o": (2560, 2048), "gate_up": (20480, 2560), "down": (2560, 10240)},
        3.88,
        is_tied=True,
        shape={"qk_norm": True, "vocab": 262208},
    ),
    "Phi-3-mini-4k-instruct": Card(
        _config("phi3", 3072, 32, 32, 8192, 32064, num_key_value_heads=32, sliding_window=2047),
        {"qkv": (9216, 3072), "o": (3072, 3072), "gate_up": (16384, 3072), "down": (3072, 8192)},
        3.82,
    ),
    "DeepSeek-V2-Lite": Card(  # queries are not compressed
        _config("deepseek_v2", 2048, 27, 16, 10944, 102400, **LATENT, q_lora_rank=None, first_k_dense_replace=1)
        | {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408},
        {
            **{"q": (3072, 2048), "kv_a": (576, 2048), "kv_b": (4096, 512), "o": (2048, 2048), "router": (64, 2048)},
            **{"shared_gate_up": (5632, 2048), "shared_down": (2048, 2816)},
            **{"expert0_gate_up": (2816, 2048), "expert0_down": (2048, 1408)},
        },
        15.7,
        2.66,
        dense_layers=1,
    ),
}
DENSE = {  # (model_type, hidden, layers, heads, keys, width of a head, inner, vocab): linears follow by vLLM's rule
    "Llama-2-70b": (("llama", 8192, 80, 64, 8, None, 28672, 32000), 69.0, False),
    "Llama-3.1-405B": (("llama", 16384, 126, 128, 8, None, 53248, 128256), 406, False),
    "Mistral-Nemo-2407": (("mistral", 5120, 40, 32, 8, 128, 14336, 131072), 12.2, False),
    "Qwen2.5-0.5B": (("qwen2", 896, 24, 14, 2, None, 4864, 151936), 0.494, True),
    "Qwen3-32B": (("qwen3", 5120, 64, 64, 8, 128, 25600, 151936), 32.8, False),
    "gemma-2-27b": (("gemma2", 4608, 46, 32, 16, 128, 36864, 256000), 27.2, True),
    "gemma-3-1b": (("gemma3_text", 1152, 26, 4, 1, 256, 6912, 262144), 1.0, True),
    "gemma-3-27b": (("gemma3_text", 5376, 62, 32, 16, 128, 21504, 262208), 27.0, True),
    "Phi-4-mini": (("phi3", 3072, 32, 24, 8, None, 8192, 200064), 3.84, True),
    "phi-4": (("phi3", 5120, 40, 40, 10, None, 17920, 100352), 14.7, False),
}
SECTIONS = {  # text models within another file, which leaves out what the class has: (the section, its sizes)
    "pixtral-12b": (
        {"model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "num_hidden_layers": 40, "vocab_size": 131072}
        | {"num_key_value_heads": 8, "rope_theta": 1e9, "sliding_window": None},
        DENSE["Mistral-Nemo-2407"][0],
    ),
    "llava-1.5-7b": (
        {"model_type": "llama", "rms_norm_eps": 1e-5, "vocab_size": 32064},
        ("llama", 4096, 32, 32, 32, 128, 11008, 32064),
    ),
    "paligemma2-3b": (
        {"model_type": "gemma2", "vocab_size": 257216, "sliding_window": 4096},
        ("gemma2", 2304, 26, 8, 4, 256, 9216, 257216),
    ),
    "Ministral-3-8B": ({"model_type": "ministral3"}, ("mistral", 4096, 34, 32, 8, 128, 14336, 131072)),
    "Llama-4-Maverick": (
        {"model_type": "llama4_text", "num_local_experts": 128, "interleave_moe_layer_step": 2},
        ("llama4_text", 5120, 48, 40, 8, 128, 16384, 202048),
    ),
    "Kimi-K2.5": (
        {"model_type": "kimi_k2", "num_attention_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1},
        ("deepseek_v3", 7168, 61, 64, 64, 192, 18432, 129280),
    ),
}
CARDS = REAL | OTHERS

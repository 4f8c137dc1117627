"""Parts of a published model that no workload runs are named beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.config.model_cards import TINY, write_config

from launchopt.huggingface.config_json import read_model
from launchopt.huggingface.left_out import ONLY_WEIGHTS

WINDOW = {"sliding_window": 512}
LEFT_OUT: list[tuple[str, dict[str, Any], str | None]] = [
    ("mistral", WINDOW | {"num_key_value_heads": 2}, "sliding windows of 512 tokens"),
    ("qwen3", WINDOW, None),
    ("qwen3", WINDOW | {"use_sliding_window": True}, "sliding windows of 512 tokens"),
    ("qwen3", WINDOW | {"use_sliding_window": True, "layer_types": ["full_attention"] * 2}, None),
    ("llama", {"attention_bias": True, "mlp_bias": True}, "the biases of attention; the biases of the MLP"),
    ("llama", {"rope_parameters": {"rope_theta": 5e5, "rope_type": "yarn"}}, "rope scaling (yarn)"),
    ("llama", {"rope_scaling": {"rope_type": "default"}}, None),
    ("phi3", {"partial_rotary_factor": 0.75}, "rotation of only 0.75 of each head"),
    ("qwen2_vl", {"vision_config": {"depth": 32}}, "the biases of q, k and v; the encoders of vision"),
    ("llama", {"quantization_config": {"quant_method": "awq"}}, f"quantized weights (awq) {ONLY_WEIGHTS}"),
    (
        "llama",
        {"compression_config": {"quant_method": "w4a16"}},
        f"quantized weights (w4a16) {ONLY_WEIGHTS}",
    ),
    ("phi3", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rotation of only 0.5 of each head"),
    (
        "llama",
        {"rope_parameters": {"sliding_attention": {}, "full_attention": {"rope_type": "linear"}}},
        "rope scaling (linear); other angles of rotation in layers of full attention",
    ),
    (
        "gemma3_text",
        {"rope_scaling": {"rope_type": "linear"}, "num_key_value_heads": 2, "sliding_window": 512},
        "the norms after attention and after the MLP; the activation gelu_pytorch_tanh (SiLU runs); sliding windows of "
        "512 tokens; rope scaling (linear); other angles of rotation in layers of full attention",
    ),
]


@pytest.mark.parametrize(("kind", "more", "text"), LEFT_OUT)
def test_what_no_workload_runs_is_named(kind: str, more: dict[str, Any], text: str | None, tmp_path: Path) -> None:
    config = TINY | {"model_type": kind, **more}
    assert read_model(write_config(tmp_path, config)).left_out == text

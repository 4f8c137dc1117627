"""The models in conf/model: their published dimensions, and the weights that follow from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from support.paths import ROOT

from launchopt.streams.model import ModelShape

MODELS = ROOT / "conf/model"
LITGPT = ROOT.parent / "shared/data/models/model_shapes_litgpt.json"
HF = ROOT.parent / "shared/data/models/hf"
VLLM = ROOT.parent / "shared/data/shapes/vllm_weight_shapes.json"

KEYS = ["name", "hidden", "layers", "q_heads", "kv_heads", "head_dim", "intermediate", "gated", "vocab"]
IN_LITGPT = {
    "llama_3_8b": "Llama-3-8B",
    "llama_3_70b": "Llama-3-70B",
    "llama_3_2_1b": "Llama-3.2-1B",
    "qwen3_0_6b": "Qwen3-0.6B",
    "qwen3_8b": "Qwen3-8B",
    "qwen3_32b": "Qwen3-32B",
    "mistral_7b": "Mistral-7B-v0.3",
}
IN_VLLM = {
    "llama_3_8b": "meta-llama/Llama-3-8b",
    "llama_3_70b": "meta-llama/Llama-3.3-70B-Instruct",  # the shapes of Llama 3 70B
    "mistral_7b": "mistralai/Mistral-7B-v0.1",  # the shapes of v0.3, but for the vocabulary
}
CONFIGS = {
    "llama_3_8b": "meta-llama--Meta-Llama-3.1-8B",  # norms are those of Llama 3 8B
    "llama_3_70b": "meta-llama--Meta-Llama-3.1-70B",
    "qwen3_0_6b": "Qwen--Qwen3-0.6B",
    "qwen3_8b": "Qwen--Qwen3-8B",
}
OURS = {"tiny", "small_1024", "folovllm"}  # no published model
WITH_EXPERTS = {  # (hidden, layers, experts, experts of a token, features of an expert)
    "tiny_moe": (128, 2, 16, 4, 64),  # no published model
    "qwen3_30b_a3b": (2048, 48, 128, 8, 768),
}


def document(name: str) -> dict[str, Any]:
    loaded = OmegaConf.to_container(OmegaConf.load(MODELS / f"{name}.yaml"))
    assert isinstance(loaded, dict)
    return {str(key): value for key, value in loaded.items()}


def model(name: str) -> ModelShape:
    facts = document(name)
    del facts["defaults"]
    facts.pop("vocab", None)
    return ModelShape(**facts)


def published(path: Path) -> dict[str, Any]:
    if not path.exists():
        pytest.skip(f"no {path.name}: download it from its source")
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


def test_every_model_is_checked_here() -> None:
    assert {path.stem for path in MODELS.glob("*.yaml")} == set(IN_LITGPT) | OURS | set(WITH_EXPERTS)


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_a_model_with_experts(name: str) -> None:
    found = model(name)
    experts = found.experts, found.experts_per_token, found.expert_intermediate
    assert (found.hidden, found.layers, *experts) == WITH_EXPERTS[name]
    assert not found.shared_intermediate
    assert document(name)["name"] == name
    assert (MODELS / f"{name}.yaml").read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("name", sorted(set(IN_LITGPT) | OURS))
def test_file(name: str) -> None:
    facts = document(name)
    of_qwen = ["qk_norm"] * name.startswith("qwen3")
    of_qwen += ["norm_epsilon"] * (name.startswith("qwen3") or name == "folovllm")
    keys = [*KEYS[:-1], *of_qwen, *KEYS[-1:] * (name != "small_1024")]
    assert list(facts) == ["defaults", *keys]
    assert facts["defaults"] == ["/schema/model/base@_here_", "_self_"]
    assert facts["name"] == name
    assert (MODELS / f"{name}.yaml").read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("name", sorted(IN_LITGPT))
def test_published_dimensions(name: str) -> None:
    facts = published(LITGPT)[IN_LITGPT[name]]
    assert document(name)["vocab"] == facts["padded_vocab_size"]
    assert model(name) == ModelShape(
        name=name,
        hidden=facts["n_embd"],
        layers=facts["n_layer"],
        q_heads=facts["n_head"],
        kv_heads=facts["n_query_groups"],
        head_dim=facts["head_size"],
        intermediate=facts["intermediate_size"],
        gated=True,
        qk_norm="Qwen3" in facts["hf"]["name"],
        norm_epsilon=model(name).norm_epsilon,  # litgpt's table does not have it
    )


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_published_epsilon_of_norms(name: str) -> None:
    assert model(name).norm_epsilon == published(HF / f"{CONFIGS[name]}.json")["rms_norm_eps"]


@pytest.mark.parametrize("name", sorted(IN_VLLM))
def test_published_weights(name: str) -> None:
    table = published(VLLM)[IN_VLLM[name]]
    assert [[k, m] for _, m, k in model(name).linears()] == [[k, n] for k, n, _ in table]


def test_the_model_of_gpu_kernel_batcher() -> None:
    assert model("small_1024").layers == 8
    assert model("small_1024").linears() == (
        ("qkv", 1536, 1024),
        ("o", 1024, 1024),
        ("up", 4096, 1024),
        ("down", 1024, 4096),
    )


def test_tiny() -> None:
    assert model("tiny").layers == 2
    assert model("tiny").linears() == (
        ("qkv", 128, 64),
        ("o", 64, 64),
        ("gate_up", 256, 64),
        ("down", 64, 128),
    )


@pytest.mark.parametrize(("name", "attention"), [("qwen3_0_6b", 2048), ("qwen3_32b", 8192)])
def test_heads_need_not_fill_hidden(name: str, attention: int) -> None:
    shape = model(name)
    assert shape.q_heads * shape.head_dim == attention != shape.hidden
    assert shape.linears()[1] == ("o", shape.hidden, attention)


def test_a_token_keeps_keys_and_values_of_each_head_or_what_mla_compressed() -> None:
    shape = ModelShape("any", 64, 2, 8, 2, 16, 128)
    assert shape.cache_features == 64
    assert replace(shape, kv_rank=24, rope_dim=8, v_dim=16).cache_features == 32

"""A config.json gives the linear layers that the model card says; anything else is refused in one line."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.config.model_cards import CARDS, DENSE, REAL, SECTIONS, TINY, Card, write_config
from support.paths import ROOT

from launchopt.errors import DataError
from launchopt.huggingface.config_json import MOST_BYTES, name_of, read_model
from launchopt.streams.model import Model

SHARED = ROOT.parent / "shared/data/models/hf"


def read(folder: Path, **changes: Any) -> Model:
    return read_model(write_config(folder, TINY | changes))


def fails(folder: Path, **changes: Any) -> str:
    with pytest.raises(DataError) as refused:
        read(folder, **changes)
    text = str(refused.value)
    assert "\n" not in text
    assert refused.value.exit_code == 2
    return text.partition("config.json: ")[2]


@pytest.mark.parametrize("name", CARDS)
def test_the_linear_layers_are_those_of_the_model_card(name: str, tmp_path: Path) -> None:
    card, model = CARDS[name], read_model(write_config(tmp_path / name, CARDS[name].config))
    found = {each: (m, k) for each, m, k in model.shape().linears()}
    assert {each: size for each, size in found.items() if each[:6] != "expert" or each[:7] == "expert0"} == card.linears
    assert len(found) == len(card.linears) + 2 * max(0, model.experts_per_token - 1)
    for word in card.left_out:
        assert word in str(model.left_out)
    assert {each: getattr(model, each) for each in card.shape} == card.shape


def parameters(card: Card, model: Model, experts: int) -> float:
    """Billions of parameters, without norms and biases. experts: how many of each layer count."""
    shape = model.shape()
    layer = replace(shape, experts_per_token=experts).layer_weights if model.experts else shape.layer_weights
    dense = replace(shape, experts=0).layer_weights
    tables = model.hidden * (model.vocab or 0) * (1 if card.is_tied else 2)
    return ((model.layers - card.dense_layers) * layer + card.dense_layers * dense + tables) / 1e9


@pytest.mark.parametrize("name", CARDS)
def test_the_parameters_are_as_many_as_the_model_card_says(name: str, tmp_path: Path) -> None:
    card = CARDS[name]
    model = read_model(write_config(tmp_path, card.config))
    assert parameters(card, model, model.experts) == pytest.approx(card.billions, rel=0.01)
    if card.billions_active is not None:
        assert parameters(card, model, model.experts_per_token) == pytest.approx(card.billions_active, rel=0.02)


@pytest.mark.parametrize("name", REAL)
def test_a_published_file_gives_the_same_as_its_facts(name: str, tmp_path: Path) -> None:
    if not (SHARED / f"{name}.json").exists():
        pytest.skip(f"no {name}.json: download the config.json of the model")
    published = read_model(SHARED / f"{name}.json")
    facts = read_model(write_config(tmp_path, REAL[name].config))
    assert published.name == name.partition("--")[2]
    assert replace(published, name="", left_out="") == replace(facts, name="", left_out="")


@given(*[st.integers(1, 64)] * 5)
def test_any_dense_model_follows_the_rule_of_vllm(
    tmp_path_factory: pytest.TempPathFactory, hidden: int, groups: int, keys: int, head: int, inner: int
) -> None:
    model = read(
        tmp_path_factory.getbasetemp() / "any",
        **{"hidden_size": hidden, "num_attention_heads": groups * keys, "num_key_value_heads": keys},
        **{"head_dim": head, "intermediate_size": inner},
    )
    q = groups * keys * head
    assert model.shape().linear_sizes() == [
        (q + 2 * keys * head, hidden),
        (hidden, q),
        (2 * inner, hidden),
        (hidden, inner),
    ]


SIZES = ("hidden", "layers", "q_heads", "kv_heads", "head_dim", "intermediate", "vocab")


@pytest.mark.parametrize("name", DENSE)
def test_dense_models_have_the_parameters_of_their_model_card(name: str, tmp_path: Path) -> None:
    (kind, hidden, layers, heads, keys, width, inner, vocab), billions, is_tied = DENSE[name]
    values = {"model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    values |= {"num_key_value_heads": keys, "head_dim": width, "intermediate_size": inner, "vocab_size": vocab}
    model = read_model(write_config(tmp_path, values))
    q = heads * (width or hidden // heads)
    kv = keys * (width or hidden // heads)
    linears = [(q + 2 * kv, hidden), (hidden, q), (2 * inner, hidden), (hidden, inner)]
    assert model.shape().linear_sizes() == linears
    assert parameters(Card({}, {}, billions, is_tied=is_tied), model, 0) == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.parametrize("section", ["text_config", "language_config", "llm_config"])
def test_a_section_lacks_what_the_class_has(name: str, section: str, tmp_path: Path) -> None:
    values, (_, *sizes) = SECTIONS[name]
    model = read_model(write_config(tmp_path, {"model_type": "of_images_too", section: values}))
    assert [getattr(model, each) for each in SIZES] == sizes


def test_a_model_of_text_alone_has_no_sections_and_no_sizes_of_a_class(tmp_path: Path) -> None:
    assert read(tmp_path, text_config={"model_type": "gemma2"}).hidden == TINY["hidden_size"]
    assert fails(tmp_path, num_hidden_layers=None, text_config={"model_type": "llama"}).startswith("num_hidden_layers")


def test_what_is_null_is_derived_and_what_is_absent_is_that_of_the_class(tmp_path: Path) -> None:
    heads = {"model_type": "mistral", "num_attention_heads": 16}
    assert read(tmp_path, **heads).kv_heads == 8
    assert read(tmp_path, **heads, num_key_value_heads=None).kv_heads == 16
    assert read(tmp_path, model_type="qwen3").head_dim == 128
    assert read(tmp_path, model_type="qwen3", head_dim=None).head_dim == 16


LATENT = {"model_type": "deepseek_v3"} | {
    **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
}
BAD_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": -1}, "hidden_size=-1: must be a whole number from 1 to 2147483647"),
    ({"hidden_size": 0}, "hidden_size=0: must be"),
    ({"hidden_size": True}, "hidden_size=True: must be"),
    ({"hidden_size": 64.0}, "hidden_size=64.0: must be"),
    ({"hidden_size": "64"}, "hidden_size=64: must be"),
    ({"hidden_size": 10**40}, "hidden_size=1000"),
    ({"hidden_size": None}, "hidden_size: missing"),
    ({"num_hidden_layers": 1025}, "num_hidden_layers=1025: must be a whole number from 1 to 1024"),
    ({"num_attention_heads": 0}, "num_attention_heads=0: must be"),
    ({"num_attention_heads": 5}, "hidden_size=64: must be a multiple of num_attention_heads=5"),
    ({"num_key_value_heads": 3}, "num_attention_heads=4: must be a multiple of num_key_value_heads=3"),
    ({"num_key_value_heads": -4}, "num_key_value_heads=-4: must be"),
    ({"head_dim": 0}, "head_dim=0: must be"),
    ({"intermediate_size": []}, "intermediate_size=[]: must be"),
    ({"vocab_size": 1 << 30}, "vocab_size=1073741824: must be a whole number from 1 to 2097151"),
    ({"rope_theta": float("nan")}, "rope_theta=nan: must be a number above 0"),
    ({"rope_theta": -1}, "rope_theta=-1: must be a number above 0"),
    ({"rms_norm_eps": 2}, "rms_norm_eps=2: must be from 1e-12 to 1"),
    ({"attention_bias": "no"}, "attention_bias=no: must be true or false"),
    ({"layer_types": "full_attention"}, "layer_types=full_attention: must be a list of texts"),
    ({"model_type": None}, "model_type: missing; allowed: deepseek_v2"),
    ({"model_type": "qwen4"}, "model_type=qwen4: an unknown architecture; allowed: deepseek_v2"),
    ({"model_type": ["llama"]}, "model_type=['llama']: an unknown architecture"),
    ({"model_type": "t5\n\x1b[2J"}, "model_type=t5"),
    ({"model_type": None, "architectures": ["Rwkv"]}, "architectures=Rwkv: an unknown architecture"),
    ({"model_type": "mixtral"}, "num_local_experts: missing"),
    (
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
        "num_experts_per_tok=5: must be a whole number from 1 to 4",
    ),
    ({"model_type": "deepseek_v3"}, "qk_rope_head_dim: missing"),
    (
        LATENT | {"moe_intermediate_size": 2048, "n_shared_experts": 2**31 - 1},
        "moe_intermediate_size=2048: with n_shared_experts=2147483647, gives 4398046509056; allowed: at most",
    ),
    (
        LATENT | {"qk_nope_head_dim": 2**31 - 1},
        "qk_nope_head_dim=2147483647: with qk_rope_head_dim=64, gives 2147483711; allowed: at most 2147483647",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BAD_VALUES, ids=[message[:40] for _, message in BAD_VALUES])
def test_a_field_that_does_not_fit_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert fails(tmp_path, **changes).startswith(message)


@pytest.mark.parametrize("name", ["gemma3n", "llava", "llama5"])
def test_another_architecture_is_no_misspelling_of_a_known_one(name: str, tmp_path: Path) -> None:
    message = fails(tmp_path, model_type=name)
    assert "did you mean" not in message
    assert "qwen3_moe; or give its sizes: model=tiny model.hidden=..." in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not the JSON of a model"),
        ('{"hidden_size": 1,', "not the JSON of a model"),
        ("[" * 100_000, "not the JSON of a model (nested too deeply)"),
        ("[1]", "not the JSON of a model: it holds no object"),
        ("\x00", "not the JSON of a model"),
        ('{"a": ' + "1" * 5000 + "}", "not the JSON of a model"),
        (" " * (MOST_BYTES + 1), "not the JSON of a model (over 1 MiB)"),
    ],
)
def test_a_file_that_is_no_config_is_refused(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config\.json: ") as refused:
        read_model(write_config(tmp_path, content))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    for path in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(DataError, match="a named pipe"):
            read_model(path)
    with pytest.raises(DataError, match="no such file; allowed: the path of a"):
        read_model(tmp_path / "other.json")
    with pytest.raises(DataError, match=r"config\.json: no such file"):
        read_model(write_config(tmp_path / "folder", TINY, "params.json").parent)


def test_no_code_is_run_and_no_text_is_resolved(tmp_path: Path) -> None:
    write_config(tmp_path, "raise SystemExit('ran')", "configuration_x.py")
    evil = "${oc.env:HOME}; _target_: os.system"
    model = read(
        tmp_path,
        auto_map={"AutoConfig": "configuration_x.X"},
        _target_="os.system",
        hidden_act=evil,
        torch_dtype=evil,
        rope_scaling={"type": evil},
        quantization_config={"quant_method": evil},
    )
    assert "configuration_x" not in sys.modules
    assert not {"$", "{", ":"} & set(f"{model.left_out}{model.dtype}{model.name}")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen3-8B/config.json", "Qwen3-8B"),
        ("Qwen--Qwen3-8B.json", "Qwen3-8B"),
        ("hub/models--Qwen--Qwen3-8B/snapshots/0123abcd/config.json", "Qwen3-8B"),
        ("my ${x} model/config.json", "my_x_model"),
        ("a/../b/config.json", "b"),
        ("é.json", "é"),
        ("--.json", "model"),
    ],
)
def test_the_name_is_that_of_the_file_or_folder(path: str, name: str, tmp_path: Path) -> None:
    assert name_of(tmp_path / path) == name


def test_where_the_model_type_is_missing_the_class_says_it(tmp_path: Path) -> None:
    assert read(tmp_path, model_type=None, architectures=["Qwen3ForCausalLM"]).qk_norm
    assert fails(tmp_path, model_type="rwkv", architectures=["LlamaForCausalLM"]).startswith("model_type=rwkv")


def test_layers_without_experts_are_counted(tmp_path: Path) -> None:
    mixture = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    some = read(tmp_path, model_type="qwen3_moe", **mixture, mlp_only_layers=[0])
    assert "1 layer with an MLP instead of experts, run like the others" in str(some.left_out)
    assert read(tmp_path, model_type="qwen3_moe", **mixture, mlp_only_layers=[0, 1]).shape().is_dense
    assert read(tmp_path, model_type="qwen3_moe", **mixture | {"num_experts": 0}).shape().is_dense
    llama4 = {"model_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1, "moe_layers": []}
    assert read(tmp_path, **llama4).shape().is_dense


def test_a_base_of_rotation_may_be_as_large_as_published_ones(tmp_path: Path) -> None:
    assert read(tmp_path, rope_theta=3580165449.0).rope_theta == 3580165449.0
    assert "rope_theta=1e+16: must be a number above 0 and below 1e+15" in fails(tmp_path, rope_theta=1e16)


def test_the_element_type_auto_names_none(tmp_path: Path) -> None:
    assert read(tmp_path, torch_dtype="auto").dtype is None


def test_a_quantization_that_is_no_object_is_refused(tmp_path: Path) -> None:
    assert "quantization_config=[1]: must be an object, or null" in fails(tmp_path, quantization_config=[1])


def test_a_key_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8, "hidden_size": 16}')
    with pytest.raises(DataError, match="the key hidden_size comes twice in one object"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("of_class", "kind"),
    [
        ("LlamaForCausalLM", "llama"),
        ("Qwen3MoeForCausalLM", "qwen3_moe"),
        ("Gemma3ForCausalLM", "gemma3_text"),
        ("Ministral3ForCausalLM", "mistral"),
    ],
)
def test_without_a_model_type_the_class_names_the_family(of_class: str, kind: str, tmp_path: Path) -> None:
    sizes = {"num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    found = read(tmp_path, model_type=None, architectures=[of_class], **sizes)
    assert found == read(tmp_path, model_type=kind, **sizes)

"""Names the parts of a published model that no workload runs, as short phrases for a notice."""

from __future__ import annotations

from itertools import product

from launchopt.huggingface.families import Family, Mixture
from launchopt.huggingface.fields import Fields

SILU = ("silu", "swish")
QUANTIZED = ("quantization_config", "compression_config")
SEPARATOR = "; "  # between phrases
ONLY_MOE, ONLY_WEIGHTS = "(only workload=moe does)", "(only workload.weights does)"  # end what a run may have
ROTATED = ("full_attention", "sliding_attention")  # kinds of layers whose rotation `rope_parameters` may give


def left_out(text: Fields, whole: Fields, family: Family, mixture: Mixture | None) -> list[str]:
    """Return the phrases. text: fields of the language model. whole: those of the file, which may hold encoders."""
    return [
        *_of_layers(text, family),
        *_of_attention(text, family),
        *_of_experts(text, mixture),
        *_of_file(text, whole),
    ]


def _of_layers(text: Fields, family: Family) -> list[str]:
    found = list(family.left_out)
    activation = text.word("hidden_activation") or text.word("hidden_act") or SILU[0]
    if activation not in SILU:
        found.append(f"the activation {activation} (SiLU runs)")
    found += ["the biases of attention"] if text.flag("attention_bias") else []
    found += ["the biases of the MLP"] if text.flag("mlp_bias") else []
    if text.whole_or("hidden_size_per_layer_input", 0):
        found.append("inputs of each layer (hidden_size_per_layer_input)")
    return found


def _of_attention(text: Fields, family: Family) -> list[str]:
    kinds = text.words("layer_types")
    found = []
    if tokens := _window(text, family, kinds):
        found.append(f"sliding windows of {tokens} tokens")
    if chunk := text.whole_or("attention_chunk_size", 0):
        found.append(f"attention in chunks of {chunk} tokens")
    if "global_head_dim" in text and (full := kinds.count("full_attention")):
        heads = text.whole_or("num_global_key_value_heads", text.whole_or("num_key_value_heads", 1, 1), 1)
        width = text.whole("global_head_dim")
        keys = "keys that are values, too" if text.flag("attention_k_eq_v") else "keys and values"
        other = f"heads of {width} features and {heads} heads of {keys}"
        found.append(f"the full attention of {full} of {len(kinds)} layers, with {other}, run like the others")
    if shared := text.whole_or("num_kv_shared_layers", 0):
        wider = ", and an MLP twice as wide" if text.flag("use_double_wide_mlp") else ""
        found.append(f"{_layers(shared)} with the keys and values of others{wider}")
    softcaps = [name for name in ("attn_logit_softcapping", "final_logit_softcapping") if text.value(name)]
    found += [f"softcaps ({', '.join(softcaps)})"] if softcaps else []
    return found + _of_rotation(text)


def _window(text: Fields, family: Family, kinds: list[str]) -> int:
    """Return the tokens of the sliding windows; 0 if no layer has them."""
    tokens = text.whole_or("sliding_window", 0)
    if kinds:
        return tokens if "sliding_attention" in kinds else 0
    return 0 if family.windows_by_flag and not text.flag("use_sliding_window") else tokens


def _of_rotation(text: Fields) -> list[str]:
    given = [each for name in ("rope_scaling", "rope_parameters") if (each := text.section(name))]
    inner = [each for part in given for name in ROTATED if (each := part.section(name))]
    kinds = dict.fromkeys(each.word("rope_type") or each.word("type") or "default" for each in (*given, *inner))
    scaled = ", ".join(kind for kind in kinds if kind != "default")
    found = [f"rope scaling ({scaled})"] if scaled else []
    if "rope_local_base_freq" in text or any("full_attention" in each for each in given):
        found.append("other angles of rotation in layers of full attention")
    parts = [part for each in (text, *given) if (part := each.positive("partial_rotary_factor")) not in (None, 1.0)]
    return [*found, f"rotation of only {parts[0]:g} of each head"] if parts else found


def _of_experts(text: Fields, mixture: Mixture | None) -> list[str]:
    found = ["projections that engines absorb into attention (kv_b)"] if "kv_lora_rank" in text else []
    if mixture is None:
        return found
    found.append(
        f"the choice of {mixture.per_token} of {mixture.experts} experts, and the sum of their outputs {ONLY_MOE}"
    )
    if mixture.dense_layers:
        found.append(f"{_layers(mixture.dense_layers)} with an MLP instead of experts, run like the others")
    return found


def _of_file(text: Fields, whole: Fields) -> list[str]:
    found = []
    if predicted := text.whole_or("num_nextn_predict_layers", text.whole_or("num_mtp_layers", 0)):
        found.append(f"{_layers(predicted)} for the prediction of further tokens")
    for each, name in product((text, whole), QUANTIZED):
        if name in each and not isinstance(each.value(name), dict):
            raise each.error(name, "must be an object, or null")
    sections = [each.section(name) for name in QUANTIZED for each in (text, whole)]
    if quantized := next((each for each in sections if each), None):
        found.append(f"quantized weights ({quantized.word('quant_method') or 'unnamed'}) {ONLY_WEIGHTS}")
    encoders = [name for name in ("vision", "audio") if whole.section(f"{name}_config") is not None]
    return [*found, f"the encoders of {' and '.join(encoders)}"] if encoders else found


def _layers(count: int) -> str:
    return f"{count} layer{'s' if count > 1 else ''}"

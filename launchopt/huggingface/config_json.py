"""Read a model's dimensions from its config.json, as Hugging Face publishes it.

    model = read_model(Path("Qwen3-8B"))        a folder with a config.json, or any file of that kind

In: a regular JSON file of up to 1 MiB. Out: a `Model`, whose `left_out` names what no workload runs; or a DataError of
one line. Only numbers and known words are taken. Code that a file names (`auto_map`) is not loaded.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from launchopt.errors import DataError, choices, explained, one_line
from launchopt.files import read_json, reason
from launchopt.huggingface.class_defaults import CLASS_DEFAULTS
from launchopt.huggingface.families import ALIASES, FAMILIES, Mixture
from launchopt.huggingface.fields import Fields, as_word
from launchopt.huggingface.left_out import SEPARATOR, left_out
from launchopt.sampling import MOST_VOCAB
from launchopt.streams.model import MOST_LAYERS, Model

FILE = "config.json"
MOST_BYTES = 1 << 20  # maximum size of a file; a list of quantized layers can take 100 KiB
# A program wrote model_type, so a similar word is no misspelling: gemma3n is another architecture than gemma.
OWN_SIZES = "give its sizes: model=tiny model.hidden=... (launchopt run --help has all)"
TEXT_SECTIONS = ("text_config", "language_config", "llm_config")  # of models that read images or sound, too


def read_model(path: Path) -> Model:
    """Return the model that a file, or the config.json in a folder, describes; DataError if that is not possible."""
    file = _file(path)
    values = _object(file)
    whole = Fields(file, values)
    inner = _text_of(values)
    family = FAMILIES[_family(whole, Fields(file, inner))]
    text = Fields(file, inner, family.defaults)
    mixture = family.mixture(text) if family.mixture else None
    sizes: dict[str, Any] = (_latents(text) if family.has_latents else _heads(text)) | _experts(mixture)
    return Model(
        name=name_of(file),
        hidden=text.whole("hidden_size"),
        layers=text.whole("num_hidden_layers", 1, MOST_LAYERS),
        intermediate=text.whole(family.intermediate if family.intermediate in text else "intermediate_size"),
        qk_norm=family.qk_norm,
        norm_epsilon=text.between("rms_norm_eps", 1e-12, 1.0, family.norm_epsilon),
        vocab=text.whole("vocab_size", 1, MOST_VOCAB) if "vocab_size" in text else None,
        rope_theta=_theta(text),
        dtype=_dtype(text, whole),
        left_out=SEPARATOR.join(left_out(text, whole, family, mixture)) or None,
        **sizes,
    )


def name_of(file: Path) -> str:
    """Return the name for tables: that of the file, or of the folder around a config.json, without an organization.

    In the cache of Hugging Face the folder of a snapshot has the name of a revision, and the model's is above.
    """
    whole = Path(os.path.abspath(file))  # noqa: PTH100  # resolve() would follow the links of that cache
    name = whole.stem if whole.name != FILE else whole.parent.name
    if whole.name == FILE and whole.parent.parent.name == "snapshots":
        name = whole.parent.parent.parent.name
    return as_word(name.rpartition("--")[2]) or "model"


def _file(path: Path) -> Path:
    """Return the config.json in a folder, or the path itself. `_object` says why a path cannot be read."""
    try:
        return path / FILE if path.is_dir() else path
    except OSError:
        return path


def _object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; DataError for anything else."""
    try:
        found = read_json(file, MOST_BYTES)
    except FileNotFoundError:
        why = f"no such file; allowed: the path of a {FILE}, or of a folder with one"
        raise DataError(file, None, why) from None
    except OSError as error:
        raise DataError(file, None, f"cannot be read: {reason(error)}") from None
    except ValueError as error:
        raise DataError(file, None, f"not the JSON of a model ({error})") from None
    if not isinstance(found, dict):
        raise DataError(file, None, "not the JSON of a model: it holds no object")
    return found


def _text_of(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the language model: those of its section, with the defaults of its class, or all."""
    if values.get("model_type") in tuple(FAMILIES):  # a model of text alone
        return values
    section = next((found for name in TEXT_SECTIONS if isinstance(found := values.get(name), dict) and found), None)
    if section is None:
        return values
    kind = section.get("model_type") or values.get("model_type")
    known = (
        CLASS_DEFAULTS.get(ALIASES.get(kind, kind), {}) | CLASS_DEFAULTS.get(kind, {}) if isinstance(kind, str) else {}
    )
    return known | section


def _family(whole: Fields, text: Fields) -> str:
    """Return the key of FAMILIES for a model, from `model_type`, or else from `architectures`."""
    for fields in (text, whole):
        kind = fields.value("model_type")
        if isinstance(kind, str) and ALIASES.get(kind, kind) in FAMILIES:
            return ALIASES.get(kind, kind)
    kind = text.value("model_type") or whole.value("model_type")
    classes = whole.value("architectures")
    first = str(classes[0]) if isinstance(classes, list) and classes else ""
    bare = first.removesuffix("ForCausalLM").lower()
    if kind is None and (
        found := next((name for name in (*FAMILIES, *ALIASES) if name.replace("_", "") == bare), None)
    ):
        return ALIASES.get(found, found)
    key, value = ("architectures", first) if kind is None and first else ("model_type", kind)
    if value is None:
        raise DataError(whole.path, None, f"model_type: missing; allowed: {choices(FAMILIES)}")
    shown = one_line(str(value), 60)
    why = explained(f"{key}={shown}: an unknown architecture", choices(FAMILIES))
    raise DataError(whole.path, None, f"{why}; or {OWN_SIZES}")


def _heads(text: Fields) -> dict[str, int]:
    """Return the heads of a model without MLA. `head_dim` may be absent, and `num_key_value_heads`, too."""
    queries = text.whole("num_attention_heads")
    keys = text.whole_or("num_key_value_heads", queries, 1)
    if queries % keys:
        raise text.error("num_attention_heads", f"must be a multiple of num_key_value_heads={keys}")
    hidden = text.whole("hidden_size")
    if "head_dim" not in text and hidden % queries:
        why = f"must be a multiple of num_attention_heads={queries}, unless there is a head_dim"
        raise text.error("hidden_size", why)
    return {"q_heads": queries, "kv_heads": keys, "head_dim": text.whole_or("head_dim", hidden // queries, 1)}


def _latents(text: Fields) -> dict[str, int]:
    """Return the heads and ranks of a model with MLA."""
    queries, rotated = text.whole("num_attention_heads"), text.whole("qk_rope_head_dim")
    parts = "qk_nope_head_dim", "qk_rope_head_dim"
    return {
        "q_heads": queries,
        "kv_heads": queries,
        "head_dim": text.derived(text.whole(parts[0]) + rotated, *parts),
        "q_rank": text.whole_or("q_lora_rank", 0),
        "kv_rank": text.whole("kv_lora_rank"),
        "rope_dim": rotated,
        "v_dim": text.whole("v_head_dim"),
    }


def _experts(mixture: Mixture | None) -> dict[str, int]:
    if mixture is None:
        return {}
    return {
        "experts": mixture.experts,
        "experts_per_token": mixture.per_token,
        "expert_intermediate": mixture.intermediate,
        "shared_intermediate": mixture.shared,
    }


def _dtype(*sections: Fields) -> str | None:
    """Return the published element type; None if it is absent, or `auto`, which names none."""
    words = (each.word(name) for each in sections for name in ("dtype", "torch_dtype"))
    return next((word for word in words if word and word != "auto"), None)


def _theta(text: Fields) -> float:
    """Return the base of the angles of rotation. Where kinds of layers have their own, sliding attention's counts."""
    given = text.section("rope_parameters")
    inner = given.section("sliding_attention") if given else None
    found = (
        inner.positive("rope_theta") if inner else None,
        text.positive("rope_local_base_freq"),
        given.positive("rope_theta") if given else None,
        text.positive("rope_theta"),
    )
    return next((theta for theta in found if theta), 10_000.0)

"""The error for a setting that the user must give: what kind of value it takes, and an example to type."""

from __future__ import annotations

from dataclasses import Field, fields, is_dataclass
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf

from launchopt.errors import ConfigError
from runner.config.composing import group_options
from runner.config.typed.names import declaration

OPTIONS = {"mode": "batched", "model": "tiny", "workload": "gemv_micro"}  # examples, by group
FILES = {  # kind of file and example, by option of a workload or an arrival
    "list": ("", "gemms.csv"),
    "trace": ("", "trace.json"),
    "replay": ("a file of requests: an Azure or Mooncake trace, or CSV", "requests.csv"),
}
VALUES = {int: ("a whole number", "64"), float: ("a number", "1000"), str: ("text", "NAME")}  # by type


def required(config: DictConfig, key: str) -> ConfigError:
    """Return the error for a setting that has no value in a composed config."""
    if key in group_options():
        example = OPTIONS.get(key) or sorted(group_options()[key])[0]
        return ConfigError.required(key, f"one of its options; type {key}={example}")
    section, _, name = key.rpartition(".")
    node = OmegaConf.select(config, section) if section else config
    hint, field = _declared(OmegaConf.get_type(node), key)
    what, example = VALUES.get(hint, ("a value", "..."))
    if field is not None and (told := field.metadata.get("help")):
        limits = str(field.metadata.get("limits", ""))
        what = f"{told}, {limits}" if limits else told
    if name == "path":
        asked = {str(node._get_node(each)) for each in ("name", "kind") if each in node}
        kind, example = next((FILES[each] for each in FILES if each in asked), ("", "FILE"))
        what = kind or what
    return ConfigError.required(key, f"{what}; type {key}={example}")


def _declared(kind: Any, key: str) -> tuple[Any, Field[Any] | None]:
    """Return the type and the field of a setting: of the class of its section, or else of any option of its group."""
    name = key.rpartition(".")[2]
    own = [each for each in fields(kind) if each.name == name] if is_dataclass(kind) else []
    if own:
        return get_type_hints(kind)[name], own[0]
    return declaration(key) or (None, None)

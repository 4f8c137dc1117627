"""A composed config as checked objects.

Hydra checks names and types when it composes. `to_config` checks ranges and combinations, before any process starts.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from omegaconf import Container, DictConfig, OmegaConf, read_write
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from launchopt.errors import ConfigError
from runner.config.schema import Config
from runner.config.typed.names import unknown_setting, unresolved, wrong_type
from runner.config.typed.required import required


def to_config(composed: DictConfig) -> Config:
    """Return the composed config as checked objects; ConfigError for a wrong key, type, range or combination."""
    try:
        _refuse_unknown(composed)
        config = OmegaConf.to_object(composed)
    except MissingMandatoryValue as error:
        key = str(error.full_key)
        raise required(composed, key) from None
    except OmegaConfBaseException as error:
        key = str(error.full_key)
        raise ConfigError(key, _as_typed(composed, key), unresolved(error)) from None
    assert isinstance(config, Config)
    return config


def _as_typed(composed: DictConfig, key: str) -> object:
    """Return the value of a key before interpolation, as the user typed it."""
    found: object = OmegaConf.to_container(composed, resolve=False)
    for name in key.split("."):
        found = found.get(name, "?") if isinstance(found, dict) else "?"
    return found


def _refuse_unknown(node: DictConfig, above: str = "") -> None:
    """Raise ConfigError for a key that no schema has, which Hydra accepts if the user types `+key=value`.

    The same for a section or list that is an interpolation of another type, which OmegaConf accepts.
    """
    kind = OmegaConf.get_type(node)
    known = [each.name for each in fields(kind)] if is_dataclass(kind) else None
    for name in map(str, node):
        value = None if OmegaConf.is_missing(node, name) else node[name]
        if known is not None and name not in known:
            raise unknown_setting(f"{above}{name}", value)
        typed = node._get_node(name)
        if isinstance(typed, Container) and typed._is_interpolation():
            try:
                with read_write(trial := node.copy()):
                    trial[name] = value
            except OmegaConfBaseException:
                raise wrong_type(f"{above}{name}", str(typed._value())) from None
        if isinstance(value, DictConfig):
            _refuse_unknown(value, f"{above}{name}.")

"""Hydra's launchers and sweepers that this program supports: one of each, which run jobs one after another.

Any other plugin is refused, installed or not. It would run jobs in processes that this program does not watch.
"""

from __future__ import annotations

from typing import NamedTuple

from omegaconf import DictConfig

from launchopt.errors import ConfigError


class Plugin(NamedTuple):
    """A supported option of a group of Hydra, its class, and the settings that it has."""

    option: str
    target: str
    settings: tuple[str, ...] = ()


PLUGINS = {
    "hydra/launcher": Plugin("basic", "hydra._internal.core_plugins.basic_launcher.BasicLauncher"),
    "hydra/sweeper": Plugin(
        "basic", "hydra._internal.core_plugins.basic_sweeper.BasicSweeper", ("max_batch_size", "params")
    ),
}


def check_option(group: str, option: str) -> None:
    """Raise ConfigError if `group` is one of PLUGINS and `option` is not supported."""
    if group in PLUGINS and option != PLUGINS[group].option:
        raise _unsupported(group, group, option)


def check_plugins(hydra: DictConfig) -> None:
    """Raise ConfigError if the composed node `hydra` has a launcher or sweeper that is not supported."""
    for group, plugin in PLUGINS.items():
        check_option(group, str(hydra.runtime.choices.get(group)))
        key = group.replace("/", ".")
        node = hydra.get(group.partition("/")[2])
        if not isinstance(node, DictConfig):
            raise _unsupported(group, key, str(node))
        if node.get("_target_") != plugin.target:
            raise _unsupported(group, f"{key}._target_", str(node.get("_target_")))
        for name in map(str, node):
            if name not in ("_target_", *plugin.settings):
                raise _unsupported(group, f"{key}.{name}", str(node.get(name)))


def _unsupported(group: str, key: str, value: str) -> ConfigError:
    kind = group.partition("/")[2]
    plugin = PLUGINS[group]
    allowed = ", ".join([f"the {kind} {plugin.option}, which is the default", *plugin.settings])
    return ConfigError(key, value, f"jobs run one after another, in this process; allowed: {allowed}")

"""Hydra's launchers and sweepers that this program supports.

Hydra's basic launcher runs jobs one after another, those of PACKAGES side by side (`runner.parallel`). Hydra's basic
sweeper, and each that is installed as a Hydra plugin: it chooses jobs by the objective that `run_job` returns. Settings
of a plugin are those of its package. A config changes numbers, flags and a sweeper's `params`: text could name code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from launchopt.errors import ConfigError, one_line

LAUNCHER, SWEEPER = "hydra/launcher", "hydra/sweeper"


class Plugin(NamedTuple):
    """A supported option of a group of Hydra, its class, and the settings that it has."""

    option: str
    target: str
    settings: tuple[str, ...] = ()


class Package(NamedTuple):
    """A launcher that a package adds to Hydra: its class, and the extra of launchopt that installs it."""

    target: str
    extra: str
    ones: tuple[str, ...] = ()  # settings that must be 1: with more, each job would run several times


_SUBMITIT = "hydra_plugins.hydra_submitit_launcher.submitit_launcher"
PACKAGES = {
    "joblib": Package("hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher", "joblib"),
    "submitit_local": Package(f"{_SUBMITIT}.LocalLauncher", "submitit", ("nodes", "tasks_per_node")),
}
PLUGINS = {
    LAUNCHER: Plugin("basic", "hydra._internal.core_plugins.basic_launcher.BasicLauncher"),
    SWEEPER: Plugin("basic", "hydra._internal.core_plugins.basic_sweeper.BasicSweeper", ("max_batch_size", "params")),
}


def check_option(group: str, option: str) -> None:
    """Raise ConfigError if `group` is one of PLUGINS and `option` is not supported."""
    if group in PLUGINS and option != PLUGINS[group].option and not is_installed(group, option):
        raise _unsupported(group, group, option)


def is_installed(group: str, option: str) -> bool:
    """Return whether an option is a sweeper, or a launcher of PACKAGES, that an installed package adds to Hydra."""
    if not option.isidentifier() or option == PLUGINS[group].option or (group == LAUNCHER and option not in PACKAGES):
        return False
    from hydra.core.plugins import Plugins  # late: most starts need none

    Plugins.instance()  # imports the packages, which register their options
    return option in _options(group)


def is_other(group: str, hydra: DictConfig) -> bool:
    """Return whether the composed node `hydra` has a launcher or sweeper other than the basic one."""
    return str(hydra.runtime.choices.get(group)) != PLUGINS[group].option


def check_plugins(hydra: DictConfig) -> None:
    """Raise ConfigError if the composed node `hydra` has a launcher or sweeper that is not supported."""
    for group, plugin in PLUGINS.items():
        option = str(hydra.runtime.choices.get(group))
        check_option(group, option)
        key = group.replace("/", ".")
        node = hydra._get_node(group.partition("/")[2])
        if not isinstance(node, DictConfig) or node._is_interpolation() or node._is_none():
            raise _unsupported(group, key, "..." if isinstance(node, DictConfig) else str(node))
        if option != plugin.option:
            _check_plugin(group, option, node)
            continue
        if node.get("_target_") != plugin.target:
            raise _unsupported(group, f"{key}._target_", str(node.get("_target_")))
        for name in map(str, node):
            if name not in ("_target_", *plugin.settings):
                raise _unsupported(group, f"{key}.{name}", str(node.get(name)))


def _check_plugin(group: str, option: str, node: DictConfig) -> None:
    """Raise ConfigError for a setting of an installed plugin that its package does not have, and that is no number."""
    values: Any = OmegaConf.to_container(node, resolve=False)
    params = (values.pop("params", None) if group == SWEEPER else None) or {}
    own = _options(group)[option]
    target = PACKAGES[option].target if group == LAUNCHER else own.get("_target_") if isinstance(own, dict) else None
    foreign = [] if target is not None and values.get("_target_") == target else ["_target_"]
    foreign += _foreign(values, [own], group)
    if not isinstance(params, dict) or not all(_is_plain(each) for each in (*params, *params.values())):
        foreign.append("params")
    for name in PACKAGES[option].ones if group == LAUNCHER else ():
        if values.get(name) != 1:
            raise ConfigError(f"hydra.launcher.{name}", values.get(name), f"must be 1 with {group}={option}")
    if foreign:
        more = " and params" if group == SWEEPER else ""
        why = f"text that could name code; allowed for {group}={option}: numbers, true, false, null{more}"
        raise ConfigError(
            f"{group.replace('/', '.')}.{foreign[0]}", one_line(OmegaConf.select(node, foreign[0]), 60), why
        )


def _foreign(value: object, known: Sequence[object], group: str, key: str = "") -> Iterator[str]:
    """Yield the settings at and below `key` whose value no package gave, and which is no number, flag or null.

    known: what packages gave for it. group: with options of packages for the settings of a section.
    """
    if isinstance(value, dict):
        sections = [each for each in known if isinstance(each, dict) and each.get("_target_") == value.get("_target_")]
        for name, each in value.items():
            of_name = [section[name] for section in sections if name in section]
            options = list(_options(f"{group}/{name}").values()) if isinstance(each, dict) else []
            yield from _foreign(each, of_name + options, f"{group}/{name}", f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and value not in known:
        yield from (key for each in value if not isinstance(each, int | float | Enum | None))
    elif value not in known and not isinstance(value, int | float | Enum | None):
        yield key


def _options(group: str) -> dict[str, object]:
    """Return the options that packages gave a group of Hydra, by name, as they stand."""
    store = ConfigStore.instance()
    try:
        names = [each.removesuffix(".yaml") for each in store.list(group) if each.endswith(".yaml")]
    except (OSError, HydraException):
        return {}
    return {each: OmegaConf.to_container(store.load(f"{group}/{each}.yaml").node, resolve=False) for each in names}


def _is_plain(value: object) -> bool:
    return not isinstance(value, dict | list) and "${" not in str(value)


def _unsupported(group: str, key: str, value: str) -> ConfigError:
    kind = group.partition("/")[2]
    plugin = PLUGINS[group]
    if group == LAUNCHER and value in PACKAGES:
        extra = PACKAGES[value].extra
        return ConfigError(key, value, f"is not installed; type: pip install 'launchopt[{extra}]'")
    allowed = ", ".join([f"the {kind} {plugin.option}, which is the default", *plugin.settings])
    allowed += ", or an installed sweeper of Hydra" if group == SWEEPER else f", or {', '.join(PACKAGES)}"
    return ConfigError(key, value, f"no {kind} of this program; allowed: {allowed}")

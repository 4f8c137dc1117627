"""Hydra's launchers and sweepers that this program supports.

Hydra's basic launcher runs jobs one after another, those of PACKAGES side by side (`runner.parallel`). Hydra's basic
sweeper, and each that is installed as a Hydra plugin: it chooses jobs by the objective that `run_job` returns. Settings
of a plugin are those of its package. A config changes numbers, flags and a sweeper's `params`: text could name code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from launchopt.errors import ConfigError, one_line

LAUNCHER, SWEEPER = "hydra/launcher", "hydra/sweeper"
COUNT = re.compile(r"[1-9][0-9]{0,14}")
WORD = re.compile(r"[A-Za-z0-9][\w.,:=+@\[\]()|&*-]{0,199}")  # no space, quote, slash, % or line end


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
    words: tuple[str, ...] = ()  # settings that also take a word of WORD
    others: tuple[str, ...] = ()  # settings that it takes, but does not name
    above_0: tuple[str, ...] = ()  # limits of time, with which no job could run if they were 0 or less
    not_0: tuple[str, ...] = ()  # numbers of jobs at once; below 0 they count from the number of cores
    counts: tuple[str, ...] = ()  # settings of type text that also take a whole number from 1


_SUBMITIT = "hydra_plugins.hydra_submitit_launcher.submitit_launcher"
_ONES = ("nodes", "tasks_per_node")
_LIMITS = ("timeout_min",)
_SLURM_OTHERS = tuple(f"additional_parameters.{each}" for each in ("exclusive", "nodelist", "reservation"))
_SLURM_WORDS = ("partition", "qos", "account", "constraint", "exclude", "gres", "mem_per_gpu", "mem_per_cpu")
_RAY_OTHERS = (
    *(f"ray.init.{each}" for each in ("num_cpus", "num_gpus", "object_store_memory")),
    *(f"ray.remote.{each}" for each in ("num_cpus", "num_gpus", "memory", "max_retries")),
)
_RAY_WORDS = ("ray.init.address",)
PACKAGES = {
    "joblib": Package(
        "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher",
        "joblib",
        above_0=("timeout",),
        not_0=("n_jobs",),
        counts=("pre_dispatch", "batch_size", "max_nbytes"),
    ),
    "submitit_local": Package(f"{_SUBMITIT}.LocalLauncher", "submitit", _ONES, above_0=_LIMITS),
    "submitit_slurm": Package(
        f"{_SUBMITIT}.SlurmLauncher", "submitit", _ONES, _SLURM_WORDS + _SLURM_OTHERS, _SLURM_OTHERS, _LIMITS
    ),
    "ray": Package("hydra_plugins.hydra_ray_launcher.ray_launcher.RayLauncher", "ray", (), _RAY_WORDS, _RAY_OTHERS),
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


def check_unused(hydra: DictConfig) -> None:
    """Raise ConfigError for a launcher, a sweeper or a setting of one in the overrides of a run without -m."""
    words = OmegaConf.to_container(hydra.overrides.hydra, resolve=False)
    assert isinstance(words, list)
    for word in words:
        key, _, value = str(word).lstrip("+~").partition("=")
        of = next((group for group in PLUGINS if key == group or key.startswith(f"{group.replace('/', '.')}.")), None)
        if of is not None and (key, value) != (of, PLUGINS[of].option):
            kind = of.partition("/")[2]
            raise ConfigError(key, value, f"a run without -m has no {kind}: add -m for a sweep, or leave this out")


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
    if group == LAUNCHER:
        foreign = _check_names(option, node, own, foreign)
    if not isinstance(params, dict) or not all(_is_plain(each) for each in (*params, *params.values())):
        foreign.append("params")
    if group == LAUNCHER:
        _check_numbers(option, values)
    if foreign and group == LAUNCHER and foreign[0] in PACKAGES[option].words:
        value = one_line(OmegaConf.select(node, foreign[0]), 60)
        raise ConfigError(f"hydra.launcher.{foreign[0]}", value, "give a word of letters, digits and .,:=+@-_[]()|&*")
    if foreign:
        more = " and params" if group == SWEEPER else ""
        why = f"text that could name code; allowed for {group}={option}: numbers, true, false, null{more}"
        raise ConfigError(
            f"{group.replace('/', '.')}.{foreign[0]}", one_line(OmegaConf.select(node, foreign[0]), 60), why
        )


def _check_numbers(option: str, values: dict[str, Any]) -> None:
    """Raise ConfigError for a number with which a launcher runs no job, or each job several times."""
    package = PACKAGES[option]
    for name, value in values.items():
        key, is_number = f"hydra.launcher.{name}", isinstance(value, int | float)
        if name in package.ones and value != 1:
            raise ConfigError(key, value, f"must be 1 with {LAUNCHER}={option}")
        if name in package.above_0 and is_number and not value > 0:
            raise ConfigError(key, value, "must be more than 0")
        if name in package.not_0 and is_number and value == 0:
            raise ConfigError(key, value, "runs no job: use 2 for two at once, or -1 for one on each core")
        if name in package.counts and _is_number(value) and not COUNT.fullmatch(str(value)):
            raise ConfigError(key, value, "must be a whole number of at least 1")


def _check_names(option: str, node: DictConfig, own: object, foreign: Sequence[str]) -> list[str]:
    """Return `foreign` without the words that a launcher may be given; ConfigError for a setting that it has not.

    own: its settings as the package gave them.
    """
    package, known = PACKAGES[option], OmegaConf.create(own if isinstance(own, dict) else {})
    names, values = set(_leaves(known)) | set(package.others), _leaves(node)
    for name in values:
        if name not in names:
            wanted = f"no setting of {LAUNCHER}={option}; it has {', '.join(sorted(names - {'_target_'}))}"
            raise ConfigError(f"hydra.launcher.{one_line(name, 60)}", one_line(values[name], 60), wanted)
    fine = {name for name in package.words if WORD.fullmatch(str(values.get(name)))}
    fine |= {name for name in package.counts if COUNT.fullmatch(str(values.get(name)))}
    return [name for name in foreign if name not in fine]


def _leaves(node: object, key: str = "") -> dict[str, object]:
    """Return the values at and below a node by their names, joined by dots."""
    if not isinstance(node, DictConfig):
        return {key: node}
    found: dict[str, object] = {}
    for name in node:
        found |= _leaves(node._get_node(name), ".".join(filter(None, [key, str(name)])))
    return found


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


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _is_plain(value: object) -> bool:
    return not isinstance(value, dict | list) and "${" not in str(value)


def not_installed(key: str, option: str) -> ConfigError:
    """Return the error of a launcher of PACKAGES whose packages are missing."""
    return ConfigError(key, option, f"is not installed; type: pip install 'launchopt[{PACKAGES[option].extra}]'")


def _unsupported(group: str, key: str, value: str) -> ConfigError:
    kind = group.partition("/")[2]
    plugin = PLUGINS[group]
    if group == LAUNCHER and value in PACKAGES:
        return not_installed(key, value)
    allowed = ", ".join([f"the {kind} {plugin.option}, which is the default", *plugin.settings])
    allowed += ", or an installed sweeper of Hydra" if group == SWEEPER else f", or {', '.join(PACKAGES)}"
    return ConfigError(key, value, f"no {kind} of this program; allowed: {allowed}")

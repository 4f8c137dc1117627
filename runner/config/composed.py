"""Checks of a composed config before Hydra acts on it: under `hydra:` there is only what a user needs.

In: the config, merged from all files and words. Out: nothing, or a ConfigError. It does not matter which file, group,
package or interpolation a setting came from. Settings that Hydra would instantiate, hand to logging, or put into the
environment must be as Hydra has them. Hydra writes no file but `multirun.yaml`: it would write through links, wait for
named pipes, and replace files of others. Nodes are compared as they stand, so that no interpolation passes that would
be resolved later to something else.

`check` adds the only callback: `runner.app.Precheck`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from launchopt.errors import ConfigError, one_line
from runner.config.files import CODE_KEYS
from runner.config.launchers import LAUNCHER, SWEEPER, check_plugins, is_other

if TYPE_CHECKING:
    from hydra.conf import HydraConf

PRECHECK = {"precheck": {"_target_": "runner.app.Precheck"}}
ALLOWED = "run.dir, sweep.dir, sweep.subdir, mode, verbose, job.name, job.chdir, sweeper.params"
MISSING = "???"
LOGS = ("job_logging/none", "job_logging/stdout", "job_logging/default", "hydra_logging/none", "hydra_logging/default")


class Rule(NamedTuple):
    """A test of a setting of Hydra, and the values that pass it."""

    passes: Callable[[Any], bool]
    allowed: str


def _is_text(value: object) -> bool:
    """Return whether a value is no container. It may be an interpolation, of which Hydra uses the text."""
    return not isinstance(value, dict | list)


def _is_plain(value: object) -> bool:
    """Return whether a value is no container and no interpolation."""
    return _is_text(value) and "${" not in str(value)


def _is_name(value: object) -> bool:
    return value is None or value == MISSING or re.fullmatch(r"\.?[\w-][\w .-]*", str(value), re.ASCII) is not None


def _is_verbose(value: object) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, bool | str) and _is_plain(value)


def _is_sweeper(value: object) -> bool:
    """Return whether no setting of a sweeper, which Hydra instantiates with all that is in it, holds a node."""
    if not isinstance(value, dict):
        return False
    params = value.get("params") or {}
    rest = [each for key, each in value.items() if key != "params"]
    return isinstance(params, dict) and all(map(_is_plain, [*params, *params.values(), *rest]))


def _are_texts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


@cache
def _logging(*names: str) -> list[object]:
    """Return configs of logs that Hydra comes with. names: `job_logging/none`."""
    files = [resources.files("hydra.conf") / "hydra" / f"{name}.yaml" for name in names]
    return [OmegaConf.to_container(OmegaConf.create(file.read_text(encoding="utf-8"))) for file in files]


def _is_shipped(value: object) -> bool:
    return value in _logging(*LOGS)


NOTHING = Rule(lambda value: not value, "nothing")
TEXT = Rule(_is_text, "text")
NAME = Rule(_is_name, "a name without slashes")
PAGE = Rule(_are_texts, "texts")
LOGGING = Rule(_is_shipped, "hydra/job_logging=none or stdout, hydra/hydra_logging=none or default")
RULES = {
    "run.dir": TEXT,
    "sweep.dir": TEXT,
    "sweep.subdir": TEXT,
    "mode": Rule(_is_plain, "RUN, MULTIRUN"),
    "verbose": Rule(_is_verbose, "true, false, names of loggers"),
    "output_subdir": Rule(lambda value: value in (None, ".hydra"), "null"),
    "job.name": NAME,
    "job.chdir": Rule(lambda value: value is None or isinstance(value, bool), "true, false, null"),
    **dict.fromkeys(("job.id", "job.num", "job.config_name", "job.override_dirname"), TEXT),
    **dict.fromkeys(("job.config.override_dirname.kv_sep", "job.config.override_dirname.item_sep"), TEXT),
    "job.config.override_dirname.exclude_keys": Rule(lambda value: all(map(_is_plain, value)), "names of settings"),
    **dict.fromkeys(("launcher", "sweeper"), Rule(_is_sweeper, "plain values, without interpolations")),
    **dict.fromkeys(("searchpath", "callbacks", "env", "job.env_set", "job.env_copy"), NOTHING),
    **dict.fromkeys(("hydra_logging", "job_logging"), LOGGING),
    **dict.fromkeys(("help", "hydra_help"), PAGE),
    "overrides": Rule(lambda value: all(isinstance(each, list) for each in value.values()), "lists"),
    "runtime.choices": Rule(lambda value: isinstance(value, dict) and all(map(_is_plain, value.values())), "names"),
    "runtime.output_dir": Rule(lambda value: value == MISSING, "nothing"),
    **dict.fromkeys(("runtime.version", "runtime.version_base", "runtime.cwd"), TEXT),
    "runtime.config_sources": Rule(lambda value: isinstance(value, list), "nothing"),
}
SECTIONS = {key.rpartition(".")[0] for key in RULES} | {"job.config", ""}
HIDDEN = ("job.env_set", "job.env_copy")  # the values may be secrets


def check(composed: DictConfig, words: int) -> None:
    """Raise ConfigError for a config with settings that only this program may make; else add its callback.

    words: number of overrides that the config was composed with. A file could add some.
    """
    node = composed._get_node("hydra")
    if not isinstance(node, DictConfig) or node._is_interpolation() or node._is_none():
        raise ConfigError("hydra", "...", f"a section, not a value; allowed: {ALLOWED}")
    hydra: Any = OmegaConf.to_container(node, resolve=False)
    plugged = {group.partition("/")[2] for group in (LAUNCHER, SWEEPER) if is_other(group, node)}
    _require_rules({key: each for key, each in hydra.items() if key not in plugged}, "")
    check_plugins(node)
    if sum(map(len, hydra["overrides"].values())) != words:
        raise ConfigError("hydra.overrides", "...", "only the command line has overrides")
    for key in _keys(OmegaConf.to_container(composed, resolve=False)):
        name = key.rpartition(".")[2]
        if name in CODE_KEYS and not key.startswith("hydra."):
            raise ConfigError(key, "...", f"names code to be run: no setting takes {name}")
    _drop_files(node, hydra)
    with read_write(node), open_dict(node):
        node.callbacks = PRECHECK


def _drop_files(node: DictConfig, hydra: dict[str, Any]) -> None:
    """Replace Hydra's defaults by which it writes files; ConfigError if the user typed them.

    A primary config has them that does not set them. hydra: content of `node`.
    """
    words = [str(each).lstrip("+").replace("/", ".") for each in hydra["overrides"]["hydra"]]
    log, none = _logging("job_logging/default", "job_logging/none")
    for key, theirs, ours in (("output_subdir", ".hydra", None), ("job_logging", log, none)):
        if hydra.get(key) == theirs:
            if any(each.startswith(f"hydra.{key}") for each in words):
                why = "launchopt writes all files of a run itself: leave this out"
                raise ConfigError(f"hydra.{key}", ".hydra" if key == "output_subdir" else "default", why)
            with read_write(node), open_dict(node):
                node[key] = ours


def typed(about: DictConfig | HydraConf) -> list[str]:
    """Return the overrides as they were typed, interpolations included."""
    overrides = OmegaConf.to_container(about.overrides.task, resolve=False)
    assert isinstance(overrides, list)
    return list(map(str, overrides))


def has_mode(words: list[str]) -> bool:
    """Return whether overrides name a mode, or an option of it."""
    return any(re.match(r"mode\b", word) for word in words)


def without_hydra(config: DictConfig) -> DictConfig:
    """Return a copy of a composed config without Hydra's node."""
    task = config.copy()
    OmegaConf.set_readonly(task, False)
    with open_dict(task):
        task.pop("hydra")
    return task


def _require_rules(value: Any, key: str) -> None:
    """Raise ConfigError for a setting at or below `key` without a rule, or which breaks its rule."""
    if rule := RULES.get(key):
        if not rule.passes(value):
            raise _refused(key, value, rule)
    elif key in SECTIONS and isinstance(value, dict):
        for name, each in value.items():
            _require_rules(each, f"{key}.{name}" if key else str(name))
    else:
        raise _refused(key, value, None)


def _refused(key: str, value: object, rule: Rule | None) -> ConfigError:
    """Return the error for a setting; where nothing may be set, it names the first setting below it."""
    is_closed = rule is None or rule is NOTHING
    while is_closed and isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        key = f"{key}.{name}"
    shown = "..." if key.startswith(HIDDEN) else value.name if isinstance(value, Enum) else one_line(value, 60)
    why = f"no config may set this; allowed: {ALLOWED}" if is_closed or rule is None else f"allowed: {rule.allowed}"
    return ConfigError(f"hydra.{one_line(key, 100)}", shown, why)


def _keys(node: object, above: str = "") -> Iterator[str]:
    """Yield the key of every setting at and below a node."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in pairs:
        yield (key := f"{above}{name}")
        yield from _keys(value, f"{key}.")

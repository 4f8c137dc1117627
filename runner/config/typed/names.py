"""Names of all settings and options, and what a misspelt one may stand for.

`owners` knows which option of a group has a setting (`mode.streams` belongs to mode=multistream). It reads the classes
of the schemas. It composes nothing, so it also works for words that do not compose.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import Field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from launchopt.errors import ConfigError, choices, explained, nearest, one_line
from launchopt.modes.stack import options_in
from launchopt.options import Limits
from launchopt.stack import preset_of
from launchopt.workloads import workloads
from runner.config.composing import group_options, own_options
from runner.config.model_files import GROUP, OR_PATH
from runner.config.schema import FOUND, PLUGGED, SCHEMAS, Config

MOST_NAMES = 24  # maximum of options that a message lists beside a proposal
ONE_LETTER = 0.85  # similarity of two names that differ in about one letter
USUAL = ("arrival=poisson", "mode=graph", "mode=graph_loop", "workload=decode", "workload=gemv_micro")
KINDS = {int: "whole numbers", float: "numbers", bool: "true or false", str: "text", NoneType: "null"}
SYNONYMS = {  # words of other programs
    "batch": "batching.max_batch",
    "batch_size": "batching.max_batch",
    "concurrency": "workload.requests",
    "gpu": "device.index",
    "iterations": "repeats",
    "iters": "repeats",
    "output": "hydra.run.dir",
    "output_dir": "hydra.run.dir",
    "precision": "workload.dtype",
    "qps": "arrival.rate_per_s",
    "runs": "repeats",
    "strategy": "mode",
    "timeout": "batching.timeout_us",
}
HYDRAS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.mode", "hydra.verbose")
OPTION_SYNONYMS = {("device", "gpu"): "cuda", ("timing", "nsys"): "cupti"}


@cache
def owners() -> dict[str, tuple[str, ...]]:
    """Return each setting's key with the options that have it, such as `workload=decode`; () if all options have it."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys((*(each.name for each in fields(Config)), *group_options()), ())
    for group, kinds in _schemas().items():
        for kind, options in kinds:
            for each in _own_fields(kind):
                key = f"{group}.{each.name}"
                found[key] = (*found.get(key, ()), *(f"{group}={option}" for option in options))
        everything = sum(len(options) for _, options in kinds)
        found |= {key: () for key in found if key.startswith(f"{group}.") and len(found[key]) == everything}
    return found


def _own_fields(kind: type) -> list[Field[Any]]:
    """Return the fields of a class of settings, without options that a mode has only with another submit."""
    return [each for each in fields(kind) if "submits" not in each.metadata]


@cache
def _schemas() -> dict[str, list[tuple[type, list[str]]]]:
    """Return the classes of each group's settings, each with the options of that class."""
    kinds = {name: [(kind, [name])] for name, kind in get_type_hints(Config).items() if is_dataclass(kind)}
    found: dict[str, list[tuple[type, list[str]]]] = dict(kinds)  # type: ignore[arg-type]  # classes all
    found["mode"] = [(type(each), [name]) for name, each in (FOUND["mode"] | PLUGGED["mode"]).items()]
    found["arrival"] = [(kind, [name]) for name, kind in (SCHEMAS["arrival"] | PLUGGED["arrival"]).items()]
    presets = [name for name in own_options()["workload"] if name not in FOUND["workload"]]
    found["workload"] = [
        (kind, [kind.option() or ""]) for kind in (*workloads().values(), *PLUGGED["workload"].values())
    ]
    found["workload"] = [(kind, options if options[0] else presets) for kind, options in found["workload"]]
    return found


@cache
def documented() -> dict[str, tuple[str, ...]]:
    """Return each setting that --help describes, with any option of its group, and the names of its values."""
    found: dict[str, tuple[str, ...]] = {}
    groups: dict[str, list[tuple[type, list[str]]]] = {"": [(Config, [])], **_schemas()}
    for group, kinds in groups.items():
        for kind, _ in kinds:
            types = get_type_hints(kind)
            for each in fields(kind):
                if each.metadata.get("help"):
                    key = f"{group}.{each.name}" if group else each.name
                    names = (*found.get(key, ()), *value_names(types[each.name], each))
                    found[key] = tuple(dict.fromkeys(names))
    return found


def value_names(hint: object, declared: Field[Any]) -> tuple[str, ...]:
    """Return the names of the values of a setting; () for numbers and texts."""
    if hint is bool:
        return ("true", "false")
    parts = get_args(hint) or (hint,)
    inner = next((each for each in parts if each is not NoneType), hint)
    if isinstance(inner, type) and issubclass(inner, enum.Enum):
        return (*inner.__members__, *(["null"] if NoneType in parts else []))
    return tuple(declared.metadata.get("limits", Limits()).choices)


def unknown_setting(key: str, value: object, settings: Sequence[str] = ()) -> ConfigError:
    """Return the error for a setting that does not exist, or only with another option of its group.

    settings: what the user typed, which can have an option of that group already.
    """
    if others := owners().get(key):
        group = key.partition(".")[0]
        names = [each.partition("=")[2] for each in others]
        options = ", ".join(names[:-1]) + (" or " if names[:-1] else "") + names[-1]
        likely = next((each for each in others if each in USUAL), others[0])
        typed = _typed(group, settings)
        meant = f"{likely} instead of {one_line(typed, 60)}" if typed else f"to add {likely}"
        return ConfigError(key, value, f"{key} belongs to {group}={options}; did you mean {meant}?")
    group, near = key.partition(".")[0], settings_near(key, settings)
    choice, slash, option = key.partition("/")
    if slash and choice in group_options():
        return ConfigError(key, value, explained("no such setting", "", [f"{choice}={option}"]))
    if group == "hydra":
        return ConfigError(key, value, explained("no such setting", "those of --hydra-help", near))
    if section := [each for each in _settable(settings) if each.startswith(f"{group}.")] if "." in key else []:
        allowed = choices(each.removeprefix(f"{group}.") for each in section)
        return ConfigError(key, value, explained(f"no such setting of {group}", allowed, near))
    allowed = "" if near else choices(each for each in owners() if "." not in each)
    return ConfigError(key, value, explained("no such setting", allowed, near))


def _typed(group: str, settings: Sequence[str]) -> str | None:
    """Return the option of a group that the user typed, such as `workload=decode`; None if there is none."""
    words = (each.lstrip("+") for each in reversed(settings))
    return next((each for each in words if each.startswith(f"{group}=")), None)


def _settable(settings: Sequence[str]) -> list[str]:
    """Return the settings that can go with the options that the user typed."""
    options = {option for names in owners().values() for option in names}
    chosen = {group: typed for group in group_options() if (typed := _typed(group, settings)) in options}
    return [
        key
        for key, names in owners().items()
        if not names or (group := key.partition(".")[0]) not in chosen or chosen[group] in names
    ]


def settings_near(key: str, settings: Sequence[str] = ()) -> list[str]:
    """Return up to three settings that a misspelt key may stand for, of those that can go with `settings`.

    settings: what the user typed. A key without a dot stands first for a setting without one that differs in a letter.
    """
    known = HYDRAS if key.startswith("hydra.") else tuple(_settable(settings))
    group, _, leaf = key.rpartition(".")
    if key in known:
        return [key]
    if (synonym := SYNONYMS.get(leaf.lower().replace("-", "_"))) and group in ("", synonym.partition(".")[0]):
        return [synonym]
    same_leaf = [each for each in known if each.rpartition(".")[2] == leaf]
    if same_leaf:
        top = [] if group else [each for each in known if "." not in each]
        return [*get_close_matches(leaf, top, 1, ONE_LETTER), *same_leaf][:3]
    siblings = {each.rpartition(".")[2]: each for each in known if group and each.rpartition(".")[0] == group}
    if close := [siblings[each] for each in nearest(leaf, siblings)]:
        return close
    leaves = {each.rpartition(".")[2]: each for each in known}
    found = [] if group and key.partition(".")[0] in known else nearest(key, known)
    return list(dict.fromkeys([*found, *(leaves[each] for each in nearest(leaf, leaves))]))[:3]


def unknown_option(group: str, option: str, options: Iterable[str]) -> ConfigError:
    """Return the error for an option that a group does not have."""
    group, _, table = group.partition("/") if group.startswith("experiment/") else (group, "", "")
    option = f"{table}/{option}" if table else option
    names = sorted(options)
    if group == "mode" and option not in names and preset_of(option) in names:
        return _label(option)
    near = [OPTION_SYNONYMS[group, option]] if (group, option) in OPTION_SYNONYMS else nearest(option, names)
    meant = [f"{group}={each}" for each in near] or _same_name(option)
    why = f"no such {group}"
    if meant and len(names) > MOST_NAMES:
        every = "mode=help" if group == "mode" else "--help"
        return ConfigError(group, option, f"{explained(why, '', meant)} launchopt run {every} lists all")
    allowed = ", ".join([*names, *[OR_PATH] * (group == GROUP)])
    return ConfigError(group, option, explained(why, allowed, meant))


def _label(label: str) -> ConfigError:
    """Return the error for a label, such as graph+norm, in place of a mode's name."""
    try:
        settings = options_in(label)
    except ConfigError as error:
        return error
    return ConfigError("mode", label, f"a label of against and of tables; on the command line type {settings}")


def _same_name(option: str) -> list[str]:
    """Return the choices whose option has this name."""
    return [f"{group}={option}" for group, options in group_options().items() if option in options and group != "table"]


def options_near(name: str) -> list[str]:
    """Return up to three choices, such as `workload=decode`, whose option has this name or a similar one."""
    groups = {group: options for group, options in group_options().items() if group != "table"}
    found = {option: f"{group}={option}" for group, options in groups.items() for option in options}
    return _same_name(name) or [found[each] for each in nearest(name, found)]


def wrong_type(key: str, typed: str) -> ConfigError:
    """Return the error for a value, as the user typed it, of a type that the setting does not have."""
    found = declaration(key)
    return ConfigError(key, typed, _wanted(key, *found, typed) if found else "not a value of this setting")


def takes_names(key: str) -> bool:
    """Return whether the value of a setting is a list of names, such as `mode.fuse=[qkv,norm]`."""
    hint, declared = declaration(key) or (None, None)
    is_list = any(get_origin(each) is list for each in (hint, *get_args(hint)))
    return declared is not None and is_list and bool(str(declared.metadata.get("limits", "")))


def declaration(key: str) -> tuple[Any, Field[Any]] | None:
    """Return the type and the field of a setting, or None if there is no such setting."""
    group, _, name = key.rpartition(".")
    kinds = [kind for kind, _ in _schemas().get(group, [])] if group else [Config]
    for kind in kinds:
        for each in _own_fields(kind):
            if each.name == name:
                return get_type_hints(kind).get(name, Any), each
    return None


def _wanted(key: str, hint: Any, declared: Field[Any], typed: str) -> str:
    """Return which values a setting takes, and the likeliest."""
    parts = get_args(hint) or (hint,)
    inner = next((each for each in parts if each is not NoneType), hint)
    null = " or null" if NoneType in parts else ""
    if is_dataclass(inner):
        names = [each.name for each in fields(inner)]
        first = f"{declared.name}.{names[0]}=..."
        return explained("a section, not a value", ", ".join(names), [first])
    if isinstance(inner, type) and issubclass(inner, enum.Enum):
        values = [each.name for each in inner]
        return explained(
            "not one of its values", ", ".join(values) + null, [f"{key}={each}" for each in nearest(typed, values)]
        )
    limits = str(declared.metadata.get("limits", ""))
    if get_origin(inner) is list:
        allowed = getattr(declared.metadata.get("limits"), "choices", ())
        found = [nearest(each, allowed) if allowed else [each] for each in typed.split(",")]
        is_meant = typed[:1] != "[" and all(found)
        meant = [f"{key}=[{','.join(each[0] for each in found)}]"] if is_meant else []
        kind = "whole numbers" if get_args(inner) == (int,) else "names"
        return explained(
            f"not a list of {kind}" if typed[:1] == "[" else "not a list",
            f"lists of {kind + ' ' if kind != 'names' else ''}{limits}{null}",
            meant,
        )
    what = KINDS.get(inner, "the values that --help shows")
    meant = [f"{key}={_number(typed)}"] if inner is int and _number(typed) is not None else []
    return explained("not of the right type", f"{what}{f' {limits}' if limits else ''}{null}", meant)


def _number(typed: str) -> int | None:
    """Return the whole number that `10k`, `1_000`, `1e3` or `2.0` stands for; None for other text."""
    scale = {"k": 1_000, "m": 1_000_000}.get(typed[-1:].lower(), 1)
    try:
        number = float(typed[:-1] if scale > 1 else typed) * scale
    except ValueError:
        return None
    return int(number) if number.is_integer() and abs(number) < 2**31 else None


def unresolved(error: Exception) -> str:
    """Return what is wrong with an interpolation, and the likeliest setting."""
    text = str(error).splitlines()[0]
    name = text.partition("'")[2].partition("'")[0]
    if "Environment variable" in text:
        return explained(f"no such environment variable: {name}", "", [f"${{oc.env:{name},DEFAULT}}"])
    if "key" in text and name:
        return explained(f"no such setting: {name}", "", [f"${{{each}}}" for each in settings_near(name)])
    return text

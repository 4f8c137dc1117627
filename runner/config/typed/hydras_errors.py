"""Short messages for the errors with which Hydra and OmegaConf refuse a command line.

In: the exception and the settings that were typed. Out: a LaunchoptError. The type of the exception and its fields say
what is wrong; Hydra's text is read only if it says more than these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.errors import CompactHydraException, ConfigCompositionException, MissingConfigException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)

from launchopt.errors import ConfigError, LaunchoptError, explained, one_line
from runner.config.composing import group_options, plugin_names
from runner.config.model_files import GROUP
from runner.config.typed.names import owners, takes_names, unknown_option, unknown_setting, unresolved, wrong_type
from runner.config.typed.words import MULTIRUN, WordsError, plain, proposed


def for_user(error: Exception, settings: Sequence[str]) -> LaunchoptError:
    """Return the error to show for an exception of Hydra or OmegaConf."""
    if isinstance(error, MissingConfigException):
        return _missing(error)
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return _about_key(cause, str(cause.full_key), settings)
    if isinstance(error, ConfigCompositionException):
        return _composition(str(error), settings)
    reason = first_line(error)
    if isinstance(error, OmegaConfBaseException | CompactHydraException | OSError):
        return WordsError(reason)
    return WordsError(f"Hydra cannot read this: {_all(settings)} ({type(error).__name__}: {reason})")


def _missing(error: MissingConfigException) -> LaunchoptError:
    """Return the error for an option, or a config file, that does not exist."""
    group, _, option = str(error.missing_cfg_file or "").rpartition("/")
    if not group:
        return ConfigError("--config-name", option, "no such config file; leave --config-name out for our own")
    if group == GROUP and Path(option[:255]).exists():
        return ConfigError(group, option, explained("no such model", "", [f"{group}=./{option}"]))
    if error.options:
        return unknown_option(group, option, {*error.options, *plugin_names(group)})
    return unknown_setting(group, option)


def _about_key(error: OmegaConfBaseException, key: str, settings: Sequence[str]) -> LaunchoptError:
    """Return the error for a setting that does not exist or whose value does not fit."""
    key = re.sub(r"\[\d+\]$", "", key)  # an element of a list
    key = re.sub(r"\[\d+\]$", "", key)  # of a list's element the list is the setting
    word = _word(key, settings)
    typed_key, _, typed = word.partition("=")
    typed_key = typed_key.lstrip("+~") or key
    is_one_of_several = not word or ("," in typed and typed[:1] not in ("[", "{"))
    value = plain(str(error.value) if is_one_of_several and error.value is not None else typed)
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        return unknown_setting(typed_key, value, settings)
    if isinstance(error, InterpolationResolutionError):
        return ConfigError(key, value, first_line(unresolved(error)))
    if typed_key != key and typed_key.startswith(f"{key}."):
        return ConfigError(
            typed_key, value, explained(f"{key} is one value and holds no settings", "", proposed(f"{key}={typed}"))
        )
    return wrong_type(key, value) if key in owners() else ConfigError(key, value, first_line(error))


def _composition(text: str, settings: Sequence[str]) -> LaunchoptError:
    """Return the error for a fault that Hydra describes only in its text."""
    if in_file := re.match(r"In '([^']+)': \w+ raised while composing config:\n(.+)", text):
        full_key = re.search(r"full_key: (\S+)", text)
        group = full_key[1].partition(".")[0] if full_key else ""
        chosen = [word for word in settings if group and word.startswith(f"{group}=")]
        if full_key and chosen and re.match(r"Key '\w+' not in ", in_file[2]):
            why = f"{in_file[1]}.yaml sets {full_key[1]}, which it does not have: leave {chosen[-1]} out"
            return ConfigError(group, plain(chosen[-1].partition("=")[2]), one_line(why, 300))
        where = f"{in_file[1]}.yaml: {full_key[1]}" if full_key else f"{in_file[1]}.yaml"
        return WordsError(f"{plain(where)}: {first_line(in_file[2])}")
    added = re.match(r"Multiple values for (\w+)\.|force-add of config groups is not supported: '\+\+(\w+)=", text)
    quoted = re.search(r"'([^']+)'", text)
    name = (added[1] or added[2]) if added else quoted[1] if quoted else ""
    word = _word(name, settings)
    key, _, value = (word or name).partition("=")
    bare = key.lstrip("+~")
    if text.startswith("Ambiguous"):
        if takes_names(bare):
            return wrong_type(bare, value)
        number = [f"{bare}={value.replace(',', '')}"] if re.fullmatch(r"\d{1,3}(,\d{3})+", value) else []
        why = explained("several values make a sweep", "", proposed(*number, f"{MULTIRUN} {word}"))
        return ConfigError(bare, plain(value), why)
    if added or text.startswith("Could not append"):
        return ConfigError(key, plain(value), explained("exists already", "", proposed(f"{bare}={value}")))
    if text.startswith("Could not delete"):
        return WordsError(f"{plain(word or name)}: nothing to delete; allowed: ~ before a setting that exists")
    group = re.split(r"[@/]", bare)[0]
    if "@" in bare and group in group_options():
        return ConfigError(bare, plain(value), explained("no such group", "", proposed(f"{group}={value}")))
    if (bare and "does not exist" in text) or text.startswith("Could not override"):
        return unknown_setting(bare, plain(value), settings)
    return WordsError(first_line(text))


def _word(key: str, settings: Sequence[str]) -> str:
    """Return the word that set a key, a setting within it, or a section that contains it; "" if there is none."""
    exact = [word for word in settings if word.partition("=")[0].lstrip("+~") == key]
    for word in reversed(exact or settings):
        name = word.partition("=")[0].lstrip("+~")
        if word == key or name == key or name.startswith(f"{key}.") or (name and key.startswith(f"{name}.")):
            return word
    return ""


def _all(settings: Sequence[str]) -> str:
    return plain(" ".join(settings))


def first_line(error: object) -> str:
    """Return the first line of a text, with control characters escaped, and without the values of whole sections."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return one_line(re.sub(r"'\{.*\}'", "(settings)", re.sub(r"\. value: \{.*", "", line)))

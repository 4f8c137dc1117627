"""Checks of the words of a command line before Hydra reads them, and the message for a word that is no setting.

In: the words after `launchopt run`. Out: the words for Hydra, or a ConfigError that says what to type instead.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep
from hydra.errors import HydraException, OverrideParseException

from launchopt.arrivals.lines import shown
from launchopt.errors import LIKELY, ConfigError, LaunchoptError, as_typed, explained, nearest
from runner.config.composing import group_options
from runner.config.files import BUILDERS
from runner.config.launchers import check_option
from runner.config.model_files import GROUP, is_path
from runner.config.typed.names import options_near, owners, settings_near, unknown_option

MOST_CHARACTERS = 16_384  # maximum of one word; a sweep over a thousand values has fewer
MOST_JOBS = 100_000  # maximum jobs of one sweep
RERUN = "--experimental-rerun"
MULTIRUN = "-m"
PARTS_OF_INFO = ("config", "defaults", "defaults-tree", "plugins", "searchpath")  # of Hydra, one page each
MOST_PROPOSED = 200  # characters of a command that a message proposes; a longer one is left out
OPTIONS = "-m, --help, --version, --cfg job, --config-dir DIR"  # named in a message; Hydra has more


class WordsError(LaunchoptError):
    """A word that is no setting. The message names it."""

    exit_code = 2


def check_words(words: Sequence[str]) -> None:
    """Raise ConfigError for a word that must not reach Hydra."""
    for word in words:
        key, _, value = word.partition("=")
        if len(word) > MOST_CHARACTERS:
            raise ConfigError(plain(key), "...", f"{len(word):,} characters; allowed: at most {MOST_CHARACTERS:,}")
        if "_target_" in word:
            raise ConfigError(plain(key), plain(value), "names code to be run: no setting takes _target_")
        if any(name in word for name in BUILDERS):
            raise ConfigError(plain(key), plain(value), "builds settings from text, which can name code: refused")
        if len(key) > len("--") and RERUN.startswith(key):
            raise ConfigError(RERUN, plain(value), "reads a pickle, which can run any code: refused")


def parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the settings, and the options such as -m with their values. LaunchoptError for an unknown option.

    Hydra knows settings on one side of an option only. Outside of a sweep `against=a,b` becomes a list.
    """
    parser = get_args_parser()
    parser.allow_abbrev = False  # else --versio would be Hydra's own --version
    parser.error = _refuse_argument  # type: ignore[method-assign]  # argparse itself prints 16 lines
    asked = [word for word in words if word != "--version"]  # Hydra's parser would end the process
    known, unknown = parser.parse_known_intermixed_args(asked)
    if unknown:
        bad = next((word for word in unknown if word.startswith("-")), unknown[0])
        raise _unknown_argument(bad, words, parser)
    actions = {"--run": known.run, "--multirun": known.multirun, "--cfg": known.cfg, "--info": known.info}
    asked_for = [name for name, value in actions.items() if value]
    if len(asked_for) > 1:
        raise WordsError(f"{' and '.join(asked_for)}: only one of them; --cfg shows the config of a single run")
    if known.info == "all":
        problem = explained("--info: names no page of Hydra", f"--info {' or '.join(PARTS_OF_INFO)}")
        raise WordsError(f"{problem}; this machine: launchopt doctor; settings: launchopt run --help")
    settings, options = list(known.overrides), list(words)
    for word in settings:
        options.remove(word)
    return [word if known.multirun else _listed(word) for word in settings], options


def _listed(word: str) -> str:
    key, _, value = word.partition("=")
    return f"{key}=[{value}]" if key == "against" and "," in value and value[0] not in "['\"$" else word


def check_settings(settings: Sequence[str]) -> None:
    """Raise LaunchoptError for a setting that Hydra cannot read, and for a sweep of more than MOST_JOBS jobs.

    Hydra lists all jobs of a sweep before it runs the first.
    """
    jobs, parser, groups = 1, OverridesParser.create(), group_options()
    for place, word in enumerate(settings):
        if "=" not in word and not word.startswith("~"):
            raise _no_setting(word, settings[place + 1 :])
        if word.startswith("="):
            raise WordsError(explained(f"{plain(word)}: no setting is named before the =", "", ["repeats=5"]))
        override = _parsed(word, parser, settings[place + 1 :])
        if not override.is_delete():
            check_option(str(override.key_or_group), plain(word.partition("=")[2]))
        _check_group(override, groups)
        jobs *= max(1, _choices(override.value()))
        if jobs > MOST_JOBS:
            key, _, value = word.partition("=")
            raise ConfigError(plain(key), plain(value), f"over {MOST_JOBS:,} jobs")


def _parsed(word: str, parser: OverridesParser, behind: Sequence[str]) -> Override:
    """Return a setting as Hydra reads it. behind: the words after it, which a list with spaces continues."""
    try:
        return parser.parse_overrides([word])[0]
    except (HydraException, ValueError) as error:
        key, _, value = word.partition("=")
        lines = [line for line in str(error).splitlines() if re.search(r"[A-Za-z]", line) and "hydra.cc" not in line]
        why = lines[-1] if isinstance(error, OverrideParseException) and len(lines) > 1 else (lines or [""])[0]
        if "LexerNoViableAlt" in why:
            why = "a quote or bracket without its partner"
        unknown = next((line for line in lines if "Unknown function" in line), None)
        if unknown:
            name = unknown.partition("Unknown function '")[2].rstrip("'")
            functions = parser.functions.functions
            meant = [f"{each}(...)" for each in nearest(name, functions)]
            problem = f"no such function: {plain(name)}"
            raise ConfigError(plain(key), plain(value), explained(problem, ", ".join(functions), meant)) from None
        raise ConfigError(plain(key), plain(value), _unreadable(key, value, why, behind)) from None


def _unreadable(key: str, value: str, why: str, behind: Sequence[str]) -> str:
    """Return the message for a setting that breaks Hydra's grammar."""
    if value.startswith("[") and value.endswith("]") and "" in (names := value.strip("[]").split(",")):
        return explained("a comma too many", "", proposed(f"{key}=[{','.join(filter(None, names))}]"))
    if key != key.strip():
        return explained("a space before the =", "", proposed(shlex.quote(f"{key.strip()}={value.strip()}")))
    bare = value.strip("=,'\" ")
    if value != bare and bare and bare.replace(",", "").replace("_", "").replace(".", "").isalnum():
        return explained("Hydra cannot read this", "", proposed(f"{key}={bare}"))
    if any(each in key for each in "[]") or ".." in key:
        name = key.partition("[")[0].replace("..", ".")
        return explained("Hydra cannot read the key", "names with one dot between them", settings_near(name))
    if any(value.count(opened) != value.count(closed) for opened, closed in ("()", "[]", "{}")):
        if all(value.count(opened) <= value.count(closed) for opened, closed in ("()", "[]", "{}")):
            meant = proposed(f"{key}={value.rstrip(')]}')}") if value.rstrip(")]}").isidentifier() else []
            return explained("a bracket is closed that none opens", "", meant)
        return explained("a bracket is not closed", "2,4 or [2,4] or range(2,5)", _closed(key, value, behind))
    why = "a ~ needs quotes" if value.startswith("~") else why
    word = "{}='{}'".format(key, value.replace("'", "\\'"))
    word = shlex.quote(word) if any(each in word for each in '$`"') else f'"{word}"'
    return explained(f"Hydra cannot read this ({plain(why)[:120]})", "", proposed(word))


def _closed(key: str, value: str, behind: Sequence[str]) -> list[str]:
    """Return `mode.fuse=[qkv,norm]` for `mode.fuse=[qkv,norm`, and for `mode.fuse=[qkv, norm]`, which are two words."""
    names = value.removeprefix("[")
    for word in behind if names.endswith(",") else ():
        names += word
        if not word.endswith(","):
            break
    names = names.removesuffix("]").rstrip(",")
    is_list = value.startswith("[") and all(each.isidentifier() for each in names.split(","))
    return proposed(f"{key}=[{names}]") if is_list else []


def _check_group(override: Override, groups: dict[str, list[str]]) -> None:
    """Raise ConfigError for `mode=null` or `mode=3`: Hydra says of these only that they are no text.

    The same for `mode={name:graph}`, which would set the name of the default option.
    """
    key, value = str(override.key_or_group), override.value()
    several = list(map(str, value)) if isinstance(value, list) and key in groups and key != "experiment" else []
    if key in groups and isinstance(value, dict):
        raise _section(key, {str(name): as_typed(each) for name, each in value.items()})
    if len(several) > 1 or (key == GROUP and any(map(is_path, several))):
        options = ",".join(several)
        problem, meant = "one option, not a list", f"{key}={options}"
        if len(several) > 1:
            problem, meant = "one option, not several", f"{MULTIRUN} {meant}"
        why = explained(problem, "", proposed(meant))
        raise ConfigError(key, f"[{plain(options)}]", why)
    if key in groups and not override.is_delete() and (value is None or isinstance(value, int | float)):
        typed = "null" if value is None else str(value)
        if value is None and key in ("experiment", "table"):
            raise ConfigError(key, typed, f"chooses nothing; leave {key} out")
        raise unknown_option(key, typed, groups[key])


def _section(group: str, settings: Mapping[str, str]) -> ConfigError:
    """Return the error for `mode={name:graph}` and `model={layers:2}`."""
    option = next((settings[name] for name in ("name", "kind") if name in settings), None)
    own = [f"{group}.{name}={each}" for name, each in settings.items() if f"{group}.{name}" in owners()]
    meant = proposed(*([f"{group}={option}"] if option else own[:LIKELY]))
    return ConfigError(group, plain(as_typed(settings)), explained("an option, not a section", f"{group}=NAME", meant))


def _no_setting(word: str, following: Sequence[str]) -> WordsError:
    """Return the error for a word without `=`."""
    name, mark, rest = word.partition(":")
    meant: list[str] = []
    if mark and name in owners():
        meant = [f"{name}={rest}"]
    elif following and following[0].startswith("="):
        meant = [f"{word}={' '.join(following[:2]).strip('= ').split(' ')[0]}"]
    elif word in owners():
        is_value = bool(following) and "=" not in following[0]
        meant = [f"{word}={following[0] if is_value else '...'}"]
    elif Path(word[:255]).exists():
        meant = [f"launchopt report {shlex.quote(word)}"]
    meant = meant or options_near(word) or [f"{each}=..." for each in settings_near(word)]
    return WordsError(explained(f"{plain(word)}: not of the form key=value", "", proposed(*meant)))


def _refuse_argument(message: str) -> NoReturn:
    text = message.removeprefix("argument ").replace(" (choose from ", "; allowed: ").rstrip(")")
    raise WordsError(text)


def _unknown_argument(word: str, words: Sequence[str], parser: argparse.ArgumentParser) -> WordsError:
    """Return the error for an option that neither we nor Hydra have: often a setting with dashes before it."""
    name, equals, value = word.lstrip("-").partition("=")
    name = name if name in owners() else name.replace("-", "_")
    place = list(words).index(word) + 1
    if not equals:
        value = words[place] if place < len(words) and "=" not in words[place] else "..."
    options = nearest(word, parser._option_string_actions) if word.startswith("--") else []
    keys = [name] if name in owners() else [] if options else settings_near(name)
    meant = [*(f"{key}={value}" for key in keys), *options][:3]
    return WordsError(
        explained(f"{plain(word)}: no such option", f"{OPTIONS}; settings are key=value", proposed(*meant))
    )


def plain(text: str) -> str:
    """Return the text for a message: cut, and with its control characters escaped."""
    return shown(text)[1:-1]


def proposed(*commands: str) -> list[str]:
    """Return the commands for a message, as the user would type them, without those too long to be shown whole."""
    return [each for each in commands if len(each) <= MOST_PROPOSED and each.isprintable()]


def _choices(value: object) -> int:
    """Return the number of values of a sweep; 1 for a value that is no sweep."""
    if isinstance(value, RangeSweep):
        start, stop, step = (float(each or 0) for each in (value.start, value.stop, value.step))
        count = (stop - start) / step if step else 0.0
        return math.ceil(min(count, MOST_JOBS + 1)) if count > 1 else 1  # nan: Hydra reports it
    return len(value.list) if isinstance(value, ChoiceSweep) else 1

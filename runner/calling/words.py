"""The settings of `launchopt.run` as words of the command line.

words_of({"workload": "decode", "mode": ["graph", "coalesced"]})    ["workload=decode", "mode=coalesced", ...]
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path

from launchopt.errors import MOST_BITS, MOST_DEPTH, ConfigError
from launchopt.statistics.interval import FEWEST_REPEATS

AUTO = "auto"  # the mode that picks a stack
ALLOWED = "text, numbers, True, False, None, paths, and lists of these"
FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
_KEY = re.compile(r"[\w./@]+", re.ASCII)
_PLAIN = re.compile(r"[a-zA-Z_/][\w/.+@%-]*", re.ASCII)  # text that needs no quotes
_CHANGED = {"+", "-"}  # in the label of a changed stack, such as graph+norm
_LITERALS = {"true", "false", "null", "inf", "nan"}


def words_of(settings: Mapping[str, object], folder: Path | None = None) -> list[str]:
    """Return the words of a run. folder: of its results; None: below outputs/, as the command does.

    A list of modes takes as many repeats as a verdict needs, unless the settings give another number.
    Raise ConfigError for a key that is none, for a value of another type, for a list of modes that makes no base, and
    for a folder that Hydra cannot have.
    """
    words: list[str] = []
    for key, value in settings.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ConfigError(key, value, "no setting; allowed: GROUP, and GROUP.NAME such as workload.requests")
        if key == "mode" and isinstance(value, Sequence) and not isinstance(value, str | bytes):
            if "against" in settings:
                raise ConfigError("against", settings["against"], "the first of a list of modes is the base: give one")
            words += _modes(value)
            words += [] if "repeats" in settings else [f"repeats={FEWEST_REPEATS}"]
        elif key == "mode":
            words += _mode(value)
        else:
            words.append(f"{key}={_text(key, value)}")
    if folder is not None:
        if "${" in str(folder):
            raise ConfigError("folder", folder, "has ${ in its name, which Hydra reads: give another one")
        words += [f"{key}={_text('folder', folder)}" for key in FOLDERS]
    return words


def _modes(modes: Sequence[object]) -> list[str]:
    """Return the words for a list of modes. The first is the base, and the second is measured against it."""
    labels = [_label(each) for each in modes]
    if len(set(labels)) < max(2, len(labels)):
        raise ConfigError("mode", f"[{','.join(labels)}]", "a list needs two or more modes, each named once")
    base, measured, *others = labels
    if AUTO in (base, *others):
        raise ConfigError(
            "mode", f"[{','.join(labels)}]", f"{AUTO} is no base: it can stand second, as the measured mode"
        )
    return [*_mode(measured), f"against={_text('mode', [base, *others])}"]


def _mode(label: object) -> list[str]:
    """Return the words for a mode, such as graph, or graph+norm with the choices that it names."""
    text = _label(label)
    if not _CHANGED & set(text):
        return [f"mode={_text('mode', text)}"]
    from launchopt.modes.stack import options_in

    return shlex.split(options_in(text))


def _label(value: object) -> str:
    """Return the name of a mode; that of a changed stack as results have it."""
    if not isinstance(value, str):
        raise ConfigError("mode", value, "allowed: the name of a mode, or a list of names")
    if not _CHANGED & set(value):
        return value
    from launchopt.modes.stack import choices_of, label_of, stack_of

    name, choices = choices_of(value, "mode")
    return label_of(name, stack_of(name, choices))


def _text(key: str, value: object, depth: int = 0) -> str:
    """Return a value as Hydra reads it. depth: number of lists around it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        _require_words(key, value)
        return value if _PLAIN.fullmatch(value) and value.lower() not in _LITERALS else _quoted(value)
    if isinstance(value, Integral):
        if int(value).bit_length() > MOST_BITS:
            raise ConfigError(key, int(value), "no setting takes such a number")
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        if depth == MOST_DEPTH:
            raise ConfigError(key, "[...]", f"has lists within {MOST_DEPTH} lists; no setting takes them")
        return f"[{','.join(_text(key, each, depth + 1) for each in value)}]"
    raise ConfigError(key, value, f"of type {type(value).__name__}; allowed: {ALLOWED}")


def _require_words(key: str, text: str) -> None:
    """Raise ConfigError for text that no command line can hold."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ConfigError(key, ascii(text), "holds half of a surrogate pair, which is no text") from None
    if "\0" in text:
        raise ConfigError(key, text, "holds a NUL character, which no setting can")


def _quoted(text: str) -> str:
    """Return text in the quotes of Hydra, where a backslash is special only before a quote, and before `${`.

    There it makes OmegaConf take the text as it is, instead of the value that it names.
    """
    text = literal(text)
    escaped = re.sub(r"""(\\*)('|$)""", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"


def literal(text: str) -> str:
    """Return what OmegaConf reads as this text, also if it has `${`, with which a reference to another value begins."""
    return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + "\\${", text)

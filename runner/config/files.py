"""Checks of the user's own config files (--config-dir, --config-path) as Hydra loads them.

In: a path. Out: the text, or a DataError. Each file must be small, plain YAML. A file is refused if it is broken, not
UTF-8, too long or too deep, grows without bounds through aliases, has tags of its own, or has a long list of defaults.
A file that names code is refused, too: Hydra calls `_target_`, and logging calls `()`. This module parses the file but
makes no objects from it.

Under `hydra:` a file may set only what HYDRA_KEYS names: environment variables, handlers of logs, callbacks, launchers
and further folders of configs are refused. `composed` checks the same again when all files are merged. The check here
can name the line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

from launchopt.errors import DataError
from launchopt.files import open_regular

yaml: Any = import_module("yaml")  # a package without type hints

MOST_BYTES = 64 << 10  # maximum size of a file; our largest has under 2 KiB
MOST_NODES = 10_000  # maximum values in a file, with every alias written out
MOST_OPEN = 100  # maximum depth of nested brackets
TOO_DEEP = "nested too deeply, or an alias within itself"
MOST_DEFAULTS = 100  # maximum entries of a list of defaults; ours have up to 13
HYDRA_KEYS = {  # the settings of Hydra that a file may have: none starts a program, names a folder of configs, or logs
    "hydra": ("run", "sweep", "mode", "verbose", "sweeper", "output_subdir", "job"),
    "hydra.job": ("name", "chdir"),
    "hydra.sweeper": ("params",),
}
HYDRA_HEADER = re.compile(r"\s*#+\s*@.*\bhydra\b")  # puts a file below `hydra:`; matched line by line, as Hydra reads
HYDRA_DEFAULT = re.compile(r".*@.*\bhydra\b", re.DOTALL)  # the same in an entry of `defaults`
HIDDEN_DEFAULT = re.compile(r"(.*[/\s])?\.+[^/]", re.DOTALL)  # an entry of `defaults` in a folder that is not checked
BUILDERS = ("oc.create", "oc.decode")  # resolvers of OmegaConf
CODE_KEYS = ("_target_", "()")
PLAIN_TAG = "tag:yaml.org,2002:"


def config_text(path: Path) -> str:
    """Return the text of a config file; DataError if Hydra should not load it."""
    try:
        with open_regular(path) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise DataError(path, None, f"over {MOST_BYTES >> 10} KiB: not a config of this program")
        text = content.decode("utf-8")
        if _most_open(text) > MOST_OPEN:
            raise DataError(path, None, TOO_DEEP)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if any(map(HYDRA_HEADER.match, text.splitlines())) or any(name in text for name in BUILDERS):
            raise DataError(path, None, "sets what Hydra itself runs, or builds settings from text: refused")
        nodes = _nodes(path, root, {}) if root is not None else 0
    except OSError as error:
        raise DataError(path, None, f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(path, None, f"not UTF-8 (byte {error.start + 1})") from None
    except RecursionError:
        raise DataError(path, None, TOO_DEEP) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else int(mark.line) + 1
        raise DataError(path, line, f"not YAML ({getattr(error, 'problem', None) or error})") from None
    if nodes > MOST_NODES:
        raise DataError(path, None, f"over {MOST_NODES} values, aliases written out")
    return text


def _most_open(text: str) -> int:
    """Return the depth of nested brackets, with quoted ones. YAML's reader is slow for a depth of thousands."""
    steps = (1 if bracket[0] in "[{" else -1 for bracket in re.finditer(r"[][{}]", text))
    return max(accumulate(steps, lambda depth, step: max(depth + step, 0), initial=0))


def _nodes(path: Path, node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of nodes at and below `node`; RecursionError for a node within itself."""
    if id(node) in known:
        return known[id(node)]
    line = int(node.start_mark.line) + 1
    if not node.tag.startswith(PLAIN_TAG) or node.tag.startswith(f"{PLAIN_TAG}python"):
        raise DataError(path, line, f"a tag that is not plain YAML: {node.tag}")
    inner: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        inner = [each for pair in node.value for each in pair]
        for key, _ in node.value:
            if key.value in CODE_KEYS:
                raise DataError(path, int(key.start_mark.line) + 1, f"names code to be run: {key.value}")
    elif isinstance(node, yaml.SequenceNode):
        inner = node.value
    known[id(node)] = 1 + sum(_nodes(path, each, known) for each in inner)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == "hydra":
                _check_hydra(path, "hydra", value)
            if key.value == "defaults":
                _check_defaults(path, value)
    return known[id(node)]


def _check_hydra(path: Path, section: str, node: yaml.Node) -> None:
    """Raise DataError for a setting of Hydra that is not among HYDRA_KEYS."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name, allowed = f"{section}.{key.value}", HYDRA_KEYS[section]
        if key.value not in allowed:
            line = int(key.start_mark.line) + 1
            raise DataError(path, line, f"{name}: no config file may set this; allowed: {', '.join(allowed)}")
        if name in HYDRA_KEYS:
            _check_hydra(path, name, value)


def _check_defaults(path: Path, node: yaml.Node) -> None:
    """Raise DataError for an entry of `defaults` that goes below `hydra:`, or that names a file nobody checked."""
    if isinstance(node, yaml.SequenceNode) and len(node.value) > MOST_DEFAULTS:
        raise DataError(path, int(node.start_mark.line) + 1, f"defaults: over {MOST_DEFAULTS} entries")
    for each in _scalars(node, set()):
        line = int(each.start_mark.line) + 1
        if HYDRA_DEFAULT.match(each.value):
            raise DataError(path, line, f"defaults: {each.value} sets what Hydra itself runs: refused")
        if HIDDEN_DEFAULT.match(each.value) and not _is_model(each.value):
            raise DataError(path, line, f"defaults: {each.value} is in a hidden folder or above this one: refused")


def _is_model(named: str) -> bool:
    """Return whether an entry names the config.json of a model by its whole path: no YAML is read there."""
    path = Path(named)
    is_whole = path.is_absolute() and os.path.normpath(named) == named
    return is_whole and (path.suffix == ".json" or (path / "config.json").is_file())


def _scalars(node: yaml.Node, seen: set[int]) -> Iterator[yaml.ScalarNode]:
    """Yield the keys and values at and below `node`, those of an alias once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for each in pair:
                yield from _scalars(each, seen)
    else:
        for each in node.value:
            yield from _scalars(each, seen)

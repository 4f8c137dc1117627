"""Checks of the user's own config files (--config-dir, --config-path) before Hydra loads them.

In: the words of a command line. Out: nothing, or a DataError. Each file must be small, plain YAML. A file is refused if
it is broken, not UTF-8, too long or too deep, grows without bounds through aliases, or has tags of its own. A file that
names code is refused, too: Hydra calls `_target_`, and logging calls `()`. This module parses the file but makes no
objects from it.

Under `hydra:` a file may set only what HYDRA_KEYS names: environment variables, handlers of logs, callbacks, launchers
and further folders of configs are refused.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

from launchopt.errors import DataError
from launchopt.files import open_regular
from runner.config.words import BUILDERS

yaml: Any = import_module("yaml")  # a package without type hints

MOST_BYTES = 64 << 10  # maximum size of a file; our largest has under 2 KiB
MOST_NODES = 10_000  # maximum values in a file, with every alias written out
MOST_OPEN = 100  # maximum depth of nested brackets
TOO_DEEP = "nested too deeply, or an alias within itself"
MOST_FOLDERS = 1000
HYDRA_KEYS = {  # the settings of Hydra that a file may have: none starts a program, names a folder of configs, or logs
    "hydra": ("run", "sweep", "mode", "sweeper", "output_subdir", "job"),
    "hydra.job": ("name", "chdir"),
    "hydra.sweeper": ("params",),
}
HYDRA_HEADER = re.compile(r"\s*#+\s*@.*\bhydra\b")  # puts a file below `hydra:`; matched line by line, as Hydra reads
HYDRA_DEFAULT = re.compile(r".*@.*\bhydra\b", re.DOTALL)  # the same in an entry of `defaults`
HIDDEN_DEFAULT = re.compile(r"(.*[/\s])?\.+[^/]", re.DOTALL)  # an entry of `defaults` in a folder that is not checked
CODE_KEYS = ("_target_", "()")
PLAIN_TAG = "tag:yaml.org,2002:"


def check_config_files(words: Sequence[str]) -> None:
    """Raise DataError for a folder named in `words` that does not exist, or a file in it that Hydra should not load."""
    for folder in _folders(words):
        for path in _files(folder):
            if "hydra" in re.split(r"[./]", path.relative_to(folder).as_posix()):
                raise DataError(path, None, "an option of Hydra's own groups can start programs: refused")
            _check(path)


def _folders(words: Sequence[str]) -> list[Path]:
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--config-path", "-cp")
    with contextlib.suppress(argparse.ArgumentError):  # Hydra reports this error
        named, _ = parser.parse_known_args(list(words))
        if named.config_dir and not Path(named.config_dir).is_dir():
            raise DataError(named.config_dir, None, "no such folder; allowed after --config-dir: a folder with configs")
        return [Path(each) for each in (named.config_dir, named.config_path) if each]
    return []


def _files(folder: Path) -> Iterator[Path]:
    """Yield the YAML files of a folder and all folders below it, also behind links, without hidden folders."""
    for count, (top, below, names) in enumerate(os.walk(folder, followlinks=True)):
        if count == MOST_FOLDERS:
            raise DataError(folder, None, f"over {MOST_FOLDERS} folders: name a folder that holds nothing but configs")
        below[:] = [name for name in below if not name.startswith(".")]
        yield from (Path(top, name) for name in sorted(names) if name.endswith(".yaml"))


def _check(path: Path) -> None:
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
    for each in _scalars(node, set()):
        line = int(each.start_mark.line) + 1
        if HYDRA_DEFAULT.match(each.value):
            raise DataError(path, line, f"defaults: {each.value} sets what Hydra itself runs: refused")
        if HIDDEN_DEFAULT.match(each.value):
            raise DataError(path, line, f"defaults: {each.value} is in a hidden folder or above this one: refused")


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

"""Names of files that the reading commands write, and the check that none of them is an input.

    parser.add_argument("--output", type=file_named(".md"), metavar="FILE.md")

A file that is an input, or that other commands read, is not replaced.
"""

from __future__ import annotations

import argparse
import os
from argparse import ArgumentTypeError
from collections.abc import Iterable, Iterator
from pathlib import Path

from launchopt.files import read_json, reason, require_replaceable
from launchopt.reading.ownership import MANIFEST, SWEEP

STDOUT = Path("-")  # also standard input, among inputs
UNNAMED = Path()  # an output that the command names itself
MODEL = "config.json"
# Keys of JSON files that commands find by themselves.
FLOORS, ENTRIES, OBJECTIVE = "floors", "entries", "slo_p99_us"
_READ = {FLOORS: "a calibration", ENTRIES: "a table of mode=auto", OBJECTIVE: "the objective of a report"}


class OutputFile:
    """A type of paths to write, for argparse. See `file_named`."""

    def __init__(self, endings: tuple[str, ...], hint: str, replaces: str) -> None:
        self._endings, self._hint, self._replaces = endings, hint, replaces

    def __call__(self, text: str) -> Path:
        """Return the path; ArgumentTypeError for one that must not be written."""
        path = Path(text)
        if not text.lower().endswith(self._endings):
            raise ArgumentTypeError(f"{text}: the name must end in {' or '.join(self._endings)}{self._hint}")
        try:
            require_replaceable(path)
        except OSError as error:
            raise ArgumentTypeError(f"{text}: {reason(error)}") from None
        if any(map(_is_result, (path, _resolved(path)))):
            raise ArgumentTypeError(f"{text}: holds results of a run or a sweep: give another name")
        return path

    def kept(self, path: Path) -> str | None:
        """Return the kind of file that is at `path`, if commands find it by themselves and this option makes others."""
        key = _key_read(path)
        return _READ[key] if key and key != self._replaces else None


def file_named(*endings: str, is_optional: bool = False, replaces: str = "") -> OutputFile:
    """Return a type of paths to write, whose names end in one of `endings`, such as `.json`.

    A pipe, a device, a folder, a result of a run and a file that commands read are refused: to write the file would
    remove it.

    is_optional: the option also works without a name, so the word after it may have been meant as another argument.
    replaces: key of the kind of JSON file that the option may replace, although commands read it.
    """
    return OutputFile(endings, "; without a name, put the option last" if is_optional else "", replaces)


def _is_result(path: Path) -> bool:
    """Return whether a file has the name that it would have as a result of the run or the sweep in its folder."""
    if path.name in (MANIFEST, SWEEP):
        return os.path.lexists(path)
    return os.path.lexists(path.with_name(MANIFEST)) and _is_table(path)


def _is_table(path: Path) -> bool:
    if path.suffix != ".parquet":
        return False
    from launchopt.recording.dataset import TABLES  # late: most commands write no table

    return path.stem in TABLES


def _key_read(path: Path) -> str | None:
    """Return the key in a JSON file that commands find by themselves; None for any other file."""
    try:
        content = read_json(path) if path.suffix == ".json" else None
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or not ("schema_version" in content or set(content) == {OBJECTIVE}):
        return None
    return next((key for key in _READ if key in content), None)


def clash(actions: Iterable[argparse.Action], options: argparse.Namespace) -> str | None:
    """Return the mistake if an option names a file to write that is an input, or that another option writes; else None.

    options: the values of `actions`. Every value that is no file to write may name an input.
    """
    inputs, outputs = list[Path](), list[tuple[str, Path, str | None]]()
    for action in actions:
        value = getattr(options, action.dest, None)
        if not isinstance(action.type, OutputFile):
            inputs += _paths(value)
        elif isinstance(value, Path) and value not in (STDOUT, UNNAMED):
            outputs.append((action.option_strings[-1], value, action.type.kept(value)))
    writes = dict[Path, str]()  # the option of each file
    for option, output, kind in outputs:
        if any(_is_input(output, each) for each in inputs):
            return f"{option} {output}: is also an input; name another file"
        if kind is not None:
            return f"{option} {output}: holds {kind}; name another file"
        if (other := writes.setdefault(_resolved(output), option)) != option:
            return f"{option} {output}: is also the file of {other}; name another file"
    return None


def _paths(value: object) -> Iterator[Path]:
    """Yield every path that a value may name: itself, and as KEY=FILE or FOLDER:MODE."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, str) and value:
        for text in {value, value.partition("=")[2], value.rpartition(":")[0]} - {""}:
            yield Path(os.path.expanduser(text))  # noqa: PTH111  # Path.expanduser() raises for an unknown user
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _paths(each)


def _is_input(output: Path, given: Path) -> bool:
    """Return whether `output` is the file `given`, or one that a command reads in the folder `given`."""
    if given == STDOUT:
        return _is_same(output, 0)
    if _is_same(output, given):
        return True
    whole = _resolved(output)
    if not whole.is_relative_to(_resolved(given)) or not os.path.lexists(output):
        return False
    return whole.name == MODEL or _is_table(whole)


def _is_same(output: Path, other: Path | int) -> bool:
    """Return whether two files are one, also by links. other: a path, or the number of an open file."""
    try:
        return os.path.samestat(output.stat(), os.stat(other))  # noqa: PTH116  # it may be a number
    except (OSError, ValueError):
        return False


def _resolved(path: Path) -> Path:
    """Return a path without links; as it is if that cannot be found out."""
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle
        return path

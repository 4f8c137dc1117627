"""Every error that this project raises on purpose. One `except LaunchoptError` catches them all.

LaunchoptError              base: a short message and the exit code of the process
├── ConfigError             a setting that cannot work: names the key, the value, what is allowed (exit 2)
├── PackageError            a package that a request needs is not installed                       (exit 2)
├── DataError               a file that cannot be read: names file and line                       (exit 2)
├── ComparisonError         two runs that cannot be compared: says what differs                   (exit 2)
├── DeviceError             the device does not exist, or lacks a library                         (exit 2)
│   └── ArenaMemoryError    the operands do not fit; raised before anything is launched           (exit 2)
├── RunError                a run broke: a child died, a launch failed, commands are missing      (exit 1)
│   ├── VerificationError   a run finished with wrong numbers                                     (exit 1)
│   └── GpuError            the GPU ran out of memory during a run, or its context is lost        (exit 1)
└── Interrupted             a signal stopped the run; finished repeats are kept   (exit 128 + its number)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

JsonValue: TypeAlias = Any  # what `json` reads and writes
MOST_BITS = 4096  # of a whole number that is shown; Python refuses to write one of over 4,300 digits
MOST_DEPTH = 8  # of lists within lists in a message, and in a setting
LIKELY = 3  # maximum of names that a message proposes
_HEADINGS = "Error in sys.excepthook:", "Original exception was:"


class LaunchoptError(Exception):
    """Base of all errors here. The process ends with `exit_code`."""

    exit_code = 1

    def __str__(self) -> str:
        """Return the message with control characters escaped, except line ends: a name may hold any character."""
        return printable(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        """Return the parts of a pickle. Constructors of subclasses take other arguments than the message."""
        return _unpickled, (type(self), self.args, vars(self))


def _unpickled(kind: type[LaunchoptError], args: tuple[object, ...], attributes: dict[str, object]) -> LaunchoptError:
    error = kind.__new__(kind, *args)
    vars(error).update(attributes)
    return error


class ConfigError(LaunchoptError):
    """A setting that cannot work: `key`, its `value`, and the `allowed` values."""

    exit_code = 2

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(f"{key}={one_line(as_typed(value), 200)}: {allowed}")
        self.key, self.value, self.allowed = key, value, allowed

    @classmethod
    def required(cls, key: str, allowed: str) -> ConfigError:
        """Return the error for a setting that has no default and was not given."""
        error = cls(key, "", allowed)
        error.args = (f"{key} is required: {allowed}",)
        return error


class PackageError(LaunchoptError):
    """Packages that a request needs are not installed. `command` installs them."""

    exit_code = 2

    def __init__(self, request: str, packages: Iterable[str], command: str) -> None:
        self.problem = f"needs {', '.join(packages)}; type: {command}"
        super().__init__(f"{request} {self.problem}")


class DataError(LaunchoptError):
    """A data file that cannot be read. `line` counts from 1; None means the whole file."""

    exit_code = 2

    def __init__(self, path: Path | str, line: int | None, problem: str) -> None:
        where = one_line(path) if line is None else f"{one_line(path)}:{line}"
        super().__init__(f"{where}: {one_line(problem)}")
        self.path, self.line, self.problem = path, line, problem


class ComparisonError(LaunchoptError):
    """Two runs that cannot be compared: other work, another machine, or failed repeats."""

    exit_code = 2


class DeviceError(LaunchoptError):
    """The requested device does not exist, or a library that it needs is missing."""

    exit_code = 2


class ArenaMemoryError(DeviceError):
    """The operands do not fit into the device's memory."""


class RunError(LaunchoptError):
    """A run broke after it started."""


class VerificationError(RunError):
    """A run finished, but its outputs are wrong."""


class GpuError(RunError):
    """The GPU failed during a run: it has no memory left, or a kernel broke its context."""


class Interrupted(LaunchoptError):  # noqa: N818 (the user asked for it; it is no error)
    """A signal stopped the run: Ctrl-C, SIGTERM or SIGHUP. exit_code: 128 and the signal's number."""

    exit_code = 130

    def __init__(self, message: str, exit_code: int = exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def as_typed(value: object, depth: int = 0) -> str:
    """Return a value as the command line has it: `null`, `true`, `[norm,attention]`, `{a:1}`.

    depth: number of lists and dictionaries around it. Below MOST_DEPTH of them it is `...`: one can hold itself.
    """
    if depth > MOST_DEPTH:
        return "..."
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list | tuple):
        return f"[{','.join(as_typed(each, depth + 1) for each in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}:{as_typed(each, depth + 1)}' for name, each in value.items())}}}"
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"{'-' if value < 0 else ''}(a number of over {MOST_BITS // 4} digits)"
    return str(value)


def one_line(text: object, most: int | None = None) -> str:
    """Return `text` for a message: line ends become spaces, control characters are escaped, `most` cuts its length."""
    joined = printable(" ".join(str(text).splitlines()))
    return joined if most is None or len(joined) <= most else joined[: most - 3] + "..."


def last_line(text: str) -> str:
    """Return the last line of standard error that tells something: behind a GPU fault Python adds two headings."""
    return next((line for line in reversed(text.splitlines()) if line.strip() and line not in _HEADINGS), "")


def printable(text: str) -> str:
    """Return `text` with control characters escaped, except line ends: others could move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def printable_within(value: JsonValue) -> JsonValue:
    """Return JSON-like data with `printable` applied to each of its texts."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): printable_within(each) for key, each in value.items()}
    return list(map(printable_within, value)) if isinstance(value, list | tuple) else value


def choices(names: Iterable[str]) -> str:
    """Return the sorted names for an error text: `a, b, c`."""
    return ", ".join(sorted(names))


def explained(problem: str, allowed: str = "", meant: Sequence[str] = ()) -> str:
    """Return `problem; allowed: ALLOWED; did you mean A, B or C?`, without the parts that are empty."""
    parts = [problem, *([f"allowed: {allowed}"] if allowed else [])]
    if meant:
        *first, last = map(one_line, meant)
        parts.append(f"did you mean {', '.join(first) + ' or ' if first else ''}{last}?")
    return "; ".join(parts)


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three of `names` that a misspelt `name` may stand for, the most likely first.

    Capitals, `-`, `_`, spaces and dots do not count. A name that begins with or contains the other comes last.
    """
    from difflib import get_close_matches  # only an error needs it

    plain: dict[str, str] = {}
    for each in names:
        plain.setdefault(_bare(each), each)
    if (asked := _bare(name)) in plain:
        return [plain[asked]]
    close = get_close_matches(asked, plain, LIKELY, 0.7 if len(asked) > 3 else 0.66)  # one wrong letter of three
    parts = [each for each in plain if len(asked) > 2 and (asked in each or (len(each) > 2 and asked.startswith(each)))]
    return [plain[each] for each in dict.fromkeys([*close, *parts])][:LIKELY]


def _bare(name: str) -> str:
    return "".join(each for each in name.lower() if each not in "-_ .")

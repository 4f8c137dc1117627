"""Every error this project raises on purpose, so that a caller needs one `except`.

LaunchoptError              base: a short message, and the process exit code that goes with it
├── ConfigError             a setting that cannot work: names the key, the value, what is allowed (exit 2)
├── DataError               a file that cannot be read: names file and line                       (exit 2)
├── DeviceError             the asked-for device is not there, or lacks a library                 (exit 2)
│   └── ArenaMemoryError    the operands do not fit; said before anything is launched             (exit 2)
├── RunError                a run broke: a child died, a launch failed, commands went missing     (exit 1)
│   ├── VerificationError   a run finished with wrong numbers                                     (exit 1)
│   └── GpuError            out of GPU memory in the middle, or the GPU's context is lost         (exit 1)
└── Interrupted             the user stopped the run; what was measured is kept                   (exit 130)
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class LaunchoptError(Exception):
    """Base of all; `exit_code` is what the process ends with."""

    exit_code = 1


class ConfigError(LaunchoptError):
    """A setting that cannot work."""

    exit_code = 2

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(f"{key}={one_line(value, 200)}: {allowed}")
        self.key, self.value, self.allowed = key, value, allowed


class DataError(LaunchoptError):
    """A data file that cannot be read; `line` is 1-based, None for the file as a whole."""

    exit_code = 2

    def __init__(self, path: Path | str, line: int | None, problem: str) -> None:
        where = one_line(path) if line is None else f"{one_line(path)}:{line}"
        super().__init__(f"{where}: {one_line(problem, 500)}")
        self.path, self.line, self.problem = path, line, problem


class DeviceError(LaunchoptError):
    """The device asked for is not there, or a library it needs is missing."""

    exit_code = 2


class ArenaMemoryError(DeviceError):
    """The operands do not fit into the device's memory."""


class RunError(LaunchoptError):
    """A run broke after it had started."""


class VerificationError(RunError):
    """A run finished, but its outputs are not the products that were asked for."""


class GpuError(RunError):
    """The GPU gave up in the middle: no memory, or a context that a kernel broke."""


class Interrupted(LaunchoptError):  # noqa: N818 (a request of the user's, not an error)
    """The user stopped the run."""

    exit_code = 130


def one_line(text: object, most: int | None = None) -> str:
    """For a message: line ends as spaces, other control characters escaped, cut to `most` characters."""
    joined = " ".join(str(text).splitlines())
    if not joined.isprintable():
        joined = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in joined)
    return joined if most is None or len(joined) <= most else joined[: most - 3] + "..."


def choices(names: Iterable[str]) -> str:
    """`a, b, c` for an error text, sorted."""
    return ", ".join(sorted(names))

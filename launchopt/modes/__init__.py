"""Execution strategies, one file each, loaded only when asked for: listing them imports no CUDA.

To add one, put a file here: its name is the mode's, and it holds a class whose `name` says the same (CONTRIBUTING.md
has an example).
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from launchopt.errors import ConfigError, choices

if TYPE_CHECKING:
    from launchopt.modes.base import Mode

NOT_MODES = ("base", "options")
MODES = tuple(sorted(module.name for module in iter_modules(__path__) if module.name not in NOT_MODES))


def check_mode(name: str) -> None:
    """ConfigError, with the known ones, for a mode that does not exist."""
    if name not in MODES:
        raise ConfigError("mode", name, f"must be one of {choices(MODES)}")


def mode_class(name: str) -> type[Mode]:
    """The class of a mode; ConfigError names the known ones."""
    check_mode(name)
    from launchopt.modes.base import Mode

    module = import_module(f"{__name__}.{name}")
    for found in vars(module).values():
        if isinstance(found, type) and issubclass(found, Mode) and vars(found).get("name") == name:
            return found
    raise ConfigError("mode", name, f"launchopt/modes/{name}.py has no Mode whose name is {name!r}")

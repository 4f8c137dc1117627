"""Execution strategies (modes), one file each. A mode's file is imported only when the mode is used.

So a list of modes imports no CUDA. To add a mode, add a file NAME.py with a subclass of `Mode` whose `name` is NAME
(CONTRIBUTING.md has an example).
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from launchopt.errors import ConfigError, choices, explained, nearest

if TYPE_CHECKING:
    from launchopt.modes.base import Mode

NOT_MODES = ("base", "options")
MODES = tuple(sorted(module.name for module in iter_modules(__path__) if module.name not in NOT_MODES))


def check_mode(name: str) -> None:
    """Raise ConfigError, which lists the modes, if there is no mode of this name."""
    if name not in MODES:
        meant = [f"mode={each}" for each in nearest(name, MODES)]
        raise ConfigError("mode", name, explained("no such mode", choices(MODES), meant))


def mode_class(name: str) -> type[Mode]:
    """Return the class of a mode; raise ConfigError as `check_mode` does."""
    check_mode(name)
    from launchopt.modes.base import Mode

    module = import_module(f"{__name__}.{name}")
    for found in vars(module).values():
        if isinstance(found, type) and issubclass(found, Mode) and vars(found).get("name") == name:
            return found
    raise ConfigError("mode", name, f"launchopt/modes/{name}.py has no Mode whose name is {name!r}")

"""Execution strategies (modes), one file each. A mode's file is imported only when the mode is used.

So a list of modes imports no CUDA. To add a mode, add a file NAME.py with a subclass of `Mode` whose `name` is NAME
(CONTRIBUTING.md has an example). Installed packages add modes by an entry point (docs/plugins.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING

from launchopt.errors import ConfigError, choices, explained, nearest
from launchopt.plugins import found as plugins

if TYPE_CHECKING:
    from launchopt.modes.base import Mode

NO_OPTIONS: Mapping[str, object] = MappingProxyType({})
NOT_MODES = ("base", "options", "stack", "stacked")
OWN_MODES = tuple(sorted(module.name for module in iter_modules(__path__) if module.name not in NOT_MODES))
MODES = tuple(sorted({*OWN_MODES, *plugins.names("mode")}))


def check_mode(name: str) -> None:
    """Raise ConfigError, which lists the modes, if there is no mode of this name."""
    if name not in MODES:
        meant = [f"mode={each}" for each in nearest(name, MODES)]
        raise ConfigError("mode", name, explained("no such mode", choices(MODES), meant))


def mode_class(name: str, options: Mapping[str, object] = NO_OPTIONS) -> type[Mode]:
    """Return the class of a mode; raise ConfigError as `check_mode` does.

    options: the mode's options. If they change its stack, the class is that of the changed stack.
    """
    check_mode(name)
    from launchopt.modes.stack import preset_stack, stack_of

    found, stack = found_class(name), stack_of(name, options)
    if stack == preset_stack(name):
        return found
    from launchopt.modes.stacked import changed

    return changed(found, stack)


def broken_modes() -> dict[str, str]:
    """Return the modes of plugins that cannot be used, with the reasons."""
    broken = {}
    for name in MODES:
        try:
            if name not in OWN_MODES:
                found_class(name)
        except ConfigError as error:
            broken[name] = error.allowed
    return broken


def found_class(name: str) -> type[Mode]:
    """Return the class in a mode's file, or of a plugin; ConfigError if the plugin cannot be used."""
    from launchopt.modes.base import Mode
    from launchopt.modes.options import ModeOptions, undeclared

    if name not in OWN_MODES and (plugin := plugins.plugin_of("mode", name)) is not None:
        kind = plugins.checked_class(plugin, Mode, lambda kind: vars(kind).get("name"), "prepare")
        if not isinstance(kind.options, ModeOptions):
            plugin.refuse(f"is broken: {plugin.entry.value}.options is no ModeOptions")
        if (option := undeclared(type(kind.options))) is not None:
            plugin.refuse(f"is broken: {option} must be bool, int, float or str, and declared by option(...)")
        return kind
    module = import_module(f"{__name__}.{name}")
    for found in vars(module).values():
        if isinstance(found, type) and issubclass(found, Mode) and vars(found).get("name") == name:
            return found
    raise ConfigError("mode", name, f"launchopt/modes/{name}.py has no Mode whose name is {name!r}")

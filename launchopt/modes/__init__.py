"""Execution strategies, one file each, loaded only when asked for: listing them imports no CUDA.

To add one: write the file, name it here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from launchopt.errors import ConfigError, choices

if TYPE_CHECKING:
    from launchopt.modes.base import Mode

MODES = {
    "baseline": "launchopt.modes.baseline:Baseline",
    "batched": "launchopt.modes.batched:Batched",
}


def check_mode(name: str) -> None:
    """ConfigError, with the known ones, for a mode that does not exist."""
    if name not in MODES:
        raise ConfigError("mode", name, f"must be one of {choices(MODES)}")


def mode_class(name: str) -> type[Mode]:
    """The class of a mode; ConfigError names the known ones."""
    check_mode(name)
    module, _, attribute = MODES[name].partition(":")
    found: type[Mode] = getattr(import_module(module), attribute)
    return found

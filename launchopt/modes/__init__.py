"""Execution strategies, one file each, loaded only when asked for: listing them imports no CUDA.

To add one: write the file, name it here.
"""

from __future__ import annotations

from importlib import import_module

from launchopt.errors import ConfigError, choices
from launchopt.modes.base import Mode

MODES = {
    "baseline": "launchopt.modes.baseline:Baseline",
    "batched": "launchopt.modes.batched:Batched",
}


def mode_class(name: str) -> type[Mode]:
    """The class of a mode; ConfigError names the known ones."""
    if name not in MODES:
        raise ConfigError("mode", name, f"must be one of {choices(MODES)}")
    module, _, attribute = MODES[name].partition(":")
    found: type[Mode] = getattr(import_module(module), attribute)
    return found

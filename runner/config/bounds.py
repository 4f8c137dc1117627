"""Ranges of settings. In: a setting's key and value. Out: nothing, or a ConfigError: both, and what is allowed."""

from __future__ import annotations

import math

from launchopt.errors import ConfigError, choices

LARGEST = 2**31 - 1  # sizes and counts are int32 in cuBLASLt and uint32 in a command record


def within(key: str, value: float | None, low: float, high: float = LARGEST) -> None:
    """ConfigError where a value that was given is not from `low` to `high`."""
    if value is not None and not low <= value <= high:  # also of nan
        raise ConfigError(key, value, f"must be from {low:.10g} to {high:.10g}")


def fixed(key: str, value: str, *allowed: str) -> None:
    """ConfigError where a group's own name was overridden: choose another option of the group instead."""
    if value not in allowed:
        raise ConfigError(key, value, f"must be {choices(allowed)}; to choose another, give {key.partition('.')[0]}=")


def above_zero(key: str, value: float | None) -> None:
    """ConfigError where a value that was given is not a finite number above 0."""
    if value is None:
        return
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(key, value, "must be finite and above 0")

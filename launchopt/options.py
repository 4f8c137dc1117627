"""Declare the options of a mode, a workload, an arrival or a model, and check their values.

    @dataclass(slots=True)
    class Options(ModeOptions):
        streams: int = option(4, "streams that take launches in turn", low=2, high=64, is_power_of_two=True)

The declaration gives an option its name, type, default, limits and help. Configs, `--help` and errors read it there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, TypeVar

from launchopt.errors import ConfigError, explained, nearest
from launchopt.errors import choices as listed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LARGEST = 2**31 - 1  # largest size or count: an int32 in cuBLASLt, a uint32 in a command record
REQUIRED: Any = "???"  # default of an option that the user must give; OmegaConf defines this text

Value = bool | int | float | str | list[str] | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """The values that an option may have. None is always allowed."""

    low: float | None = None
    high: float = LARGEST
    is_above_zero: bool = False  # the value must be finite and above 0
    is_power_of_two: bool = False
    choices: tuple[str, ...] = ()  # the allowed texts; empty: no restriction

    def check(self, key: str, value: object, form: str = "{}") -> None:
        """Raise ConfigError if a value is not within these limits. form: how the value is typed, as in an error."""
        if isinstance(value, list | tuple):
            self._check_each(key, value)
            return
        if self.choices and value is not None and value not in self.choices:
            meant = [f"{key}={form.format(each)}" for each in nearest(str(value), self.choices)]
            raise ConfigError(key, value, explained("not one of its values", listed(self.choices), meant))
        number = value if isinstance(value, int | float) else None
        if self.low is not None:
            within(key, number, self.low, self.high)
        if self.is_above_zero:
            above_zero(key, number)
        if self.is_power_of_two and isinstance(value, int) and value.bit_count() != 1:
            above = 1 << max(value, 1).bit_length()
            low = 1 if self.low is None else self.low
            meant = [f"{key}={near}" for near in (above >> 1, above) if low <= near <= self.high]
            raise ConfigError(key, value, explained("not a power of two", "powers of two", meant))

    def _check_each(self, key: str, values: Sequence[object]) -> None:
        """Raise ConfigError for the first element of a list that is not within these limits, or that comes twice."""
        for value in values:
            if isinstance(value, list | tuple | Mapping):
                raise ConfigError(key, values, explained("a list or section within a list", f"lists of {self}"))
            self.check(key, value, "[{}]")
            if values.count(value) > 1:
                raise ConfigError(key, value, "is named twice; name each once")

    def __str__(self) -> str:
        """Return the limits as a phrase; "" if there are none."""
        if self.choices:
            return listed(self.choices)
        high = "" if self.high == LARGEST else f" to {self.high:.10g}"
        parts = [] if self.low is None else [f"from {self.low:.10g}{high}"]
        parts += ["above 0"] if self.is_above_zero else []
        parts += ["a power of two"] if self.is_power_of_two else []
        return ", ".join(parts)


def option(
    default: T,
    text: str,
    *,
    low: float | None = None,
    high: float = LARGEST,
    is_above_zero: bool = False,
    is_power_of_two: bool = False,
    choices: tuple[str, ...] = (),
) -> T:
    """Declare one field of a dataclass of options. text: its line of help. The other arguments: see `Limits`."""
    limits = Limits(low, high, is_above_zero, is_power_of_two, choices)
    declared: T = field(default=default, metadata={"help": text, "limits": limits})
    return declared


def declared_in(package: str, base: type[T]) -> list[type[T]]:
    """Return the classes derived from `base` that modules of a package define, in the order of module names.

    Classes of the module that defines `base` are left out, since they may be base classes too.
    """
    found: list[type[T]] = []
    for module in sorted(iter_modules(import_module(package).__path__), key=lambda each: each.name):
        values = vars(import_module(f"{package}.{module.name}")).values()
        classes = [value for value in values if isinstance(value, type) and issubclass(value, base)]
        found += [each for each in classes if each.__module__ == f"{package}.{module.name}" != base.__module__]
    return found


def help_of(declared: Field[object]) -> str:
    """Return an option's line of help, with its limits; "" if the field was not declared by `option`."""
    text, limits = declared.metadata.get("help", ""), str(declared.metadata.get("limits", ""))
    return f"{text} ({limits})" if limits else str(text)


def check_options(group: str, options: DataclassInstance) -> None:
    """Raise ConfigError, with the key GROUP.NAME, for the first option of a dataclass that is not within its limits."""
    for declared in fields(options):
        if limits := declared.metadata.get("limits"):
            limits.check(f"{group}.{declared.name}", getattr(options, declared.name))


def within(key: str, value: float | None, low: float, high: float = LARGEST) -> None:
    """Raise ConfigError if a value is neither None nor from `low` to `high`."""
    if value is not None and not low <= value <= high:  # also true for NaN
        raise ConfigError(key, value, explained("out of range", f"from {low:.10g} to {high:.10g}"))


def fixed(key: str, value: str, *allowed: str) -> None:
    """Raise ConfigError unless `value`, the name of the chosen option of a config group, is one of `allowed`.

    A user who overrides this name wants another option of the group; the message says how to choose it.
    """
    if value not in allowed:
        group = key.partition(".")[0]
        raise ConfigError(key, value, explained(f"choose another with {group}=...", listed(allowed)))


def above_zero(key: str, value: float | None) -> None:
    """Raise ConfigError if a value is neither None nor a finite number above 0."""
    if value is None:
        return
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(key, value, explained("out of range", "finite numbers above 0"))

"""`Fields`: the values of a config.json, each checked as it is read.

In: the object of a JSON file of a stranger. Out: numbers within limits, flags, and words without special characters. A
value that does not fit raises a DataError with the file, the field and what is allowed. Words go into notices and
configs, so that they keep only letters, digits and `_ . + -`: none can hold an interpolation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launchopt.errors import DataError, one_line
from launchopt.options import LARGEST

MOST_OF_A_WORD = 40
MOST_NUMBER = 10**15  # of a number with decimals; published bases of rotation go to 4e9


class Fields:
    """The values of a config.json by name. `defaults` has those that a published file may lack."""

    def __init__(self, path: Path, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.path, self._values, self._defaults = path, values, defaults or {}

    def __contains__(self, name: str) -> bool:
        return self.value(name) is not None

    def value(self, name: str) -> Any:
        """Return the value of a field; its default if it is absent. None if it is null, or absent without a default."""
        return self._values[name] if name in self._values else self._defaults.get(name)

    def error(self, name: str, problem: str) -> DataError:
        """Return the error for a field."""
        value = self.value(name)
        shown = name if value is None else f"{name}={one_line(str(value), 60)}"
        return DataError(self.path, None, f"{shown}: {problem}")

    def whole(self, name: str, low: int = 1, high: int = LARGEST) -> int:
        """Return a whole number; DataError if it is absent or not within the limits."""
        value = self.value(name)
        if value is None:
            raise self.error(name, "missing; it must be a whole number")
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(name, f"must be a whole number from {low} to {high}")
        return value

    def derived(self, value: int, *names: str) -> int:
        """Return a size that follows from the named fields; DataError if it is not within the limits of one."""
        if value > LARGEST:
            first, *others = names
            raise self.error(
                first,
                f"with {' and '.join(f'{each}={self.value(each)}' for each in others)}, gives {value}; "
                f"allowed: at most {LARGEST}",
            )
        return value

    def whole_or(self, name: str, otherwise: int, low: int = 0) -> int:
        """Return a whole number; `otherwise` if it is absent."""
        return self.whole(name, low) if name in self else otherwise

    def positive(self, name: str) -> float | None:
        """Return a number above 0; None if it is absent."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < MOST_NUMBER:
            raise self.error(name, f"must be a number above 0 and below {MOST_NUMBER:g}")
        return float(value)

    def between(self, name: str, low: float, high: float, otherwise: float) -> float:
        """Return a number from `low` to `high`; `otherwise` if it is absent."""
        value = self.positive(name)
        if value is not None and not low <= value <= high:
            raise self.error(name, f"must be from {low:g} to {high:g}")
        return otherwise if value is None else value

    def flag(self, name: str) -> bool:
        """Return true or false; false if it is absent."""
        value = self.value(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def word(self, name: str) -> str | None:
        """Return a text with its special characters removed; None if it is absent or no text."""
        value = self.value(name)
        return as_word(value) if isinstance(value, str) else None

    def words(self, name: str) -> list[str]:
        """Return a list of texts, such as the kind of each layer; [] if it is absent."""
        value = self.value(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(name, "must be a list of texts")
        return [as_word(each) for each in value]

    def numbers(self, name: str) -> list[int]:
        """Return a list of whole numbers; [] if it is absent."""
        value = self.value(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
            raise self.error(name, "must be a list of whole numbers")
        return value

    def section(self, name: str) -> Fields | None:
        """Return the fields of an object within this one; None if it is absent or no object."""
        value = self.value(name)
        return Fields(self.path, value) if isinstance(value, dict) else None


def as_word(text: str) -> str:
    """Return a text of letters, digits and `_ . + -` only, cut to MOST_OF_A_WORD."""
    return re.sub(r"[^\w.+-]+", "_", text)[:MOST_OF_A_WORD]

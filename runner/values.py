"""Types of the values of a subcommand's options. The error for a refused value names what is allowed.

parser.add_argument("--output", type=file_named(".md"), metavar="FILE.md")
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

from launchopt.files import reason, require_replaceable


def file_named(*endings: str, is_optional: bool = False) -> Callable[[str], Path]:
    """Return a type of paths to write, whose names end in one of `endings`, such as `.json`.

    A pipe, a device or a folder of that name is refused: to write the file would remove it.

    is_optional: the option also works without a name, so the word after it may have been meant as another argument.
    """
    hint = "; without a name, put the option last" if is_optional else ""

    def path(text: str) -> Path:
        if not text.lower().endswith(endings):
            raise ArgumentTypeError(f"{text}: the name must end in {' or '.join(endings)}{hint}")
        try:
            require_replaceable(Path(text))
        except OSError as error:
            raise ArgumentTypeError(f"{text}: {reason(error)}") from None
        return Path(text)

    return path


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a type of whole numbers from `low` to `high`."""
    allowed = f"must be a whole number {f'of at least {low}' if high is None else f'from {low} to {high}'}"

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            raise ArgumentTypeError(f"{text}: {allowed}")
        return value

    return number


def positive(text: str) -> float:
    """Return a number above 0. Raises ArgumentTypeError for any other text."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (math.isfinite(value) and value > 0):
        raise ArgumentTypeError(f"{text}: must be a number above 0")
    return value

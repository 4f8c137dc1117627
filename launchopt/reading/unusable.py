"""Names the parts of results that cannot be used, on standard error: each file once, in one line."""

from __future__ import annotations

from launchopt.errors import DataError
from launchopt.messages import print_error

_named: set[str] = set()


def name_unusable(error: DataError) -> None:
    """Print the problem of a file whose rest is used."""
    if (text := str(error)) not in _named:
        _named.add(text)
        print_error(text, "warning")


def was_named() -> bool:
    """Return whether a part of the results has been left out since `forget`."""
    return bool(_named)


def forget() -> None:
    """Forget what was named, so that a later command of this process names it again."""
    _named.clear()

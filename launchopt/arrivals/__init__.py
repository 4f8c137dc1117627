"""Arrivals: the times at which requests are due. Each rule is one file with its options.

`arrivals()` finds every module here with a class derived from `Arrival` whose `kind` is the name of the module. Files
of requests have a reader per format.
"""

from __future__ import annotations

from functools import cache

from launchopt.arrivals.base import Arrival
from launchopt.options import declared_in


@cache
def arrivals() -> dict[str, type[Arrival]]:
    """Return every arrival rule by its kind, in alphabetical order."""
    return {kind.option(): kind for kind in declared_in(__name__, Arrival)}

"""When requests come: each rule is one file with its options, and files of requests have a reader a format.

A rule is found by being there: a module here with a class derived from `Arrival` whose `kind` is the module's name.
"""

from __future__ import annotations

from functools import cache

from launchopt.arrivals.base import Arrival
from launchopt.options import declared_in


@cache
def arrivals() -> dict[str, type[Arrival]]:
    """Return every arrival rule by its kind, in alphabetical order."""
    return {kind.option(): kind for kind in declared_in(__name__, Arrival)}

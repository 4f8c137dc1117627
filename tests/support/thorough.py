"""The share of generated cases that tests try: a sample by default, all with `pytest --thorough`.

tests/conftest.py calls `select` before any test is imported.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

from hypothesis import HealthCheck, settings

Case = TypeVar("Case")

SHARE = 4  # by default one case in SHARE is tried
LEAST_EXAMPLES = 25  # minimum examples of a property
SEED = 20  # seed of the choice of cases
PROFILES = {False: 100 // SHARE, True: 100}  # examples of a property that names no number

_thorough = [True]


def select(thorough: bool) -> None:
    """Select the hypothesis profile, and how many cases `some` keeps. No property fails because the machine is busy."""
    _thorough[:] = [thorough]
    for each, examples in PROFILES.items():
        settings.register_profile(
            _name(each), max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        )
    settings.load_profile(_name(thorough))


def _name(thorough: bool) -> str:
    return "thorough" if thorough else "sample"


def is_thorough() -> bool:
    """Return whether every case is tried."""
    return _thorough[0]


def some(cases: Iterable[Case], share: int = SHARE) -> list[Case]:
    """Return one case in `share`, at least one, drawn by a fixed seed and in their order; all with --thorough."""
    every = list(cases)
    if is_thorough() or not every:
        return every
    drawn = random.Random(SEED).sample(range(len(every)), -(-len(every) // share))
    return [every[i] for i in sorted(drawn)]


def examples(number: int) -> int:
    """Return the number of examples to draw for a property that asks for `number`."""
    return number if is_thorough() else min(number, max(LEAST_EXAMPLES, number // SHARE))

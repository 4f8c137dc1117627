"""Decides which of several arms go on to the next round, and when the best one is known.

In: rows of one round, whose arms ran interleaved in one process. Out: labels and decisions. Pure.

Successive halving: every arm runs once; the better half goes on. The last FINALISTS and the base run FEWEST_REPEATS
times or more. The choice is decided when the upper limit of the interval leaves no other arm more than MARGIN faster.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from enum import Enum

from launchopt.analysis.conclusions import Factor, factors_of
from launchopt.recording.results import Row
from launchopt.statistics.interval import FEWEST_REPEATS
from runner.advise.question import Limit

FINALISTS = 3
MARGIN = 0.05
Arms = Mapping[str, Sequence[Row]]  # rows of each arm, of one round


class Decision(Enum):
    """How sure the best arm is."""

    decided = "no other stack of the last round can be more than 5% faster"
    open = "others may be over 5% faster: undecided"
    alone = "no other stack of the last round keeps the limit"
    left_out = "others came as far and had no time for repeats: undecided"
    unknown = "too few repeats for an interval: undecided"


def by_arm(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each arm that ran; none of an arm with a failed or wrong repeat."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["mode"]), []).append(row)
    return {
        mode: each for mode, each in found.items() if all(row["status"] == "ok" and row["verified"] for row in each)
    }


def wall_ms(rows: Sequence[Row]) -> float:
    """Return the median wall time."""
    return float(statistics.median(row["wall_ms"] for row in rows))


def ranked(arms: Arms, limit: Limit | None, layers: int | None) -> list[str]:
    """Return the labels, the best first: those within the limit by wall time, then the others by what is limited."""

    def key(label: str) -> tuple[float, float]:
        over = 0.0 if limit is None else limit.ms(arms[label], layers)
        return (0.0 if limit is None or over <= limit.most_ms else over, wall_ms(arms[label]))

    return sorted(arms, key=key)


def survivors(order: Sequence[str]) -> list[str]:
    """Return the better half, and at least FINALISTS. order: the best first."""
    return list(order[: max(FINALISTS, math.ceil(len(order) / 2))])


def decision(arms: Arms, best: str, eligible: Sequence[str]) -> Decision:
    """Return whether `best` is known to be within MARGIN of the fastest of the `eligible` arms.

    eligible: those that keep the limit, or all if none does.
    """
    rivals = [label for label in eligible if label != best]
    if any(len(arms[label]) < FEWEST_REPEATS for label in (best, *rivals)):
        return Decision.unknown
    if not rivals and len(arms) > 1:
        return Decision.alone
    highs = [one.high for label in rivals for one in [factor_of(arms, best, label)] if one is not None]
    if len(highs) < len(rivals) or None in highs:
        return Decision.unknown
    return Decision.decided if all(high <= 1 + MARGIN for high in highs if high is not None) else Decision.open


def factor_of(arms: Arms, base: str, label: str) -> Factor | None:
    """Return how many times as fast as `base` an arm is; None if the two cannot be compared.

    Commands of a model with experts have no order (ordering=none): an arm that keeps one is compared like the others.
    """
    rows = [*arms[base], *arms[label]]
    if any(row["ordering"] == "none" for row in rows):
        rows = [row | {"ordering": "none"} for row in rows]
    found = factors_of(rows, [base, label])
    return found[0] if found else None

"""The batching of the advised stack: when a batch is flushed.

Jobs of a sweep do not take turns, so another batching than the default is advised only if two sweeps show a gain of
over MARGIN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from launchopt.recording.results import Row
from runner.advise.halving import MARGIN, wall_ms
from runner.advise.question import TIMEOUT_US, Question
from runner.advise.trials import Trials

REPEATS = 3


@dataclass(frozen=True, slots=True)
class Batching:
    """When a batch is flushed. gain: time with the default / time with this. tried: number of settings that ran.

    kept_ms: of another batching than the default, what is limited: it is within the limit. None without a limit.
    """

    max_batch: int
    timeout_us: float
    tried: int = 0
    gain: float = 1.0
    kept_ms: float | None = None


class Grid(NamedTuple):
    """The settings of a sweep of batching."""

    sizes: Sequence[int]
    timeouts: Sequence[float]

    @property
    def jobs(self) -> int:
        """Number of combinations."""
        return len(self.sizes) * len(self.timeouts)


def batching_of(question: Question, best: str, layers: int | None, trials: Trials) -> Batching:
    """Return the batching to set for the best stack: the default, unless another one that keeps the limit gains.

    Without time for the whole sweep, only other sizes are tried. A gain counts only if a second
    sweep, in which that batching runs before the default, shows it again.
    """
    most, default_us = _default(question)
    sizes = sorted({most, max(1, most // 2), max(1, most // 4)}, reverse=True)
    timeouts = sorted({TIMEOUT_US if question.requests else 0.0, default_us})
    jobs = max(0, int(trials.left_s / trials.job_s(REPEATS)))
    if jobs < len(sizes) * len(timeouts):
        timeouts = [default_us]
        sizes = sizes[:jobs]
    grid = Grid(sizes, timeouts)
    if grid.jobs < 2:
        return Batching(most, default_us)
    found = _swept(question, best, grid, layers, trials)
    if (found.max_batch, found.timeout_us) == (most, default_us):
        return found
    again = Grid([*dict.fromkeys((found.max_batch, most))], [*dict.fromkeys((found.timeout_us, default_us))])
    if again.jobs * trials.job_s(REPEATS) > trials.left_s:
        return Batching(most, default_us, found.tried)
    second = _swept(question, best, again, layers, trials)
    if (second.max_batch, second.timeout_us) != (found.max_batch, found.timeout_us):
        return Batching(most, default_us, found.tried)
    return replace(found, gain=min(found.gain, second.gain))


def default_batching(question: Question) -> Batching:
    """Return the batching of all other trials."""
    return Batching(*_default(question))


def _default(question: Question) -> tuple[int, float]:
    """Return the batch size and the timeout of all other trials."""
    settings = question.settings
    return int(str(settings["batching.max_batch"])), float(str(settings["batching.timeout_us"]))


def _swept(question: Question, best: str, grid: Grid, layers: int | None, trials: Trials) -> Batching:
    """Return the best batching of one sweep: the default, unless another one that keeps the limit gains."""
    default = _default(question)
    axes: dict[str, Sequence[object]] = {"batching.max_batch": grid.sizes, "batching.timeout_us": grid.timeouts}
    rows: dict[tuple[int, float], list[Row]] = {}
    for row in trials.sweep(question, best, axes, REPEATS):
        if row["status"] == "ok" and row["verified"]:
            rows.setdefault((int(row["max_batch"]), float(row["timeout_us"])), []).append(row)
    own = rows.get(default)
    limit = question.limit
    able = [key for key, each in rows.items() if limit is None or limit.ms(each, layers) <= limit.most_ms]
    if own is None or not able:
        return Batching(*default, len(rows))
    first = min(able, key=lambda key: wall_ms(rows[key]))
    gain = wall_ms(own) / wall_ms(rows[first])
    if gain <= 1 + MARGIN and default in able:
        return Batching(*default, len(rows))
    return Batching(*first, len(rows), gain, None if limit is None else limit.ms(rows[first], layers))

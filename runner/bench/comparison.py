"""Two results of `launchopt bench`, figure by figure.

In: their folders. Out: a table of the figures that both have, and a line for each that only one has.

A figure is its part, its case and its unit. The interval of a factor rests on the spread between processes, so it needs
FEWEST_PROCESSES a side, and FEWEST_REPEATS samples. Otherwise the range over all pairs of samples stands in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from launchopt.analysis.tables.columns import NOTHING
from launchopt.errors import ConfigError, DataError
from launchopt.reading.parquet import NUMBER_MIN
from launchopt.recording.manifest import device_name, usable_manifest
from launchopt.recording.results import Row
from launchopt.statistics.interval import FEWEST_REPEATS
from launchopt.statistics.processes import FEWEST_PROCESSES, separate
from runner.bench.figures import groups, quantity, read
from runner.screen.fitted import FittedTable, Heading
from runner.screen.pager import console

INTERVALS = (
    f"In []: the 95% interval, from {FEWEST_PROCESSES} processes and {FEWEST_REPEATS} samples a side on; "
    "in (): the range over all pairs of samples."
)
HEADINGS = ("part", "what", "old", "new", "better by")

_Key = tuple[str, str, str]


def compare(old_folder: Path, new_folder: Path) -> None:
    """Print the figures that both results have. ConfigError: of two machines. DataError: there is no such figure."""
    old, new = (by_key(folder) for folder in (old_folder, new_folder))
    manifests = [usable_manifest(folder) or {} for folder in (old_folder, new_folder)]
    machines = list(map(device_name, manifests))
    if machines[0] != machines[1]:
        raise ConfigError("--compare", str(new_folder), f"measured on {machines[1]}, the other on {machines[0]}")
    both = [key for key in new if key in old]
    if not both:
        raise DataError(new_folder, None, f"has no figure that {old_folder} has, too")
    rows = [_cells(key, old[key], new[key]) for key in both]
    title = f"{old_folder} -> {new_folder}, {machines[0]}. {INTERVALS}"
    console().print(FittedTable([Heading(each, is_text=True) for each in HEADINGS], rows, title))
    for side, manifest in zip(("OLD", "NEW"), manifests, strict=True):
        if (status := manifest.get("status")) not in (None, "ok"):
            _say(f"{side} was not measured to its end (status: {status})")
    for side, own, other in (("OLD", old, new), ("NEW", new, old)):
        for line in _alone(own, other):
            _say(f"only in {side}: {line}")


def by_key(folder: Path) -> dict[_Key, Row]:
    """Return the rows of a result by part, case and unit."""
    return {(row["suite"], row["case"], row["unit"]): row for row in read(folder)}


def _cells(key: _Key, before: Row, after: Row) -> tuple[str, ...]:
    above, below = (after, before) if after["higher_is_better"] else (before, after)
    has_factor = min(above["samples"] + below["samples"]) >= NUMBER_MIN
    ratio = str(separate(groups(above), groups(below)).interval) if has_factor else NOTHING
    return (*key[:2], quantity(before["median"]), quantity(after["median"]), ratio)


def _alone(own: dict[_Key, Row], other: dict[_Key, Row]) -> Iterator[str]:
    for suite, case, unit in own:
        if (suite, case, unit) not in other:
            yield f"{suite}: {case}, {unit}"


def _say(line: str) -> None:
    console().print(line, soft_wrap=True, markup=False)

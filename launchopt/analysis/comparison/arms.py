"""Pair the arms of one set of runs with those of another.

An arm is one mode in one configuration; it has several repeats. In: two `Side`s, each with the rows and the manifests
of its runs. Out: pairs of arms that did the same work in the same mode and configuration. If no two arms did the same
work, the most similar ones are paired. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from launchopt.analysis.comparison.likeness import WORK, work_of
from launchopt.analysis.stream_rows import batching, stream_title
from launchopt.errors import ConfigError, choices, explained, nearest
from launchopt.recording.manifest import Manifest
from launchopt.recording.results import Row
from launchopt.stack import parts_of

_CONFIGURATION = ("max_batch", "timeout_us")


@dataclass(frozen=True, slots=True)
class Run:
    """The rows and the manifest of one run.

    place: folder of the run within its side. identity: name of the run, unique over both sides.
    """

    place: str
    identity: str
    rows: list[Row]
    manifest: Manifest | None


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison, A or B: all runs below a folder. With `mode` only that mode counts.

    name: what the user typed, FOLDER or FOLDER:MODE.
    """

    name: str
    mode: str | None
    runs: list[Run]

    @property
    def folder(self) -> str:
        """The name without the mode behind it."""
        return self.name if self.mode is None else self.name.removesuffix(f":{self.mode}")

    @property
    def modes(self) -> list[str]:
        """All modes of the runs, also those that do not count."""
        return sorted({str(row["mode"]) for run in self.runs for row in run.rows})


@dataclass(frozen=True, slots=True)
class Arm:
    """The repeats of one mode in one configuration in one run: `rows` has a row of the summary for each."""

    run: Run
    rows: list[Row]

    def __getitem__(self, column: str) -> Any:
        """Return a column that all repeats share, such as `mode`."""
        return self.rows[0][column]

    @property
    def label(self) -> str:
        """Mode and configuration: `batched, max_batch 64, timeout 150 us`."""
        return ", ".join([str(self["mode"]), *batching(self.rows[0])])

    @property
    def name(self) -> str:
        """Run and label: `decode/0: batched, max_batch 64, timeout 150 us`."""
        return f"{self['run_id']}: {self.label}"

    @property
    def throttled(self) -> int | None:
        """Number of repeats during which the GPU throttled; None if no repeat read the GPU's clocks."""
        readings = [row["throttled"] for row in self.rows if row["throttled"] is not None]
        return sum(readings) if readings else None


@dataclass(slots=True)
class Matching:
    """The pairs of arms, and the arms that have none.

    ambiguous: a text for each arm that several arms of the other side match. alone: a text for each without a match.
    """

    matches: list[tuple[Arm, Arm]]
    ambiguous: list[str]
    alone: list[str]
    unlike: bool = False  # True: no two arms did the same work, and `matches` has the most similar ones


def arms_of(side: Side, key: str) -> list[Arm]:
    """Return the arms of one side. Raises ConfigError, which names the setting `key`, if its mode did not run."""
    arms: list[Arm] = []
    for run in side.runs:
        asked = None if side.mode is None else parts_of(side.mode)
        chosen = [row for row in run.rows if asked is None or asked == parts_of(str(row["mode"]))]
        arms += [Arm(run, sorted(rows, key=lambda row: int(row["repeat"]))) for rows in _by_columns(chosen)]
    if not arms:
        why = "there are no repeats"
        if side.modes:
            near = [f"{side.folder}:{each}" for each in nearest(str(side.mode), side.modes)]
            why = explained(f"no repeats of {side.mode} there, only of {choices(side.modes)}", "", near)
        raise ConfigError(key, side.name, why)
    return arms


def matched(a: Sequence[Arm], b: Sequence[Arm], *, any_mode: bool) -> Matching:
    """Pair arms of the same work, mode and configuration, then the other arms of the same work and mode.

    any_mode: modes may differ. If no two arms did the same work, each arm is paired with the most similar one. The
    caller decides whether to refuse these pairs.
    """
    found = Matching([], [], [])
    ours, theirs = list(a), list(b)
    mode = () if any_mode else ("mode",)
    for names in ((*WORK, *_CONFIGURATION, *mode), (*WORK, *mode)):
        for some, others in _common(ours, theirs, names):
            _pair_up(some, others, found)
            done = {id(arm) for arm in (*some, *others)}
            ours = [arm for arm in ours if id(arm) not in done]
            theirs = [arm for arm in theirs if id(arm) not in done]
    if not found.matches and not found.ambiguous:
        found.matches, found.unlike = list(_nearest(ours, theirs, any_mode)), True
        return found
    found.alone = [
        f"only in {side}: {stream_title(arm.rows[0])}: {arm.label}"
        for side, left in (("A", ours), ("B", theirs))
        for arm in left
    ]
    return found


def _by_columns(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(work_of(row, name) for name in (*WORK, *_CONFIGURATION, "mode")), []).append(row)
    return list(groups.values())


def _common(ours: Sequence[Arm], theirs: Sequence[Arm], names: Sequence[str]) -> Iterator[tuple[list[Arm], list[Arm]]]:
    """Yield groups of arms that agree in the columns `names`: the arms of one side and those of the other."""
    groups: dict[tuple[object, ...], tuple[list[Arm], list[Arm]]] = {}
    for which, arms in enumerate((ours, theirs)):
        for arm in arms:
            groups.setdefault(tuple(work_of(arm.rows[0], name) for name in names), ([], []))[which].append(arm)
    yield from [group for group in groups.values() if all(group)]


def _pair_up(some: Sequence[Arm], others: Sequence[Arm], found: Matching) -> None:
    """Add pairs to `found`: one arm with one arm; if there are several, those of the same folder within their sides."""
    if len(some) == len(others) == 1:
        found.matches.append((some[0], others[0]))
        return
    pairs = [(one, other) for one in some for other in others if one.run.place == other.run.place]
    if len({id(arm) for pair in pairs for arm in pair}) < 2 * len(pairs) or not pairs:
        title = f"{stream_title(some[0].rows[0])}: {some[0].label}"
        found.ambiguous.append(
            f"{title}: {len(some)} of these in A, {len(others)} in B: name the folder of one of each"
        )
        return
    found.matches += pairs


def _nearest(ours: Sequence[Arm], theirs: Sequence[Arm], any_mode: bool) -> Iterator[tuple[Arm, Arm]]:
    pairs = [(one, other) for one in ours for other in theirs if any_mode or one["mode"] == other["mode"]]
    taken: set[int] = set()
    for one, other in sorted(pairs, key=lambda pair: _differences(*pair)):
        if not {id(one), id(other)} & taken:
            taken |= {id(one), id(other)}
            yield one, other


def _differences(one: Arm, other: Arm) -> int:
    """Return the number of columns of WORK in which two arms differ."""
    return sum(work_of(one.rows[0], name) != work_of(other.rows[0], name) for name in WORK)

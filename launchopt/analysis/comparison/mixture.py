"""Refuse runs in one dataset that must not be compared, although their columns say that they are alike.

    mixture = Mixture()
    for run in runs(places, "summary", KEY_COLUMNS):
        if mixture.takes(run.folder, run.rows, run.manifest):
            ...                                      # False: a copy of an earlier run

Two runs are alike if they agree in the columns of the same work (`likeness.WORK`), whether or not they were traced.
What `launchopt compare` refuses for such runs is refused here: another machine, another GPU driver or CUDA library,
other settings of the work, such as the seed, and traced beside untraced runs. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from launchopt.analysis.comparison.likeness import (
    WORK,
    WORK_SETTINGS,
    differing,
    other_machine,
    unlike_settings,
    work_of,
)
from launchopt.errors import DataError
from launchopt.recording.manifest import Manifest
from launchopt.recording.results import Row

_LIKE = tuple(name for name in WORK if name != "traced")
KEY_COLUMNS = tuple(dict.fromkeys([*WORK, "independent", "run_id", "mode", "repeat", "wall_ms"]))


class _First(NamedTuple):
    """The first run with some work."""

    folder: str
    traced: bool | None
    manifest: Manifest | None


class Mixture:
    """The runs of a dataset so far. force: take all of them, except copies."""

    def __init__(self, *, force: bool = False) -> None:
        self._force = force
        self._first: dict[tuple[object, ...], _First] = {}
        self._seen: dict[tuple[object, ...], tuple[str, int]] = {}  # run -> its folder, and a hash of its rows
        self.runs = self.copies = 0

    def takes(self, folder: str, rows: Sequence[Row], manifest: Manifest | None) -> bool:
        """Return whether to take a run: False for a copy. Raise DataError if it must not be mixed with an earlier one.

        rows: of its summary, with KEY_COLUMNS; none: nothing says what it ran.
        """
        if self._is_copy(folder, rows, manifest):
            self.copies += 1
            return False
        if not self._force:
            if not rows:
                raise _refused(folder, ["has no summary.parquet that says what ran"])
            for row in {tuple(work_of(row, name) for name in (*_LIKE, "traced")): row for row in rows}.values():
                self._check(folder, row, manifest)
        self.runs += 1
        return True

    def _is_copy(self, folder: str, rows: Sequence[Row], manifest: Manifest | None) -> bool:
        started = (manifest or {}).get("started_utc")
        if not rows or not started:
            return False
        content = hash(tuple((row["mode"], row["repeat"], row["wall_ms"]) for row in rows))
        earlier, known = self._seen.setdefault((rows[0]["run_id"], started), (folder, content))
        if earlier != folder and known != content and not self._force:
            raise _refused(folder, [f"other rows of the run in {earlier}"])
        return earlier != folder and known == content

    def _check(self, folder: str, row: Row, manifest: Manifest | None) -> None:
        work = tuple(work_of(row, name) for name in _LIKE)
        first = self._first.get(work)
        if first is None:
            self._first[work] = _First(folder, row["traced"], _kept(manifest))
            return
        found = [] if first.folder == folder else other_machine(first.manifest, manifest)
        if first.manifest is not None and (kept := _kept(manifest)) is not None:
            found += unlike_settings(first.manifest, kept)
        if first.traced != row["traced"]:
            found.append(differing("traced", first.traced, row["traced"]))
        if found:
            raise _refused(folder, found, first.folder)


def _kept(manifest: Manifest | None) -> Manifest | None:
    """Return the parts of a manifest in which runs of one work must agree."""
    if manifest is None:
        return None
    config = manifest.get("config") or {}
    return {**manifest, "config": {key: config[key] for key in WORK_SETTINGS if key in config}}


def _refused(folder: str, why: Sequence[str], first: str | None = None) -> DataError:
    beside = "" if first is None else f"must not be mixed with {first}, whose work is the same (A: there, B: here): "
    return DataError(folder, None, f"{beside}{'; '.join(why)} (--force merges them all the same)")

"""All data of a report, read once.

In: folders with runs. Out: a `Source`: rows with their analysis, histograms by line, manifests, and the recordings of
launches, commands and kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launchopt.analysis.frontier.points import HISTOGRAMS_USED, Frontier, Histograms, build_frontiers
from launchopt.analysis.stream_rows import without_copies
from launchopt.analysis.tables.rows import Table, build_tables, own_bases
from launchopt.analysis.tables.strategies import Refusals, StrategyTable, build_strategies
from launchopt.analysis.verdict.calibration import Calibration, find_calibration
from launchopt.analysis.verdict.diagnosis import Diagnosis, diagnose
from launchopt.analysis.waterfall.steps import Waterfall, build_waterfalls, orders_of
from launchopt.recording import results
from launchopt.recording.manifest import Manifest, usable_manifest
from launchopt.recording.results import Row
from launchopt.recording.run_names import named_apart, names_in

RECORDINGS = ("launches", "commands", "kernels")


@dataclass(frozen=True, slots=True)
class Run:
    """A folder of a run: its manifest and its recordings."""

    folder: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """The run's name in its rows; of a refused job, the name of its folder."""
        return str(self.manifest.get("run_id") or self.folder.name)

    @property
    def device(self) -> str:
        """Name of the device in the manifest; empty if the run ended before it had one."""
        about = self.manifest.get("environment") or {}
        return str((about.get("device") or {}).get("name") or "")

    def recording(self, what: str) -> Path | None:
        """Return the file of a recording; None if there is none."""
        path = self.folder / f"{what}.parquet"
        return path if path.is_file() else None


@dataclass(frozen=True, slots=True)
class Source:
    """All rows and manifests, with their analysis."""

    folders: list[Path]
    rows: list[Row]
    tables: list[Table]
    strategies: list[StrategyTable]
    frontiers: list[Frontier]
    histograms: Histograms
    runs: list[Run]
    diagnoses: list[Diagnosis]
    calibrations: list[Calibration]
    waterfalls: list[Waterfall]

    def run(self, run_id: str) -> Run | None:
        """Return the run called `run_id`; None if there is none, or several."""
        found = [run for run in self.runs if run.name == run_id]
        return found[0] if len(found) == 1 else None

    def model_layers(self, table: Table) -> int | None:
        """Return the layers of the model of a table; None without a model, or if its runs differ."""
        ids = {line["run_id"] for line in table.lines}
        found = {
            ((run.manifest.get("config") or {}).get("model") or {}).get("layers")
            for run in self.runs
            if run.name in ids
        }
        return found.pop() if len(found) == 1 else None


def read_source(folders: Sequence[Path], slo_p99_us: float | None = None) -> Source:
    """Read and analyse `folders`; DataError for a file that cannot be read."""
    rows = without_copies(results.read_summaries(folders))
    histogram_rows = results.read_histograms(folders, HISTOGRAMS_USED)
    runs = _runs(folders)
    refusals = _refusals(runs)
    own = own_bases(run.manifest for run in runs)
    calibrations = _calibrations(runs, folders)
    return Source(
        list(folders),
        rows,
        build_tables(rows, own),
        build_strategies(rows, refusals, own),
        build_frontiers(rows, histogram_rows, slo_p99_us),
        Histograms(rows, histogram_rows),
        runs,
        _diagnoses(rows, runs, own, calibrations),
        list(calibrations.values()),
        build_waterfalls(rows, orders_of(run.manifest for run in runs), refusals),
    )


def _runs(folders: Sequence[Path]) -> list[Run]:
    found: dict[Path, tuple[Path, Manifest]] = {}
    for folder in folders:
        within = folder.parent.glob if folder.is_file() else folder.rglob
        for path in sorted(within("manifest.json"), key=_by_number):
            if (manifest := usable_manifest(path.parent)) is not None:
                found.setdefault(path.parent.resolve(), (path.parent, manifest))
    named = named_apart(found.values(), names_in(folders))
    return [Run(folder, manifest) for (folder, _), manifest in zip(found.values(), named, strict=True)]


def _refusals(runs: Iterable[Run]) -> Refusals:
    return {run.name: run.manifest.get("refused") or {} for run in runs}


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts the numbered jobs of a sweep: 2 before 10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in path.parts]


def _calibrations(runs: Iterable[Run], folders: Sequence[Path]) -> dict[str, Calibration]:
    places = [folder if folder.is_dir() else folder.parent for folder in folders]
    found = {name: find_calibration(name, places) for name in dict.fromkeys(run.device for run in runs) if name}
    return {name: calibration for name, calibration in found.items() if calibration is not None}


def _diagnoses(
    rows: Iterable[Row],
    runs: Sequence[Run],
    own: Mapping[str, Sequence[str]],
    calibrations: Mapping[str, Calibration],
) -> list[Diagnosis]:
    """Return the diagnoses device by device, each with its own calibration."""
    refusals = _refusals(runs)
    device_of = {run.name: run.device for run in runs}
    by_device: dict[str, list[Row]] = {}
    for row in rows:
        by_device.setdefault(row["gpu"] or device_of.get(row["run_id"], ""), []).append(row)
    return [
        diagnosis
        for device, members in by_device.items()
        for diagnosis in diagnose(members, refusals, calibrations.get(device), own)
    ]

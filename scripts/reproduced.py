"""Says how many of the reference results another measurement of them reproduces.

    python scripts/reference.py --output outputs/new     on a machine with the GPU of the reference results
    python scripts/reproduced.py outputs/new             how many cells of outputs/reference are the same
    python scripts/reproduced.py outputs/new/gpu/qkv outputs/reference/gpu/qkv

A cell is the time of a mode in a work (wall time, or the median latency of an open loop that kept up), or a figure of a
benchmark. It is reproduced if the 95% interval of the factor between the two measurements includes 1. The interval
rests on the spread between processes. From three processes a side on it is theirs, below that the one that `launchopt
doctor` measured for gemv_micro: a calibration.json in either folder, of the same device and number of cores. A cell
without an interval is not judged, and neither is one of another machine.

Exit code 0: at least 90% of the judged cells are reproduced. 1: fewer. 2: bad input, or nothing to judge.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from launchopt.analysis.comparison.arms import Arm, arms_of, matched
from launchopt.analysis.metric import metric_of
from launchopt.analysis.stream_rows import stream_title
from launchopt.analysis.tables.rows import by_process, problem_of
from launchopt.analysis.verdict.calibration import Calibration, read_calibration
from launchopt.errors import ConfigError, DataError
from launchopt.files import absent
from launchopt.recording.manifest import Manifest, device_name, read_manifest
from launchopt.statistics.processes import Groups, ProcessNoise, separate
from launchopt.statistics.shift import Factor
from runner.bench import figures
from runner.compare import read_side
from runner.reading import CommandParser, exit_code

REFERENCE = Path(__file__).parents[1] / "outputs/reference"
GOAL = 0.9
CALIBRATION, MANIFEST = "calibration.json", "manifest.json"


class Cell(NamedTuple):
    """One figure of both measurements: its place, the factor of new over old, or why there is none."""

    place: str
    factor: Factor | None
    why: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether there is an interval."""
        return self.factor is not None and self.factor.interval.low is not None

    @property
    def is_reproduced(self) -> bool:
        """Whether the interval includes 1."""
        found = self.factor.interval if self.factor else None
        return bool(found and found.low is not None and found.high is not None and found.low <= 1 <= found.high)


def cells(old: Path, new: Path) -> Iterator[Cell]:
    """Yield the cells of all runs and benchmarks that both folders have, in the order of their places."""
    noises = [*_calibrations(new), *_calibrations(old)]
    for path in sorted(new.rglob(MANIFEST)):
        place = path.parent.relative_to(new)
        if not (old / place / MANIFEST).is_file():
            continue
        ours, theirs = read_manifest(old / place), read_manifest(path.parent)
        if (machines := (_machine(ours), _machine(theirs)))[0] != machines[1]:
            names = ", ".join(f"{device} with {cores} cores" for device, cores in machines)
            yield Cell(str(place), None, f"another machine: {names}")
        elif (path.parent / figures.FILE).is_file():
            yield from _of_bench(old / place, path.parent, str(place), _noise(noises, ours))
        elif (path.parent / "summary.parquet").is_file():
            yield from _of_run(old / place, path.parent, str(place), _noise(noises, ours))


def _calibrations(folder: Path) -> list[Calibration]:
    return [read_calibration(path) for path in sorted(folder.rglob(CALIBRATION))]


def _machine(manifest: Manifest) -> tuple[str, object]:
    """Return the device and the number of cores. The manifest of a run names its device in the environment."""
    about = manifest.get("environment") or {}
    return device_name({"device": manifest.get("device") or about.get("device")}), about.get("cores")


def _noise(calibrations: Sequence[Calibration], manifest: Manifest) -> ProcessNoise | None:
    """Return the noise between processes of the machine of a run; None if no calibration has it."""
    machine = _machine(manifest)
    fitting = (each for each in calibrations if (each.device["name"], each.environment.get("cores")) == machine)
    return next((noise for each in fitting if (noise := each.noise_between_processes()) is not None), None)


def _of_run(old: Path, new: Path, place: str, noise: ProcessNoise | None) -> Iterator[Cell]:
    ours, theirs = (arms_of(read_side(str(folder), key), key) for folder, key in ((old, "OLD"), (new, "NEW")))
    found = matched(*([arm for arm in arms if not arm["traced"]] for arms in (ours, theirs)), any_mode=False)
    for one, other in [] if found.unlike else found.matches:
        name = f"{place}: {stream_title(one.rows[0])}: {one.label}"
        if problem := problem_of(one.rows) or problem_of(other.rows):
            yield Cell(name, None, problem)
            continue
        metric = metric_of([*one.rows, *other.rows])
        yield Cell(f"{name}, {metric}", separate(_groups(other, metric), _groups(one, metric), noise))


def _groups(arm: Arm, metric: str) -> Groups:
    return by_process(arm.rows, metric)


def _of_bench(old: Path, new: Path, place: str, noise: ProcessNoise | None) -> Iterator[Cell]:
    ours = {(row["suite"], row["case"]): row["samples"] for row in figures.read(old)}
    for row in figures.read(new):
        before, after = ours.get((row["suite"], row["case"])), row["samples"]
        if before is not None and min(*before, *after) > 0:
            yield Cell(f"{place}: {row['case']}", separate([after], [before], noise))


def _report(found: Sequence[Cell]) -> bool:
    """Print the cells that are not the same, and how many are; return whether enough are."""
    judged = [cell for cell in found if cell.is_judged]
    if not judged:
        reasons = {cell.why for cell in found if cell.why} or {"no calibration.json, and fewer than 3 processes"}
        raise DataError("NEW and OLD", None, f"nothing to judge: {'; '.join(sorted(reasons))}")
    same = [cell for cell in judged if cell.is_reproduced]
    for cell in judged:
        if not cell.is_reproduced and cell.factor is not None:
            print(f"differs: {cell.place}: {cell.factor.interval} of the old value")
    for cell in found:
        if not cell.is_judged:
            print(f"not judged: {cell.place}: {cell.why or 'no interval between processes'}")
    share = len(same) / len(judged)
    print(f"{len(same)} of {len(judged)} judged cells ({share:.1%}) are reproduced; wanted: {GOAL:.0%}")
    return share >= GOAL


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    parser = CommandParser("reproduced", __doc__)
    parser.add_argument("new", type=Path, metavar="NEW", help="results that were measured now")
    parser.add_argument(
        "old", nargs="?", type=Path, metavar="OLD", default=REFERENCE, help="default: outputs/reference"
    )
    options = parser.parsed(argv)

    def work() -> int:
        for key, folder in (("NEW", options.new), ("OLD", options.old)):
            if not folder.is_dir():
                raise ConfigError(key, str(folder), absent(folder))
        return 0 if _report([*cells(options.old, options.new)]) else 1

    return exit_code(work)


if __name__ == "__main__":
    raise SystemExit(main())

"""Says how many of the reference results another measurement of them reproduces.

    python scripts/reference.py --output outputs/new     on a machine with the GPU of the reference results
    python scripts/reproduced.py outputs/new             how many cells of outputs/reference are the same
    python scripts/reproduced.py outputs/new/gpu/qkv outputs/reference/gpu/qkv

A cell is the time of a mode in a work (wall time, or the median latency of an open loop that kept up), or a figure of a
benchmark. It is reproduced if the 95% interval of the factor between the two measurements includes 1. The interval
rests on the spread between processes. From three processes and five values a side on it is theirs. Below that, for a
wall time, it is the one that `launchopt doctor` measured for gemv_micro: a calibration.json in either folder, of the
same device and number of cores. No latency has that one, and no figure of a benchmark: their noise is not that of wall
times.

Not judged, and named: a cell without an interval, one on another or an unknown machine, also one on a host with more
cores of which it had a share, and the same measurement on both sides. An interval that includes 1 and reaches more than
25% up or down is not judged either: it hides a change of that size; nor one without a width, as of a clock's ticks that
are the same in all processes. A loop that kept up on one side and was overloaded
on the other differs. The last line says how large a change the intervals hide.

Exit code 0: at least 90% of the judged cells are reproduced. 1: fewer. 2: bad input, or nothing to judge.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from launchopt.analysis.comparison.arms import Arm, arms_of, matched
from launchopt.analysis.metric import WALL, has_kept_up, metric_of
from launchopt.analysis.stream_rows import stream_title
from launchopt.analysis.tables.rows import by_process, problem_of
from launchopt.analysis.verdict.calibration import Calibration, read_calibration
from launchopt.errors import ConfigError, DataError
from launchopt.files import absent
from launchopt.reading.parquet import NUMBER_MIN
from launchopt.recording.manifest import LEFT_OUT, PROCESSOR, Manifest, device_name, fitted_manifest, value_at
from launchopt.statistics.processes import ProcessNoise, separate
from launchopt.statistics.shift import Factor
from runner.bench import figures
from runner.bench.comparison import by_key
from runner.compare import read_side
from runner.reading import CommandParser, exit_code
from scripts.reference_kept import require_readable

REFERENCE = Path(__file__).parents[1] / "outputs/reference"
GOAL = 0.9
WIDEST = 1.25  # factor up or down from the middle of an interval that can show that a cell is the same
CALIBRATION, MANIFEST, SUMMARY = "calibration.json", "manifest.json", "summary.parquet"
NO_FACTOR = "not all of its values are above 0"  # nor large enough to be measured ones
MOST_REASONS = 3
CHANGED = {"part", "runs", LEFT_OUT}  # keys of a manifest that reference.py and reference_kept.py write


class Cell(NamedTuple):
    """One figure of both measurements: its place, the factor of new over old, or why there is none."""

    place: str
    factor: Factor | None
    why: str = ""
    differs: bool = False  # without a factor

    @property
    def reach(self) -> float | None:
        """How far the interval reaches up and down from its middle, as a factor; None without an interval."""
        found = self.factor.interval if self.factor else None
        return None if found is None or found.low is None or found.high is None else math.sqrt(found.high / found.low)

    @property
    def is_judged(self) -> bool:
        """Whether it is known to differ, or has an interval narrow enough to show that it is the same."""
        if self.differs or self.reach is None:
            return self.differs
        return self.reach > 1 and not (self.includes_one and self.reach > WIDEST)

    @property
    def includes_one(self) -> bool:
        """Whether there is an interval that includes 1."""
        found = self.factor.interval if self.factor else None
        return bool(found and found.low is not None and found.high is not None and found.low <= 1 <= found.high)

    @property
    def about(self) -> str:
        """Why a cell is not judged."""
        if self.why or self.factor is None or self.reach is None:
            return self.why or "no interval between processes"
        found = self.factor.interval
        if self.reach <= 1:
            return "the values of all processes of a side are the same, so they show no spread"
        return f"the interval, {found.low:.2f}x to {found.high:.2f}x, hides a change of {self.reach - 1:.0%}"


def cells(old: Path, new: Path) -> Iterator[Cell]:
    """Yield the cells of all runs and benchmarks that both folders have, in the order of their places."""
    noises = [*_calibrations(new), *_calibrations(old)]
    for path in sorted(new.rglob(MANIFEST)):
        place = path.parent.relative_to(new)
        if not (old / place / MANIFEST).is_file():
            continue
        ours, theirs = fitted_manifest(old / place), fitted_manifest(path.parent)
        for file in (figures.FILE, SUMMARY):
            there = [(folder / file).is_file() for folder in (old / place, path.parent)]
            if any(there) and (why := _unlike(ours, theirs, there, file)):
                yield Cell(str(place), None, why)
            elif all(there) and file == SUMMARY:
                yield from _of_run(old / place, path.parent, str(place), _noise(noises, ours))
            elif all(there):
                yield from _of_bench(old / place, path.parent, str(place))


def _unlike(ours: Manifest, theirs: Manifest, there: Sequence[bool], file: str) -> str:
    """Return why nothing of two results can be compared, or nothing."""
    machines = [_machine(each) for each in (ours, theirs)]
    names = ", ".join(f"{device} with {cores or 'unknown'} cores" for device, cores in dict.fromkeys(machines))
    if machines[0] != machines[1]:
        return f"another machine: {names}"
    hosts = [((each.get("part") or {}).get("before") or {}).get("processor") for each in (ours, theirs)]
    if None not in hosts and hosts[0] != hosts[1]:
        return f"another host: {hosts[0]}, {hosts[1]}"
    kinds = [value_at(each, PROCESSOR) for each in (ours, theirs)]
    if all(kinds) and kinds[0] != kinds[1]:
        return f"another processor: {kinds[0]}; {kinds[1]}"
    if machines[0] == _machine({}) or machines[0][1] is None:
        return f"unknown machine: {names}"
    if not all(there):
        return f"no {file} in {'NEW' if there[0] else 'OLD'}"
    return "the same measurement on both sides" if _is_same(ours, theirs) else ""


def _is_same(ours: Manifest, theirs: Manifest) -> bool:
    """Return whether one measurement is on both sides: a copy, or results that were committed meanwhile."""
    if any("started_utc" in each for each in (ours, theirs)):
        return bool(ours.get("started_utc") == theirs.get("started_utc"))
    first, second = ({key: each[key] for key in each.keys() - CHANGED} for each in (ours, theirs))
    return first == second  # of older versions, which saved no time


def missing(old: Path, new: Path) -> int:
    """Return how many runs and benchmarks only the old folder has."""
    found = (path for name in (figures.FILE, SUMMARY) for path in old.rglob(name))
    return sum(not (new / path.parent.relative_to(old) / MANIFEST).is_file() for path in found)


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
    ours, theirs = (arms_of(read_side(str(folder / SUMMARY), key), key) for folder, key in ((old, "OLD"), (new, "NEW")))
    kept = [[arm for arm in arms if not arm["traced"]] for arms in (ours, theirs)]
    found = matched(*kept, any_mode=False)
    alone = found.alone
    if found.unlike:
        alone = [f"only in {side}: {arm.label}" for side, arms in zip("AB", kept, strict=True) for arm in arms]
    for text in (*found.ambiguous, *alone):
        yield Cell(place, None, text.replace("only in A", "only in OLD").replace("only in B", "only in NEW"))
    for one, other in [] if found.unlike else found.matches:
        yield _of_arm(one, other, f"{place}: {stream_title(one.rows[0])}: {one.label}", noise)


def _of_arm(one: Arm, other: Arm, name: str, noise: ProcessNoise | None) -> Cell:
    if problem := problem_of(one.rows) or problem_of(other.rows):
        return Cell(name, None, problem)
    for kept_up, not_so, side in ((one, other, "OLD"), (other, one, "NEW")):
        if has_kept_up(kept_up.rows) and all(row["overloaded"] for row in not_so.rows):
            return Cell(name, None, f"kept up with its arrivals in {side} alone", differs=True)
    metric = metric_of([*one.rows, *other.rows])
    if not _has_factor([row[metric] for row in (*one.rows, *other.rows)]):
        return Cell(f"{name}, {metric}", None, NO_FACTOR)
    groups = (by_process(arm.rows, metric) for arm in (other, one))
    return Cell(f"{name}, {metric}", separate(*groups, noise if metric == WALL else None))


def _of_bench(old: Path, new: Path, place: str) -> Iterator[Cell]:
    ours, theirs = ({key: figures.groups(row) for key, row in by_key(each).items()} for each in (old, new))
    for key in dict.fromkeys((*ours, *theirs)):
        before, after, name = ours.get(key), theirs.get(key), f"{place}: {key[1]}"
        if before is None or after is None:
            yield Cell(name, None, f"only in {'NEW' if before is None else 'OLD'}")
        elif not _has_factor([sample for group in (*before, *after) for sample in group]):
            yield Cell(name, None, NO_FACTOR)
        else:
            yield Cell(name, separate(after, before))


def _has_factor(values: Sequence[float | None]) -> bool:
    return all(value is not None and NUMBER_MIN <= value < math.inf for value in values)


def _report(found: Sequence[Cell], lacking: int) -> bool:
    """Print the cells that are not the same, and how many are; return whether enough are. lacking: only in OLD."""
    judged = [cell for cell in found if cell.is_judged]
    if not judged:
        reasons = {cell.about for cell in found if cell.why or cell.reach is not None}
        reasons = reasons or {"no calibration.json for wall times, and fewer than 3 processes or 5 values a side"}
        first, more = sorted(reasons)[:MOST_REASONS], len(reasons) - MOST_REASONS
        also = f"; and {more} more reasons" if more > 0 else ""
        raise DataError("NEW and OLD", None, f"nothing to judge: {'; '.join(first)}{also}")
    for cell in judged:
        if not cell.includes_one:
            print(f"differs: {cell.place}: {f'{cell.factor.interval} of the old value' if cell.factor else cell.why}")
    for cell in found:
        if not cell.is_judged:
            print(f"not judged: {cell.place}: {cell.about}")
    if lacking:
        print(f"not judged: {lacking} runs and benchmarks that only OLD has")
    same = [cell.reach for cell in judged if cell.includes_one and cell.reach is not None]
    share = len(same) / len(judged)
    hidden = f"; half of them hide a change of {statistics.median(same) - 1:.1%} or more" if same else ""
    print(f"{len(same)} of {len(judged)} judged cells ({share:.1%}) are reproduced{hidden}; wanted: {GOAL:.0%}")
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
            require_readable(folder)
        return 0 if _report([*cells(options.old, options.new)], missing(options.old, options.new)) else 1

    return exit_code(work)


if __name__ == "__main__":
    raise SystemExit(main())

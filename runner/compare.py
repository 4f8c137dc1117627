"""Compares two runs, or two modes of one run, and says which is faster, or how many repeats would decide.

    launchopt compare RUN:baseline RUN:batched       two modes of one run, pair by pair: the best case
    launchopt compare OLD NEW                        all that occurs in both folders, such as two revisions
    launchopt compare OLD NEW --metric latency_p99_us --effect 5%
    launchopt compare OLD NEW --fail-on slower --fail-on undecided       in CI
    launchopt compare OLD NEW --force                also other machines or other work; every output says so

In: summary.parquet and manifest.json at or below the folders (or a summary.parquet). Out: a block for each stream of
commands, mode and configuration that occurs in both: medians, the factor between the two with its 95% interval, and
FASTER, SLOWER, SAME (up to --effect) or UNDECIDED, with the number of repeats or processes that would decide. Two runs
need at least three processes each (take processes=5), unless the difference exceeds the noise between processes that
`launchopt doctor --processes 8 --save` measured. --json and --markdown write the same to files.

It refuses to compare different work, machines, GPU drivers or CUDA libraries, traced with untraced runs, and throttled
repeats. --force compares these, but never failed or unverified repeats. Revisions and packages may differ; the output
names them.

Exit codes: 0 compared, whatever the verdict; 1 with --fail-on slower if B is SLOWER; 3 with --fail-on undecided if a
verdict is UNDECIDED or an arm has no partner; 2 refused, bad input, or a file left out that cannot be read.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launchopt.errors import ConfigError, DataError, explained
from launchopt.files import absent, is_there, read_json, save_text
from launchopt.messages import print_error
from runner.config.typed.renamed import current_metric
from runner.ending import end
from runner.output_names import STDOUT, file_named
from runner.reading import CommandParser, add_json, exit_code, put_json

if TYPE_CHECKING:
    from rich.console import Console

    from launchopt.analysis.comparison.arms import Run, Side
    from launchopt.analysis.comparison.outcome import Outcome
    from launchopt.statistics.processes import ProcessNoise

UNDECIDED_CODE = 3
_STYLES = {"FASTER": "green", "SLOWER": "red", "SAME": "cyan", "UNDECIDED": "yellow"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    options = _parser().parsed(argv)
    return exit_code(lambda: _compare(options))


def _compare(options: argparse.Namespace) -> int:
    from launchopt.analysis.comparison.text import fields, markdown, missing_runs
    from launchopt.statistics.interval import Verdict
    from runner.screen.pager import console

    effect = share(options.effect)
    outcome = compared(options.a, options.b, current_metric(options.metric), effect, force=options.force)
    if options.json != STDOUT:
        _print(outcome, console())
    put_json(options.json, fields(outcome))
    if options.markdown is not None:
        save_text(options.markdown, markdown(outcome))
    for reason in outcome.refused:
        print_error(reason)
    if outcome.refused:
        return DataError.exit_code
    if "slower" in options.fail_on and any(one.verdict is Verdict.SLOWER for one in outcome.comparisons):
        return 1
    lacking = missing_runs(outcome) if "undecided" in options.fail_on else []
    for line in lacking:
        print_error(line, "undecided")
    return UNDECIDED_CODE if lacking else 0


def compared(a: str, b: str, metric: str | None = None, effect: float = 0.01, *, force: bool = False) -> Outcome:
    """Compare two sides, each a `FOLDER`, a `FOLDER:MODE` or a summary.parquet. effect: the smallest that matters.

    Raises ConfigError and DataError for sides that cannot be read, and for a metric that there is not.
    """
    from launchopt.analysis.comparison.compare import compare

    ours, theirs = read_side(a, "A"), read_side(b, "B")
    noise = _noise([*ours.runs, *theirs.runs])
    return compare(ours, theirs, metric=metric, smallest_effect=effect, force=force, noise=noise)


def _noise(runs: Sequence[Run]) -> ProcessNoise | None:
    """Return the noise between processes of the machine that all runs name; None where no calibration has it."""
    from launchopt.analysis.verdict.calibration import find_calibration

    about = [(run.manifest or {}).get("environment") or {} for run in runs]
    machines = {((each.get("device") or {}).get("name"), each.get("cores")) for each in about}
    name, cores = machines.pop()
    if machines or name is None:
        return None
    found = find_calibration(name)
    return found.noise_between_processes() if found and found.environment.get("cores") == cores else None


def share(text: str) -> float:
    """Return `1%` or `0.01` as 0.01; ConfigError for a share that is not between 0 and 100%."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        meant = [f"--effect {text}%"] if 1 <= value < 100 and not text.endswith("%") else []
        raise ConfigError("--effect", text, explained("not above 0% and below 100%, such as 1% or 0.01", "", meant))
    return value


def read_side(name: str, key: str) -> Side:
    """Return the runs of `FOLDER`, `FOLDER:MODE` or a summary.parquet.

    Raises ConfigError for a missing folder, DataError for one that cannot be read.
    """
    from launchopt.analysis.comparison.arms import Side

    if not name:
        raise ConfigError(key, '""', explained("no name of a folder", "FOLDER or FOLDER:MODE"))
    folder, mode = Path(name), None
    if not is_there(folder) and ":" in name:
        before, _, mode = name.rpartition(":")
        folder = Path(before)
    if not is_there(folder):
        if (twin := _twin(folder)) is not None:
            meant = shlex.quote(str(twin) if mode is None else f"{twin}:{mode}")
            why = f"this job of the sweep has no results: its work is that of job {twin.name}"
            raise ConfigError(key, name, explained(why, "", [meant]))
        raise ConfigError(key, name, absent(folder, "FOLDER or FOLDER:MODE", _sides_near(folder)))
    files = [folder] if folder.is_file() else sorted(folder.rglob("summary.parquet"))
    if not files:
        raise DataError(folder, None, "no summary.parquet here or below")
    root = folder.parent if folder.is_file() else folder
    return Side(name, mode, _usable_runs(files, root))


def _usable_runs(paths: Sequence[Path], root: Path) -> list[Run]:
    """Return the runs whose summary can be used; the others are named. Raise DataError if there is none."""
    from launchopt.reading.unusable import name_unusable

    runs, unusable = [], []
    for path in paths:
        try:
            runs.append(_read_run(path, root))
        except DataError as error:
            unusable.append(error)
    if unusable and not runs:
        raise unusable[0]
    for problem in unusable:
        name_unusable(problem)
    return runs


def _twin(folder: Path) -> Path | None:
    """Return the folder of the job that stands for the one of `folder`; None if it is no job of status `same`."""
    path = folder.parent / "sweep.json"
    try:
        jobs = read_json(path)["jobs"] if path.is_file() else []
        same = {job["folder"]: job["same_as"] for job in jobs if job["status"] == "same"}
        folders = {job["job"]: job["folder"] for job in jobs}
        return folder.parent / folders[same[folder.name]] if folder.name in same else None
    except (OSError, ValueError, TypeError, KeyError):  # not written by a sweep
        return None


def _sides_near(folder: Path) -> list[str]:
    """Return what `FOLDER/MODE`, or a mode alone, may stand for."""
    return [shlex.quote(f"{folder.parent}:{folder.name}")] if (folder.parent / "summary.parquet").is_file() else []


def _read_run(path: Path, root: Path) -> Run:
    from launchopt.analysis.comparison.arms import Run
    from launchopt.recording.manifest import fitted_manifest
    from launchopt.recording.results import read_summaries

    rows = read_summaries([path])
    manifest = fitted_manifest(path.parent) if os.path.lexists(path.parent / "manifest.json") else None
    # Name, start and times identify a run, so a copy of its folder is the same run. Two can begin in one second.
    started = (manifest or {}).get("started_utc")
    times = hash(tuple((row["mode"], row["repeat"], row["wall_ms"]) for row in rows))
    identity = f"{rows[0]['run_id']} {started} {times}" if started and rows else str(path.resolve())
    return Run(str(path.parent.relative_to(root)), identity, rows, manifest)


def _print(outcome: Outcome, to: Console) -> None:
    from launchopt.analysis.comparison.text import LINE_WIDTH, banner, block, summary, written

    width = to.width if to.is_terminal else LINE_WIDTH
    loud = banner(outcome)
    if loud:
        to.print(loud, style="bold red", markup=False, soft_wrap=True)
    to.print(f"B = {outcome.b} against A = {outcome.a}", markup=False, soft_wrap=True)
    for one in outcome.comparisons:
        to.print()
        for label, text in block(one):
            style = _STYLES[one.verdict] if label == "verdict" else "bold red" if label == "FORCED" else None
            to.print(written(label, text, width), style=style, markup=False, soft_wrap=True)
    if len(outcome.comparisons) > 1:
        to.print(f"\n{summary(outcome.comparisons)}", markup=False, soft_wrap=True)
    for text in outcome.alone:
        to.print(f"not compared, {text}", markup=False, soft_wrap=True)


def _parser() -> CommandParser:
    parser = CommandParser("compare", __doc__)
    parser.add_argument("a", metavar="A", help="folder with results, or FOLDER:MODE: what to compare with")
    parser.add_argument("b", metavar="B", help="folder with results, or FOLDER:MODE: what is judged, against A")
    parser.add_argument("--effect", default="1%", metavar="X", help="smallest effect that matters (1%%): less is SAME")
    chosen = "column of the summary (wall_ms; latency_p50_us for an open loop that kept up)"
    parser.add_argument("--metric", metavar="COLUMN", help=chosen)
    parser.add_argument("--force", action="store_true", help="compare what is refused, and say so in every output")
    fail_on = "for CI: exit 1 if B is SLOWER, 3 if a verdict is UNDECIDED; may be given twice"
    parser.add_argument("--fail-on", choices=["slower", "undecided"], action="append", default=[], help=fail_on)
    add_json(parser)
    parser.add_argument("--markdown", type=file_named(".md"), metavar="FILE.md", help="write it for a pull request")
    return parser


if __name__ == "__main__":
    end(main)

"""Says what bounds each mode, what is left to gain, and what to try first, with the evidence.

    launchopt verdict outputs/reference/gpu/strategies                 a verdict per workload stream
    launchopt verdict DIR... --calibration outputs/calibration/nvidia_h200.json
    launchopt verdict DIR... --json verdict.json                      also write it as JSON

In: every summary.parquet and manifest.json at or below the folders, and a calibration (`launchopt doctor --save`). The
default is the newest calibration of the device in outputs/calibration. If there is none, the first launch calls of the
run itself give the cost of a launch, and the output says so. Out: tables, in Markdown if the output is no terminal;
with --json the same as JSON. If GPUs split a model, a table says how long each waited at an all-reduce for the last
one. Exit code 1 if a rate is above a ceiling that the run measured and nothing explains it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from launchopt.errors import DataError
from launchopt.messages import print_error
from runner.ending import end
from runner.output_names import STDOUT
from runner.reading import CommandParser, add_json, exit_code, put_json
from runner.screen.pager import console, drawn

if TYPE_CHECKING:
    from launchopt.analysis.collectives.all_reduces import AllReduces, Repeat
    from launchopt.analysis.skew import GpuSkew
    from launchopt.analysis.verdict.calibration import Calibration
    from launchopt.analysis.verdict.diagnosis import Diagnosis
    from launchopt.recording.results import Row


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    options = _parser().parsed(argv)
    return exit_code(lambda: verdict(options.folders, options.calibration, options.json))


def verdict(folders: Sequence[Path], calibration: Path | None = None, output: Path | None = None) -> int:
    """Print the verdicts on `folders`, and write them as JSON if asked to. Return 1 for an impossible rate.

    Raises DataError for folders, files and calibrations that cannot be read or written.
    """
    from launchopt.analysis.several_gpus import NOT_ASKED, gpu_lines
    from launchopt.analysis.tables.rows import own_bases
    from launchopt.analysis.verdict.diagnosis import diagnose
    from launchopt.recording import results

    rows = results.read_summaries(folders)
    manifests = results.read_manifests(folders)
    refusals = {str(each.get("run_id")): each.get("refused") or {} for each in manifests}
    used = calibration_for(rows, folders, calibration)
    diagnoses = diagnose(rows, refusals, used, own_bases(manifests))
    several, skews = gpu_lines(rows, results.read_gpus(folders)), _skews(folders)
    if output != STDOUT:
        _show(diagnoses)
        print("\n".join([*several, NOT_ASKED] if several else []), end="\n" if several else "")
        _show_skews(rows, skews)
    made = None if used is None else {"made_utc": used.made_utc, "device": used.device}
    found = {"diagnoses": [asdict(one) for one in diagnoses], "several_gpus": several}
    put_json(output, {"calibration": made, **found, "all_reduces": [asdict(one) for one in skews]})
    errors = [f"{one.title}: {error}" for one in diagnoses for error in one.errors]
    for error in errors:
        print_error(error)
    return 1 if errors else 0


def calibration_for(rows: Sequence[Row], folders: Sequence[Path], given: Path | None = None) -> Calibration | None:
    """Return the given calibration, which must be of a device of `rows`, or the newest of one."""
    from launchopt.analysis.verdict.calibration import find_calibration, read_calibration
    from launchopt.analysis.verdict.roofline import is_of

    if given is not None:
        calibration = read_calibration(given)
        if not any(is_of(calibration, row) for row in rows):
            devices = ", ".join(sorted({str(row["gpu"] or row["device"]) for row in rows}))
            raise DataError(given, None, f"of {calibration.device.get('name')}, but the runs are of {devices}")
        return calibration
    within = [folder if folder.is_dir() else folder.parent for folder in folders]
    names = dict.fromkeys(str(row["gpu"]) for row in rows if row["gpu"] is not None)
    return next((found for name in names if (found := find_calibration(name, within))), None)


def _skews(folders: Sequence[Path]) -> list[GpuSkew]:
    """Return the skew of the GPUs of each run that has recorded the launches of several.

    Runs have the names that the readers of rows give them. A copy of a run is left out.
    """
    from launchopt.analysis.collectives.all_reduces import NEEDED, NEEDED_OF_KERNELS, all_reduce_kernels, all_reduces
    from launchopt.analysis.skew import skews
    from launchopt.reading.unusable import name_unusable
    from launchopt.recording.results import read_recording
    from launchopt.recording.run_names import name_of_run, names_in

    names, places = names_in(folders), dict[str, Path]()
    for folder in folders:
        within = folder.parent.glob if folder.is_file() else folder.rglob
        for run in sorted(each.parent for each in within("gpus.parquet")):
            places.setdefault(name_of_run(run, names), run)
    found = []
    for name, run in places.items():
        of_run: dict[Repeat, AllReduces] = {}
        try:
            if (path := run / "launches.parquet").is_file():
                of_run |= all_reduces(read_recording(path, NEEDED))
            if (path := run / "kernels.parquet").is_file():
                of_run |= all_reduce_kernels(read_recording(path, NEEDED_OF_KERNELS))
        except DataError as error:
            name_unusable(error)
        found += skews(name, of_run)
    return found


def _show_skews(rows: Sequence[Row], skews: Sequence[GpuSkew]) -> None:
    from launchopt.analysis.skew import HEADINGS, LEGEND, skew_rows, split_runs, without_times
    from runner.profiles.output import print_notes, print_table

    if skews:
        print()
        print_table(HEADINGS, skew_rows(skews, split_runs(rows)))
        print_notes([LEGEND])
    print_notes(without_times(rows, skews))


def _show(diagnoses: Sequence[Diagnosis]) -> None:
    from launchopt.analysis.tables.columns import without_empty
    from launchopt.analysis.verdict.markdown import diagnosis_evidence, diagnosis_grid, diagnosis_markdown

    if not sys.stdout.isatty():
        print(diagnosis_markdown(diagnoses), end="")
        return
    from rich.markup import escape

    screen = console()
    for one in diagnoses:
        table = drawn(*without_empty(*diagnosis_grid(one)), caption=one.subtitle)
        screen.print(f"[bold]{escape(one.title)}[/bold]\n{escape(one.sentence)}", table)
        for fact in diagnosis_evidence(one):
            screen.print(f"  {escape(fact)}", style="dim")


def _parser() -> CommandParser:
    parser = CommandParser("verdict", __doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folder with results, at any depth")
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="calibration of the device, with the cost of a launch"
    )
    add_json(parser)
    return parser


if __name__ == "__main__":
    end(main)

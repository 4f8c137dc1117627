"""Checks this machine for measurements, says how to fix it, and measures the floors of launches and bandwidth.

    launchopt doctor                       every check, then the floors of the device
    launchopt doctor --no-floors           the checks alone, in a second or two
    launchopt doctor --processes 8 --save  also the noise between processes, for launchopt compare
    launchopt doctor --save                also save the floors: outputs/calibration/<device>.json
    launchopt doctor --clean               remove what killed processes left
    launchopt doctor --json                everything as JSON

Each check prints OK, missing or warning, and how to fix it. A killed run below outputs/ that no later run cleaned up
gets a line, which says what will become of it. Each floor says how it was measured. On a GPU the doctor also splits one
launch into stages, beside the usual published estimate, and the calls of some operators of PyTorch and CuPy into
framework, library and driver.

Exit code: 0 if the device can be used; 1 if it lacks something that it needs. The roofline, the budget and the report
read the saved floors. Measure on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from launchopt.analysis.verdict import calibration as calibrations
from launchopt.analysis.verdict.calibration import Calibration, default_path, write_calibration
from launchopt.errors import DeviceError, RunError
from launchopt.scratch import remove_abandoned
from launchopt.statistics.processes import FEWEST_PROCESSES
from runner.config.schema import MOST_PROCESSES
from runner.doctor import screen
from runner.doctor.checks import Check, machine_checks, usable
from runner.doctor.dispatch import print_dispatch
from runner.doctor.processes import measure_noise
from runner.ending import end
from runner.output_names import FLOORS, STDOUT, UNNAMED, file_named
from runner.reading import CommandParser, add_json, exit_code, put_json, whole_number
from runner.run.leftovers import FOLDER, clean, leftovers
from runner.worker.orphans import end_orphans

REPEATS = 7


def main(argv: Sequence[str] | None = None) -> int:
    """Check, measure and save; return the exit code."""
    parser = _parser()
    options = parser.parsed(argv, needs_words=False)
    if options.save is not None and not options.floors:
        parser.error("--save keeps the floors: leave --no-floors out")
    return exit_code(lambda: _doctor(options))


@dataclass
class Findings:
    """Results of one call: checks, removed segments, floors, why others are absent, and the saved file."""

    checks: list[Check]
    kind: str
    removed: list[str] = field(default_factory=list)
    calibration: Calibration | None = None
    absent: dict[str, str] = field(default_factory=dict)
    saved: Path | None = None

    def as_json(self) -> dict[str, object]:
        """Return all of it for --json."""
        return {
            "device": self.kind,
            "usable": usable(self.checks),
            "checks": [asdict(check) for check in self.checks],
            "removed": self.removed,
            "calibration": None if self.calibration is None else calibrations.as_json(self.calibration),
            "not_measured": self.absent,
            "saved": None if self.saved is None else str(self.saved),
        }


def _doctor(options: argparse.Namespace) -> int:
    removed = _removed() if options.clean else []
    found = Findings(*look(options.device, options.index), removed)
    if options.json != STDOUT:
        screen.print_checks(found.checks, found.kind, found.removed)
    if options.floors and usable(found.checks):
        found.calibration, found.absent = measure(found.kind, options.index, options.repeats)
        if options.processes:
            try:
                noise = measure_noise(found.kind, options.index, options.processes)
                found.calibration.floors[calibrations.BETWEEN_PROCESSES] = noise
            except RunError as error:
                found.absent[calibrations.BETWEEN_PROCESSES] = str(error)
        if options.json != STDOUT:  # before saving, which may fail
            screen.print_floors(found.calibration, found.absent)
            screen.print_stages(found.calibration)
            print_dispatch(found.calibration.floors)
        if options.save is not None:
            is_default = options.save == UNNAMED
            found.saved = default_path(found.calibration.device["name"]) if is_default else options.save
            write_calibration(found.saved, found.calibration)
    put_json(options.json, found.as_json())
    if found.saved is not None and options.json != STDOUT:
        screen.line(f"calibration: {found.saved}")
    return 0 if usable(found.checks) else 1


def _removed() -> list[str]:
    """Remove what killed processes left, and return its names."""
    killed = [f"stopped process {pid}" for pid in end_orphans()]
    return [*killed, *map(str, remove_abandoned()), *(str(segment.path) for segment in clean(leftovers(FOLDER)))]


def look(device: str, index: int) -> tuple[list[Check], str]:
    """Return every check, and the kind of device to measure: cuda for `auto` with a usable GPU."""
    checks = list(machine_checks())
    if device == "cpu":
        return checks, "cpu"
    from launchopt.devices import find_device
    from runner.doctor.gpu import gpu_checks

    try:
        kind = find_device(device, index)[0].kind
    except DeviceError:
        kind = "cuda"  # the user asked for it; the checks say what is missing
    return [*checks, *gpu_checks(index, needed=kind == "cuda")], kind


def measure(kind: str, index: int, repeats: int) -> tuple[Calibration, dict[str, str]]:
    """Return the floors of a device, and why others could not be measured. A terminal shows the progress."""
    from launchopt.devices import open_floors
    from launchopt.devices.floors import floor_of
    from launchopt.devices.launch_breakdown import as_json
    from launchopt.recording.environment import environment
    from runner.screen.pager import console

    with console(stderr=True).status("opening the device") as status:
        floors = open_floors(kind, index)
        try:
            found = {}
            for measured in floors.measure(repeats):
                status.update(f"measured {measured.name}")
                found[measured.name] = floor_of(measured)
            made = datetime.now(UTC).isoformat(timespec="seconds")
            stages = as_json(floors.stages())
            return Calibration(made, floors.about(), environment(), found, stages), floors.absent
        finally:
            floors.close()


def _parser() -> CommandParser:
    parser = CommandParser("doctor", __doc__)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: a GPU if usable")
    parser.add_argument(
        "--index", type=whole_number(0), default=0, metavar="N", help="number of the GPU, as CUDA counts (default 0)"
    )
    floors = "measure the floors (default), about 20 s on a GPU"
    parser.add_argument("--floors", action=argparse.BooleanOptionalAction, default=True, help=floors)
    repeats = f"samples of each floor (default {REPEATS})"
    parser.add_argument("--repeats", type=whole_number(1, 1000), default=REPEATS, metavar="N", help=repeats)
    number = whole_number(FEWEST_PROCESSES, MOST_PROCESSES)
    processes = "also measure the noise between N processes; 8 take one or two minutes"
    parser.add_argument("--processes", type=number, metavar="N", help=processes)
    save = "keep the floors, in outputs/calibration/<device>.json unless named"
    parser.add_argument(
        "--save",
        nargs="?",
        type=file_named(".json", is_optional=True, replaces=FLOORS),
        const=UNNAMED,
        metavar="FILE.json",
        help=save,
    )
    add_json(parser)
    parser.add_argument("--clean", action="store_true", help="remove what killed processes left")
    return parser


if __name__ == "__main__":
    end(main)

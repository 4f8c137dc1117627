"""Floors of a machine: the least cost of a launch and of a byte, as `launchopt doctor --save` measured them.

In: the JSON file of the doctor (default outputs/calibration/<device>.json). Out: a `Calibration`, or its tables.

    calibration = find_calibration("NVIDIA H200")
    calibration.value("null_launch_host_us")      # 1.9, or None if it was not measured

One file is one measurement of one device. A newer file replaces an older one of the same device. A floor without a
meaning on a device (a graph node on a CPU) is absent, never 0.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from launchopt.analysis.tables.markdown import NUMBER, TEXT, pipe_table
from launchopt.devices.launch_breakdown import STAGES, Breakdown, Floor, beside_published
from launchopt.devices.launch_breakdown import from_json as stages_from_json
from launchopt.errors import DataError
from launchopt.files import JsonObject, read_json, reason, save_json
from launchopt.reading.shapes import ANY, fitted
from launchopt.reading.unusable import name_unusable
from launchopt.statistics.interval import FEWEST_REPEATS
from launchopt.statistics.processes import FEWEST_PROCESSES, ProcessNoise

SCHEMA_VERSION = 1
VARIABLE = "LAUNCHOPT_CALIBRATION"  # environment variable with the path of a calibration file outside of FOLDER
FOLDER = Path("outputs/calibration")
FLOOR_HEADINGS = {"floor": TEXT, "median": NUMBER, "95% interval": NUMBER, "unit": TEXT, "how measured": TEXT}
STAGE_HEADINGS = {"stage": TEXT, "p50 us": NUMBER, "p99 us": NUMBER, "how measured": TEXT}
PUBLISHED_HEADINGS = {"published estimate": TEXT, "us": NUMBER, "measured us": NUMBER, "which is": TEXT, "of": TEXT}
BETWEEN_PROCESSES = "between_processes"  # the floor with the noise between processes, in PERCENT
PERCENT = "%"
TIME_UNIT = "us"  # a time may be 0 or less: a delay between two clocks, or a difference of two runs; a rate may not


@dataclass(frozen=True, slots=True)
class Calibration:
    """The floors of one device by name, and their machine.

    `stages`: the breakdown of one launch, {kernel: {stage: {"p50_us", "p99_us", "how"}}}, as `devices.launch_breakdown`
    writes it.
    """

    made_utc: str
    device: JsonObject
    environment: JsonObject
    floors: dict[str, Floor]
    stages: JsonObject = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """Return the floor `name`; None if it was not measured."""
        floor = self.floors.get(name)
        return None if floor is None else floor.value

    def noise_between_processes(self) -> ProcessNoise | None:
        """Return the noise of wall time between processes; None where it was not measured."""
        floor = self.floors.get(BETWEEN_PROCESSES)
        if floor is None or floor.unit != PERCENT or floor.repeats < FEWEST_PROCESSES:
            return None
        return ProcessNoise(floor.value / 100, floor.repeats - 1.0)


def as_json(calibration: Calibration) -> JsonObject:
    """Return the content of the file."""
    return {"schema_version": SCHEMA_VERSION, **asdict(calibration)}


_STAGE = {"p50_us": float, "p99_us": float, "how": str}


def from_json(content: object, path: Path) -> Calibration:
    """Return the calibration of a file's content; DataError naming `path` and the wrong key."""
    if not isinstance(content, Mapping) or "floors" not in content:
        raise DataError(path, None, "not a calibration: no floors (launchopt doctor --save makes one)")
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DataError(path, None, f"schema_version={version!r}: this version reads {SCHEMA_VERSION}")
    parts = {name: content.get(name, {}) for name in ("device", "environment", "floors", "stages")}
    for name, value in parts.items():
        if not isinstance(value, Mapping):
            raise DataError(path, None, f"{name}={value!r}: must be an object")
    if not isinstance(parts["device"].get("name"), str):
        raise DataError(path, None, f"device.name={parts['device'].get('name')!r}: must be a name")
    lost: list[str] = []
    stages = _complete(fitted(parts["stages"], {ANY: {ANY: _STAGE}}, lost, "stages"), lost)
    if lost:
        what = f"shown without keys that are incomplete or of a wrong type: {', '.join(lost)}"
        name_unusable(DataError(path, None, what))
    return Calibration(
        str(content.get("made_utc", "")),
        dict(parts["device"]),
        dict(parts["environment"]),
        {str(name): _floor(str(name), value, path) for name, value in parts["floors"].items()},
        stages,
    )


def _complete(kernels: Mapping[str, Mapping[str, JsonObject | None] | None], lost: list[str]) -> JsonObject:
    """Return the kernels and their stages that have each key of _STAGE; the names of others are added to `lost`."""
    found: JsonObject = {}
    for kernel, stages in kernels.items():
        for name, stage in (stages or {}).items():
            if stage is not None and all(stage.get(key) is not None for key in _STAGE):
                found.setdefault(kernel, {})[name] = stage
            elif not any(each.startswith(f"stages.{kernel}.{name}") for each in lost):
                lost.append(f"stages.{kernel}.{name}")
    return found


def _floor(name: str, content: object, path: Path) -> Floor:
    if not isinstance(content, Mapping):
        raise DataError(path, None, f"floors.{name}={content!r}: must be an object with value and unit")
    unit, how, repeats = content.get("unit"), content.get("how", ""), content.get("repeats", 0)
    if not isinstance(unit, str) or not isinstance(how, str):
        raise DataError(path, None, f"floors.{name}: unit and how must be text")
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 0:
        raise DataError(path, None, f"floors.{name}.repeats={repeats!r}: must be a whole number of 0 or more")
    value = _number(content.get("value"))
    if value is None or (unit != TIME_UNIT and value <= 0):
        raise DataError(path, None, f"floors.{name}.value={content.get('value')!r}: must be a number above 0")
    low, high = _number(content.get("low")), _number(content.get("high"))
    for key, bound in (("low", low), ("high", high)):
        if bound is None and content.get(key) is not None:
            raise DataError(path, None, f"floors.{name}.{key}={content[key]!r}: must be a number, or null")
    ends = content.get("range")
    known = list(map(_number, ends)) if isinstance(ends, list) else []
    if ends is not None and (len(known) != 2 or None in known):
        raise DataError(path, None, f"floors.{name}.range={ends!r}: must be two numbers, or null")
    return Floor(value, unit, low, high, repeats, how, (known[0] or 0.0, known[1] or 0.0) if known else None)


def _number(value: object) -> float | None:
    """Return `value` as a float; None for anything but a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < math.inf:
        return None
    try:
        return float(value)
    except OverflowError:  # the integer is too large
        return None


def read_calibration(path: Path) -> Calibration:
    """Return the calibration in `path`; DataError if it is missing, broken, or of another schema version."""
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise DataError(path, None, "no such file (launchopt doctor --save makes one)") from None
    except (OSError, ValueError) as error:
        raise DataError(path, None, f"cannot be read as JSON ({reason(error)})") from None
    return from_json(content, path)


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the file atomically, and make its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({error.strerror or error})") from None
    save_json(path, as_json(calibration))


def default_path(device_name: str) -> Path:
    """Return the path for a device: outputs/calibration/nvidia_h200.json."""
    slug = re.sub(r"[^a-z0-9]+", "_", device_name.lower()).strip("_")
    return FOLDER / f"{slug or 'device'}.json"


def find_calibration(device_name: str, folders: Sequence[Path] = ()) -> Calibration | None:
    """Return the newest calibration of `device_name`; None if there is none.

    It searches the file that $LAUNCHOPT_CALIBRATION names, and the *.json of `folders` and of outputs/calibration below
    the current folder. Files of another kind are skipped. Raises DataError if the named file cannot be read.
    """
    found = []
    if named := os.environ.get(VARIABLE):
        found.append(read_calibration(Path(named)))
    for folder in (FOLDER, *folders):
        for path in sorted(folder.glob("*.json")):
            try:
                found.append(read_calibration(path))
            except DataError:
                continue
    matching = [calibration for calibration in found if calibration.device["name"] == device_name]
    return max(matching, key=lambda calibration: calibration.made_utc, default=None)


def calibration_markdown(calibration: Calibration) -> str:
    """Return the floors and the stages of one launch as Markdown tables; ends with a newline."""
    python = calibration.environment.get("python", "unknown")
    parts = [f"{calibration.device['name']}, {calibration.made_utc[:10]}, Python {python}."]
    parts.append(pipe_table(FLOOR_HEADINGS, (_floor_cells(name, floor) for name, floor in calibration.floors.items())))
    for kernel, stages in stages_from_json(calibration.stages).items():
        there = [(name, stages[name]) for name in STAGES if name in stages]
        rows = [(name, f"{one.p50_us:.3f}", f"{one.p99_us:.3f}", one.how) for name, one in there]
        parts += [f"**One launch by stage: {kernel}**", pipe_table(STAGE_HEADINGS, rows), _published(stages)]
    return "\n\n".join(parts) + "\n"


def _floor_cells(name: str, floor: Floor) -> tuple[str, ...]:
    return name, _shown(floor.value), bounds_text(floor), floor.unit, floor.how


def bounds_text(floor: Floor) -> str:
    """Return the interval, `1.1 to 1.3`, or the range of too few repeats, `(1.0 to 1.4)`."""
    if floor.low is not None and floor.high is not None:
        return f"{_shown(floor.low)} to {_shown(floor.high)}"
    if floor.range is None:
        return "too few repeats" if floor.repeats < FEWEST_REPEATS else "none"
    return "({} to {})".format(*map(_shown, floor.range))


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"


def _published(stages: Breakdown) -> str:
    rows = []
    for one in beside_published(stages):
        estimate = one.estimate
        measured = "—" if one.measured_us is None else f"{one.measured_us:.2f}"
        span_us = f"{estimate.low_us:g}-{estimate.high_us:g}"
        rows.append((estimate.part, span_us, measured, one.verdict, estimate.about))
    return pipe_table(PUBLISHED_HEADINGS, rows)

"""The floors of the GPU, which say what bounds the base: from its calibration, or measured now in a few seconds."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

from launchopt.analysis.verdict.calibration import VARIABLE, Calibration, find_calibration, write_calibration
from launchopt.devices import open_floors
from launchopt.devices.base import DeviceInfo
from launchopt.devices.floors import floor_of
from launchopt.errors import LaunchoptError
from launchopt.messages import print_error
from launchopt.recording.environment import environment

REPEATS = 3  # of each floor
SHARE = 1 / 8  # of the budget: the most that the floors take; the cost of a launch comes first


def floors_of(info: DeviceInfo, folder: Path, budget_s: float) -> Calibration | None:
    """Return the calibration of a GPU; without one, measure and save it below `folder`. None on a CPU.

    A call on a CPU is also its work, so no verdict reads the floors of a CPU. The page of the answer reads the saved
    file.
    """
    if info.kind != "cuda":
        return None
    try:
        if (known := find_calibration(info.name)) is not None:
            return known
        measured = _measured(info.index, SHARE * budget_s)
    except LaunchoptError as error:
        print_error(f"floors were not measured: {error}", "warning")
        return None
    path = (folder / "calibration.json").absolute()
    write_calibration(path, measured)
    os.environ[VARIABLE] = str(path)
    return measured


def _measured(index: int, most_s: float) -> Calibration:
    """Return as many floors as can be measured in some seconds."""
    until_s, found = time.monotonic() + most_s, {}
    floors = open_floors("cuda", index)
    try:
        for measured in floors.measure(REPEATS):
            found[measured.name] = floor_of(measured)
            if time.monotonic() > until_s:
                break
        return Calibration(datetime.now(UTC).isoformat(timespec="seconds"), floors.about(), environment(), found)
    finally:
        floors.close()

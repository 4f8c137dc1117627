"""The doctor's checks, floors and stages of one launch as tables on standard output; plain text in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from launchopt.analysis.verdict.calibration import Calibration
from launchopt.devices.launch_breakdown import STAGES, Breakdown, Floor, beside_published, from_json
from runner.doctor.checks import Check, Status, usable
from runner.pager import console

_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.MISSING: "red"}


def line(text: str) -> None:
    """Print one line without markup or wrapping."""
    console().print(text, soft_wrap=True, markup=False)


def print_checks(checks: Sequence[Check], kind: str, removed: Sequence[str]) -> None:
    """Print a line for each check, how to fix those that are not OK, and whether the device can be used."""
    for path in removed:
        line(f"removed {path}")
    width = max(len(check.name) for check in checks)
    for check in checks:
        name = check.status.value if check.needed or check.status is not Status.MISSING else "missing (optional)"
        style = "yellow" if name != check.status.value else _STYLES[check.status]
        text = f"[{style}]{name:<18}[/] {escape(check.name):<{width}}  {escape(check.found)}"
        console().print(text, soft_wrap=True)
        if check.mend and check.status is not Status.OK:
            line(f"{'':<18} {'':<{width}}  -> {check.mend}")
    verdict = "can be used" if usable(checks) else "cannot be used: see what is missing above"
    line(f"device={kind} {verdict}")


def _table(title: str, *numbers: str) -> Table:
    """Return a table with a column of texts, columns of numbers, and one for how they were measured."""
    shown = Table(title=escape(title), title_justify="left", box=box.SIMPLE if sys.stdout.isatty() else None)
    shown.add_column("")
    for number in numbers:
        shown.add_column(number, justify="right", no_wrap=True)
    shown.add_column("how measured", overflow="fold")
    return shown


def print_floors(calibration: Calibration, absent: dict[str, str]) -> None:
    """Print median and interval of each floor, and why others are absent."""
    shown = _table(f"Floors of {calibration.device['name']}", "median", "95% interval", "unit", "repeats")
    for name, floor in calibration.floors.items():
        cells = (_number(floor.value), _interval(floor), floor.unit, str(floor.repeats))
        shown.add_row(escape(name), *cells, escape(floor.how))
    console().print(shown)
    for name, why in absent.items():
        line(f"not measured: {name}: {why}")


def _number(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"


def _interval(floor: Floor) -> str:
    if floor.low is None or floor.high is None:
        return "none: too few"
    return f"{_number(floor.low)} to {_number(floor.high)}"


def print_stages(calibration: Calibration) -> None:
    """Print the stages of one launch and the published estimate, a table for each kernel."""
    if not calibration.stages:
        line("Stages of one launch: none, since nothing is launched on a CPU: a call computes before it returns.")
    for kernel, stages in from_json(calibration.stages).items():
        shown = _table(f"One launch by stage: {kernel}", "p50 us", "p99 us")
        for name in STAGES:
            if name in stages:
                one = stages[name]
                shown.add_row(name, f"{one.p50_us:.3f}", f"{one.p99_us:.3f}", escape(one.how))
        console().print(shown)
        _print_published(stages)


def _print_published(stages: Breakdown) -> None:
    shown = Table(box=box.SIMPLE if sys.stdout.isatty() else None)
    for heading in ("published estimate", "us", "measured us", "which is", "of stages, and what it cannot tell"):
        shown.add_column(heading, overflow="fold")
    for one in beside_published(stages):
        estimate, measured_us = one.estimate, one.measured_us
        cells = (f"{estimate.low_us:g}-{estimate.high_us:g}", "-" if measured_us is None else f"{measured_us:.2f}")
        shown.add_row(estimate.part, *cells, one.verdict, escape(estimate.about))
    console().print(shown)

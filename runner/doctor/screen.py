"""The doctor's checks, floors and stages of one launch as tables on standard output; plain text in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape

from launchopt.analysis.verdict.calibration import Calibration, bounds_text
from launchopt.devices.launch_breakdown import STAGES, Breakdown, beside_published, from_json
from runner.doctor.checks import Check, Status, usable
from runner.screen.fitted import FittedTable, Heading
from runner.screen.pager import console

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


def print_floors(calibration: Calibration, absent: dict[str, str]) -> None:
    """Print median and interval of each floor, and why others are absent."""
    rows = [
        (name, _number(floor.value), bounds_text(floor), floor.unit, str(floor.repeats), floor.how)
        for name, floor in calibration.floors.items()
    ]
    headings = [
        *(Heading("floor", is_text=True), Heading("median"), Heading("95% interval", drops=3)),
        *(Heading("unit", is_text=True), Heading("repeats", drops=2), Heading("how measured", is_text=True, drops=1)),
    ]
    console().print(FittedTable(headings, rows, f"Floors of {calibration.device['name']}"))
    for name, why in absent.items():
        line(f"not measured: {name}: {why}")


def _number(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"


def print_stages(calibration: Calibration) -> None:
    """Print the stages of one launch and the published estimate, a table for each kernel."""
    if not calibration.stages:
        line("Stages of one launch: none, since nothing is launched on a CPU: a call computes before it returns.")
    for kernel, stages in from_json(calibration.stages).items():
        rows = [
            (name, f"{one.p50_us:.3f}", f"{one.p99_us:.3f}", one.how)
            for name in STAGES
            if (one := stages.get(name)) is not None
        ]
        headings = [Heading("stage", is_text=True), Heading("p50 us"), Heading("p99 us")]
        how = Heading("how measured", is_text=True, drops=1)
        console().print(FittedTable([*headings, how], rows, f"One launch by stage: {kernel}"))
        _print_published(stages)


def _print_published(stages: Breakdown) -> None:
    rows = []
    for one in beside_published(stages):
        estimate, measured_us = one.estimate, one.measured_us
        cells = (f"{estimate.low_us:g}-{estimate.high_us:g}", "-" if measured_us is None else f"{measured_us:.2f}")
        rows.append((estimate.part, *cells, one.verdict, estimate.about))
    headings = [
        *(Heading("published estimate", is_text=True), Heading("us"), Heading("measured us")),
        *(Heading("which is", is_text=True), Heading("of stages, and its limits", is_text=True, drops=1)),
    ]
    console().print(FittedTable(headings, rows))

"""A calibration as Markdown: the floors of a machine, and one launch by stage beside the published estimate.

In: a `Calibration`. Out: Markdown that ends with a newline. Pure.
"""

from __future__ import annotations

from launchopt.analysis.pipes import NUMBER, TEXT, pipe_table
from launchopt.analysis.verdict.calibration import Calibration, Floor
from launchopt.devices.launch_breakdown import STAGES, Breakdown, beside_published, from_json

FLOORS = {"floor": TEXT, "median": NUMBER, "95% interval": NUMBER, "unit": TEXT, "how measured": TEXT}
STAGE = {"stage": TEXT, "p50 us": NUMBER, "p99 us": NUMBER, "how measured": TEXT}
PUBLISHED = {"published estimate": TEXT, "us": NUMBER, "measured us": NUMBER, "which is": TEXT, "of": TEXT}


def calibration_markdown(calibration: Calibration) -> str:
    """All that `python -m runner.doctor` measured."""
    python = calibration.environment.get("python", "unknown")
    parts = [f"{calibration.device['name']}, {calibration.made_utc[:10]}, Python {python}."]
    parts.append(pipe_table(FLOORS, (_floor(name, floor) for name, floor in calibration.floors.items())))
    for kernel, stages in from_json(calibration.stages).items():
        there = [(name, stages[name]) for name in STAGES if name in stages]
        rows = [(name, f"{one.p50_us:.3f}", f"{one.p99_us:.3f}", one.how) for name, one in there]
        parts += [f"**One launch by stage: {kernel}**", pipe_table(STAGE, rows), _published(stages)]
    return "\n\n".join(parts) + "\n"


def _floor(name: str, floor: Floor) -> tuple[str, ...]:
    known = floor.low is not None and floor.high is not None
    interval = f"{_number(floor.low)} to {_number(floor.high)}" if known else "too few repeats"
    return name, _number(floor.value), interval, floor.unit, floor.how


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"


def _published(stages: Breakdown) -> str:
    rows = []
    for one in beside_published(stages):
        estimate = one.estimate
        measured = "—" if one.measured_us is None else f"{one.measured_us:.2f}"
        what = f"{' + '.join(estimate.stages)}: {estimate.why}" if estimate.stages else estimate.why
        rows.append((estimate.part, f"{estimate.low_us:g}-{estimate.high_us:g}", measured, one.verdict, what))
    return pipe_table(PUBLISHED, rows)

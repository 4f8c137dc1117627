"""Pictures of a report: speed-ups, strategies, waterfalls, frontiers and several GPUs over one, as SVG, PNG or PDF.

In: tables. Out: one complete file, or none. Needs the `report` extra, which only this module imports.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from launchopt.distribution import install_command, missing
from launchopt.errors import ConfigError, DataError, PackageError, one_line, printable_within
from launchopt.files import write_atomically

if TYPE_CHECKING:
    from launchopt.analysis.frontier.points import Frontier
    from launchopt.analysis.tables.rows import Table
    from launchopt.analysis.tables.scaling_plot import Line
    from launchopt.analysis.tables.speedup_plot import Chart
    from launchopt.analysis.tables.strategies import StrategyTable
    from launchopt.analysis.waterfall.steps import Waterfall

Format: TypeAlias = Literal["svg", "png", "pdf"]
FORMATS: Mapping[str, Format] = {".svg": "svg", ".png": "png", ".pdf": "pdf"}
DOTS_PER_INCH = 110  # resolution of a PNG
DRAWING_BYTES = 72 << 30  # of address space, which the JavaScript engine of vl-convert reserves
NO_SPEEDUP = "no speed-up to draw: no verified, untraced line has a baseline"
NO_WATERFALL = "no waterfall to draw: no order has two verified arms"
NO_SCALING = "no factor to draw: no run is on several GPUs"
NO_FRONTIER = "no frontier to draw: no verified, untraced point has a latency"


def draw_speedups(tables: Sequence[Table], path: Path) -> None:
    """Write a bar per line of the tables to `path`.

    Raises PackageError without the extra, ConfigError for an unknown suffix, or if there is no speed-up.
    """
    _require_extra()
    from launchopt.analysis.tables.speedup_plot import speedup_chart

    _write(speedup_chart(tables), path, NO_SPEEDUP)


def draw_strategies(tables: Sequence[StrategyTable], path: Path) -> None:
    """Write a panel per table to `path`. Raises as `draw_speedups` does."""
    _require_extra()
    from launchopt.analysis.tables.strategies_plot import strategies_chart

    _write(strategies_chart(tables), path, NO_SPEEDUP)


def draw_frontiers(frontiers: Sequence[Frontier], path: Path) -> None:
    """Write a panel per frontier to `path`. Raises as `draw_speedups` does."""
    _require_extra()
    from launchopt.analysis.frontier.plot import frontier_chart

    _write(frontier_chart(frontiers), path, NO_FRONTIER)


def draw_waterfalls(found: Sequence[Waterfall], path: Path) -> None:
    """Write a panel per order to `path`. Raises as `draw_speedups` does."""
    _require_extra()
    from launchopt.analysis.waterfall.plot import waterfall_chart

    _write(waterfall_chart(found), path, NO_WATERFALL)


def draw_scaling(lines: Sequence[Line], path: Path) -> None:
    """Write a line per work to `path`. Raises as `draw_speedups` does."""
    _require_extra()
    from launchopt.analysis.tables.scaling_plot import scaling_chart

    _write(scaling_chart(lines), path, NO_SCALING)


def lacking() -> list[str]:
    """Return the packages for pictures that are not installed."""
    return missing("altair", "vl_convert")


def _require_extra() -> None:
    if packages := lacking():
        raise PackageError("--plot", packages, install_command("report"))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= limit < DRAWING_BYTES:  # vl-convert would abort
        allowed = f"pictures need an address space of {DRAWING_BYTES >> 30} GiB, of which little is used; try --html"
        raise ConfigError("ulimit -v", limit >> 10, allowed)


def _write(chart: Chart | None, path: Path, why_none: str) -> None:
    if chart is None:
        raise ConfigError("plot", path, why_none)
    kind = FORMATS.get(path.suffix or ".svg")
    if kind is None:
        raise ConfigError("plot", path, f"must end in {', '.join(FORMATS)}")
    drawn = _printable(chart)
    try:
        write_atomically(path, lambda temporary: drawn.save(str(temporary), format=kind, ppi=DOTS_PER_INCH))
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({error.strerror})") from None
    print(f"wrote {one_line(path)}", file=sys.stderr)  # standard output may be JSON


def _printable(chart: Chart) -> Chart:
    """Return the chart with control characters of its texts escaped: the library that draws SVG aborts at some."""
    import altair as alt

    spec = chart.to_dict()
    escaped = printable_within(spec)
    return chart if escaped == spec else alt.Chart.from_dict(escaped)

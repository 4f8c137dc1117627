"""All strategies as a picture: a panel per workload, a bar per mode, on a white card.

In: `strategies.StrategyTable`. Out: an Altair chart. A bar is the speed-up of wall time over the base; its whisker
is the 95% interval; the fastest comes first. Each panel has an axis of its own, and names the modes that
failed or do not run its workload. Needs Altair (the `report` extra).
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

import altair as alt

from launchopt.analysis.stream_rows import stream_title
from launchopt.analysis.tables.columns import mode_name
from launchopt.analysis.tables.speedup_plot import LEGEND, Bar, Chart, bar_panel, bases_of, on_card, title_text
from launchopt.analysis.tables.strategies import StrategyTable, refusal_kind

_COLUMNS = 2
_PANEL_WIDTH = 236  # bars of a panel, pixels: two panels with their labels fit the width of a README
_TITLE_CHARACTERS, _NOTE_CHARACTERS = 52, 64  # characters of a line that fit a panel


def strategies_chart(tables: Sequence[StrategyTable]) -> Chart | None:
    """Return the picture of all tables; None if no line has a speed-up."""
    shown = [(table, bars) for table in tables if (bars := _bars(table))]
    if not shown:
        return None
    machines = dict.fromkeys(str(table.stream["gpu"] or table.stream["device"].upper()) for table, _ in shown)
    text = title_text((strategy.line for table, _ in shown for strategy in table.strategies), machines)
    title = alt.TitleParams(text=text, subtitle=list(LEGEND), fontSize=15, offset=14)
    panels = [bar_panel(bars, _title(table), _PANEL_WIDTH) for table, bars in shown]
    grid = alt.concat(*panels, columns=min(_COLUMNS, len(panels)), align="each", spacing=18, title=title)
    return on_card(grid.resolve_scale(x="independent", y="independent"))


def _bars(table: StrategyTable) -> list[Bar]:
    several = len({strategy.line.configuration for strategy in table.strategies}) > 1
    lines = [strategy.line for strategy in table.strategies]
    return [
        Bar(
            mode_name(line) + (f" · {line.configuration}" if several else ""),
            line.speedup,
            line.verdict,
            line.metric,
            bases_of([line]),
        )
        for line in lines
        if line.speedup is not None
    ]


def _title(table: StrategyTable) -> alt.TitleParams:
    stream = table.stream
    model = f", {stream['model']}" if stream["model"] else ""
    kinds: dict[str, list[str]] = {}
    for mode, reason in sorted(table.refused.items()):
        kinds.setdefault(refusal_kind(reason).lower(), []).append(mode)
    refused = [f"{kind}: {', '.join(modes)}" for kind, modes in kinds.items()]
    failed = [strategy.line["mode"] for strategy in table.strategies if strategy.line.problem is not None]
    notes = [*refused, *([f"failed: {', '.join(failed)}"] if failed else [])]
    return alt.TitleParams(
        text=wrap(f"{stream_title(stream)}{model}", _TITLE_CHARACTERS),
        subtitle=[part for note in notes for part in wrap(note, _NOTE_CHARACTERS)],
    )

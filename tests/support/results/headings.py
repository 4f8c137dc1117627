"""The headings of all tables of a report."""

from __future__ import annotations

from launchopt.analysis.frontier.markdown import frontier_grid
from launchopt.analysis.frontier.points import Frontier
from launchopt.analysis.tables import columns, strategies_markdown
from launchopt.analysis.verdict import markdown as verdict
from launchopt.analysis.waterfall import markdown as waterfall
from support.results.recorded_runs import summary_row


def headings() -> set[str]:
    """Return the headings of runs, tokens, strategies, frontiers, diagnoses and waterfalls, the run's included."""
    frontiers = [Frontier(summary_row("run", "batched", 0), unit, [], []) for unit in ("commands", "tokens")]
    tables = [columns.COLUMNS, columns.TOKEN_COLUMNS, strategies_markdown.COLUMNS, verdict.COLUMNS, verdict._DIFFERING]
    tables += [frontier_grid(one, kind)[0] for one in frontiers for kind in ("full", "compact", "terminal")]
    tables.append(waterfall.COLUMNS)
    return {column.heading for table in tables for column in table} | set(strategies_markdown._DIFFERING)

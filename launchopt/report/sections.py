"""Parts of the page that show runs: a section per stream of commands, and the runs under a tracer.

In: a `Source`. Out: sections with tables and numbered figures. Needs Altair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from launchopt.analysis.frontier.markdown import frontier_answer
from launchopt.analysis.stream_rows import STREAM
from launchopt.analysis.tables.columns import speedup
from launchopt.analysis.tables.rows import Table
from launchopt.analysis.tables.strategies import StrategyTable
from launchopt.analysis.tables.strategies_markdown import refusals
from launchopt.analysis.verdict.diagnosis import Diagnosis
from launchopt.analysis.verdict.markdown import diagnosis_evidence
from launchopt.report import grids
from launchopt.report.figures.base import Absent, Figure
from launchopt.report.figures.batches import batch_figure
from launchopt.report.figures.frontier import frontier_figures, is_sweep
from launchopt.report.figures.latency import latency_figure
from launchopt.report.figures.speedup import modes_figure
from launchopt.report.figures.stages import time_figure
from launchopt.report.figures.timeline import timeline_figure
from launchopt.report.figures.waterfall import waterfall_figure
from launchopt.report.glance import Glance
from launchopt.report.grids import Grid, Head
from launchopt.report.source import Source


@dataclass(frozen=True, slots=True)
class Numbered:
    """A figure, its place on the page, and the stream that it shows."""

    id: str
    figure: Figure
    subject: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A diagnosis and its table."""

    diagnosis: Diagnosis
    evidence: list[str]
    grid: Grid


@dataclass(frozen=True, slots=True)
class Section:
    """One stream of commands: its verdict, tables, answers and figures. words: what a search finds."""

    anchor: str
    title: str
    subtitle: str
    gain: str
    words: str
    workload: str
    dtype: str
    verdicts: list[Verdict]
    answers: list[str]
    grids: list[Grid]
    refused: list[str]
    figures: list[Numbered]


@dataclass(frozen=True, slots=True)
class Traced:
    """A stream under a tracer. It has a timeline if no untraced section shows one."""

    title: str
    grid: Grid
    figures: list[Numbered]


@dataclass(slots=True)
class Figures:
    """Numbers the figures that have data, and collects those that have none."""

    drawn: list[Numbered] = field(default_factory=list)
    absent: dict[Absent, list[str]] = field(default_factory=dict)

    def add(self, found: Iterable[Figure | Absent], subject: str) -> list[Numbered]:
        """Return the figures that have data, numbered."""
        mine: list[Numbered] = []
        for one in found:
            if isinstance(one, Absent):
                self.absent.setdefault(one, []).append(subject)
            else:
                mine.append(Numbered(f"figure-{len(self.drawn) + len(mine) + 1}", one, subject))
        narrow = [at for at, one in enumerate(mine) if not one.figure.is_wide]
        if len(narrow) % 2:  # two stand side by side, so the last would leave a gap
            mine[narrow[-1]] = _widened(mine[narrow[-1]])
        self.drawn += mine
        return mine

    def absent_grid(self) -> Grid | None:
        """Return a table of the figures without data; None if all have some."""
        heads = [Head("figure", True), Head("reason", True), Head("setting that records it", True), Head("work", True)]
        cells = [[one.title, one.why, one.remedy, _listed(where)] for one, where in self.absent.items()]
        return grids.make_grid("Figures without data", heads, cells) if cells else None

    def readings(self) -> list[tuple[str, str]]:
        """Return how to read each kind of figure, once each."""
        titles: dict[str, str] = {}
        for one in self.drawn:
            titles.setdefault(one.figure.reading, one.figure.title.partition(":")[0])
        return [(title, text) for text, title in titles.items() if text]


def _widened(one: Numbered) -> Numbered:
    return replace(one, figure=replace(one.figure, is_wide=True))


def _listed(where: Sequence[str]) -> str:
    return where[0] if len(where) == 1 else f"{len(where)} streams of commands"


def section(
    index: int, glance: Glance, strategy: StrategyTable, source: Source, figures: Figures, *, is_alone: bool
) -> Section:
    """Return the section of one untraced stream. Its speed-ups come first, unless the page begins with them.

    is_alone: no other stream has a section, so the page begins with the speed-ups of this one.
    """
    table, title = glance.table, glance.name
    twins = [other for other in source.tables if other["traced"] and same_work(table, other)]
    frontiers = [one for one in source.frontiers if all(one[name] == table[name] for name in STREAM)]
    sweeps = [one for one in frontiers if is_sweep(one)]
    waterfalls = [one for one in source.waterfalls if all(one.stream[name] == table[name] for name in STREAM)]
    found: list[Figure | Absent] = [] if is_alone else [modes_figure(strategy)]
    found += map(waterfall_figure, waterfalls)
    found += [figure for one in frontiers for figure in frontier_figures(one)]
    found += [*([] if sweeps else [time_figure(strategy)]), latency_figure(table, source.histograms)]
    found += [batch_figure(table, source.histograms), timeline_figure([table, *twins], source)]
    tokens = grids.tokens(table, source.model_layers(table))
    tables = [
        *map(grids.frontier, sweeps),
        *map(grids.waterfall, waterfalls),
        grids.modes(strategy, table),
        *([tokens] if tokens else []),
    ]
    best, numbered = glance.best, figures.add(found, title)
    modes = dict.fromkeys(str(line["mode"]) for line in table.lines)
    return Section(
        anchor=f"work-{index}",
        title=title,
        subtitle=table.subtitle,
        gain=f"{best['mode']} {speedup(best)}" if best else "",
        words=" ".join([title, table.subtitle, *modes]).lower(),
        workload=str(table["workload"]),
        dtype=table.number_types,
        verdicts=[_verdict(one, table) for one in source.diagnoses if _is_of(one, table)],
        answers=[answer for one in sweeps for answer in frontier_answer(one)],
        grids=tables,
        refused=refusals(strategy),
        figures=numbered,
    )


def _is_of(one: Diagnosis, table: Table) -> bool:
    """Return whether a diagnosis is of the stream of a table."""
    runs = {line["run_id"] for line in table.lines}
    return (one.title, one.subtitle) == (table.title, table.subtitle) and bool(
        runs & {line.run_id for line in one.lines}
    )


def _verdict(one: Diagnosis, table: Table) -> Verdict:
    return Verdict(one, diagnosis_evidence(one), grids.diagnosis(one, table["device"]))


def traced(table: Table, title: str, source: Source, figures: Figures) -> Traced:
    """Return the part of one traced stream."""
    untraced = [other for other in source.tables if not other["traced"]]
    is_alone = not any(same_work(table, other) for other in untraced)
    mine = figures.add([timeline_figure([table], source)], title) if is_alone else []
    return Traced(title, grids.everything(table), mine)


def same_work(table: Table, other: Table) -> bool:
    """Return whether two tables are of the same stream, traced or not."""
    return all(table[name] == other[name] for name in STREAM if name != "traced")

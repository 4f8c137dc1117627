"""The report as one HTML file without other files.

In: a `Source`. Out: the text of the page. A template escapes every value; figures are JSON. Needs Altair, Jinja and
vl-convert (the `report` extra).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.util import find_spec

from launchopt.analysis.tables.frontier import Frontier
from launchopt.analysis.tables.frontier_markdown import frontier_answer
from launchopt.analysis.tables.markdown import SHORT_LEGEND
from launchopt.analysis.tables.rows import STREAM, Table, arrivals
from launchopt.analysis.tables.strategies import StrategyTable
from launchopt.analysis.tables.strategies_markdown import LEGEND as REMEDIES_LEGEND
from launchopt.analysis.tables.strategies_markdown import refusals
from launchopt.analysis.verdict.diagnosis import Diagnosis
from launchopt.analysis.verdict.markdown import LEGEND as VERDICT_LEGEND
from launchopt.analysis.verdict.markdown import diagnosis_evidence
from launchopt.errors import ConfigError
from launchopt.report import grids
from launchopt.report.environment import Environment, environment
from launchopt.report.figures.base import Absent, Figure
from launchopt.report.glance import glance_grid, glances
from launchopt.report.grids import Grid, Head
from launchopt.report.source import Source
from launchopt.report.tiles import Tile, headline, subtitle, tiles, title, warnings


@dataclass(frozen=True, slots=True)
class Numbered:
    """A figure and its place on the page."""

    id: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Section:
    """One stream of commands: tables, answers, figures."""

    anchor: str
    title: str
    subtitle: str
    arrivals: str
    answers: list[str]
    grids: list[Grid]
    more: list[Grid]
    refused: list[str]
    figures: list[Numbered]


@dataclass(frozen=True, slots=True)
class Traced:
    """A workload stream under a tracer. It has a timeline if no untraced section shows one."""

    grid: Grid
    figures: list[Numbered]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A diagnosis and its table."""

    diagnosis: Diagnosis
    evidence: list[str]
    grid: Grid


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that the template shows."""

    title: str
    subtitle: str
    tiles: list[Tile]
    headline: str
    warnings: list[str]
    verdicts: list[Verdict]
    glance: Grid
    sections: list[Section]
    machine_figures: list[Numbered]
    traced: list[Traced]
    absent: Grid | None
    environment: Environment
    verdict_legend: str = VERDICT_LEGEND
    legend: str = SHORT_LEGEND.replace("`", "")
    remedies_legend: str = REMEDIES_LEGEND.replace("`", "")


@dataclass(slots=True)
class _Figures:
    """Numbers the figures that have data, and collects those that have none."""

    drawn: list[Numbered] = field(default_factory=list)
    absent: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)

    def add(self, found: Iterable[Figure | Absent], where: str) -> list[Numbered]:
        mine = []
        for one in found:
            if isinstance(one, Absent):
                self.absent.setdefault((one.title, one.why, one.remedy), []).append(where)
            else:
                mine.append(Numbered(f"figure-{len(self.drawn) + 1}", one))
                self.drawn.append(mine[-1])
        return mine

    def absent_grid(self) -> Grid | None:
        heads = [Head("figure", True), Head("why not", True), Head("what records it", True), Head("work", True)]
        cells = [[*key, _listed(where)] for key, where in self.absent.items()]
        return grids.make_grid("Figures that have no data", heads, cells) if cells else None


def _listed(where: Sequence[str]) -> str:
    return where[0] if len(where) == 1 else f"{len(where)} streams of commands"


def page_html(source: Source) -> str:
    """Return the whole page; ConfigError where the report extra is missing."""
    missing = [name for name in ("altair", "jinja2", "vl_convert") if find_spec(name) is None]
    if missing:
        raise ConfigError("html", ", ".join(missing), "not installed: pip install 'launchopt[report]'")
    import jinja2

    from launchopt.report.scripts import inline, inline_json, policy, vega_bundle

    figures = _Figures()
    page = _page(source, figures)
    bundle, script = inline(vega_bundle()), inline(_asset("page.js"))
    template = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    ).from_string(_asset("page.html"))
    return template.render(
        page=page,
        policy=policy(bundle, script),
        style=inline(_asset("page.css")),
        specs=inline_json({one.id: one.figure.spec for one in figures.drawn}),
        bundle=bundle,
        script=script,
    ).lstrip()


def _asset(name: str) -> str:
    return resources.files("launchopt.report").joinpath("assets", name).read_text(encoding="utf-8")


def _page(source: Source, figures: _Figures) -> Page:
    from launchopt.report.figures.roofline import roofline_figure
    from launchopt.report.figures.stages import stages_figure

    untraced = [table for table in source.tables if not table["traced"]]
    by_device: dict[str, list[Table]] = {}
    for table in untraced:
        by_device.setdefault(str(table["gpu"] or table["device"].upper()), []).append(table)
    machine = [figure for device, members in by_device.items() for figure in [roofline_figure(device, members)]]
    machine_figures = figures.add([*machine, *map(stages_figure, source.calibrations)], "all")
    sections = [
        _section(index, table, strategy, source, figures)
        for index, (table, strategy) in enumerate(zip(untraced, source.strategies, strict=True), 1)
    ]
    return Page(
        title=title(source),
        subtitle=subtitle(source),
        tiles=tiles(source),
        headline=headline(source),
        warnings=warnings(source),
        verdicts=[Verdict(one, diagnosis_evidence(one), grids.diagnosis(one)) for one in source.diagnoses],
        glance=glance_grid(glances(source.tables)),
        sections=sections,
        machine_figures=machine_figures,
        traced=[_traced(table, untraced, source, figures) for table in source.tables if table["traced"]],
        absent=figures.absent_grid(),
        environment=environment(source),
    )


def _traced(table: Table, untraced: Sequence[Table], source: Source, figures: _Figures) -> Traced:
    from launchopt.report.figures.timeline import timeline_figure

    grid = grids.everything(table)
    is_alone = not any(_same_work(table, other) for other in untraced)
    mine = figures.add([timeline_figure([table], source)], table.title) if is_alone else []
    return Traced(Grid(table.title, grid.heads, grid.rows, grid.notes), mine)


def _same_work(table: Table, other: Table) -> bool:
    return all(table[name] == other[name] for name in STREAM if name != "traced")


def _section(index: int, table: Table, strategy: StrategyTable, source: Source, figures: _Figures) -> Section:
    from launchopt.report.figures.batches import batch_figure
    from launchopt.report.figures.frontier import frontier_figures, is_sweep
    from launchopt.report.figures.latency import latency_figure
    from launchopt.report.figures.stages import time_figure
    from launchopt.report.figures.timeline import timeline_figure

    twins = [other for other in source.tables if other["traced"] and _same_work(table, other)]
    frontiers = [one for one in source.frontiers if _is_of(one, table)]
    sweeps = [one for one in frontiers if is_sweep(one)]
    found: list[Figure | Absent] = [figure for one in frontiers for figure in frontier_figures(one)]
    found += [*([] if sweeps else [time_figure(strategy)]), latency_figure(table, source.histograms)]
    found += [batch_figure(table, source.histograms), timeline_figure([table, *twins], source)]
    tokens = grids.tokens(table)
    first, rest = (
        (map(grids.frontier, sweeps), grids.remedies(strategy)) if sweeps else ([grids.remedies(strategy)], None)
    )
    first_row = table.lines[0].rows[0]
    return Section(
        anchor=f"work-{index}",
        title=table.title,
        subtitle=table.subtitle,
        arrivals="" if first_row["arrival"] == "closed" else arrivals(first_row),
        answers=[answer for one in sweeps for answer in frontier_answer(one)],
        grids=[*first, *([tokens] if tokens else [])],
        more=[*([rest] if rest else []), grids.everything(table)],
        refused=refusals(strategy),
        figures=figures.add(found, table.title),
    )


def _is_of(frontier: Frontier, table: Table) -> bool:
    return all(frontier[name] == table[name] for name in STREAM)

"""The report as one HTML file that needs no other file.

In: a `Source`. Out: the text of the page. A template escapes every value; figures are JSON. Needs Altair, Jinja and
vl-convert (the `report` extra).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from launchopt.analysis.tables.markdown import TOKENS_LEGEND
from launchopt.analysis.tables.rows import Table
from launchopt.analysis.tables.strategies_markdown import LEGEND as MODES_LEGEND
from launchopt.analysis.verdict.markdown import LEGEND as VERDICT_LEGEND
from launchopt.distribution import install_command, missing
from launchopt.errors import PackageError, printable
from launchopt.report.environment import Environment, environment
from launchopt.report.glance import glance_grid, glances
from launchopt.report.grids import Grid
from launchopt.report.source import Source
from launchopt.report.tiles import Tile, subtitle, tiles, title, verdict_sentences
from launchopt.report.titles import stream_names
from launchopt.report.warnings import Caution, severities, warnings

if TYPE_CHECKING:
    from launchopt.report.sections import Figures, Numbered, Section, Traced

MOST_OPEN = 3  # sections that are open at first; if there are more, all are closed


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that the template shows."""

    title: str
    subtitle: str
    first_figures: list[Numbered]
    sentences: list[str]
    warnings: list[Caution]
    counted: str
    tiles: list[Tile]
    glance: Grid
    sections: list[Section]
    machine_figures: list[Numbered]
    traced: list[Traced]
    absent: Grid | None
    environment: Environment
    legends: list[tuple[str, str]]

    @property
    def is_long(self) -> bool:
        """Whether sections are closed at first, and can be searched."""
        return len(self.sections) > MOST_OPEN

    @property
    def workloads(self) -> list[str]:
        """Names of the workloads."""
        return list(dict.fromkeys(section.workload for section in self.sections))

    @property
    def dtypes(self) -> list[str]:
        """Names of the dtypes."""
        return list(dict.fromkeys(section.dtype for section in self.sections))


def page_html(source: Source, answer: Sequence[str] = ()) -> str:
    """Return the whole page; PackageError if the report extra is missing. answer: lines above the verdict."""
    if lacking := missing("altair", "jinja2", "vl_convert"):
        raise PackageError("--html", lacking, install_command("report"))
    import jinja2

    from launchopt.report.scripts import inline, inline_json, policy, vega_bundle
    from launchopt.report.sections import Figures

    figures = Figures()
    page = _page(source, figures)
    bundle, script = inline(vega_bundle()), inline(_asset("page.js"))
    template = jinja2.Environment(
        autoescape=True,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    ).from_string(_asset("page.html"))
    return template.render(
        page=page,
        answer=answer,
        policy=policy(bundle, script),
        style=inline(_asset("page.css")),
        specs=inline_json({one.id: one.figure.spec for one in figures.drawn}),
        bundle=bundle,
        script=script,
    ).lstrip()


def _printable(value: object) -> object:
    """Return the value of an expression for the page; control characters and bidi marks of a text are escaped."""
    return printable(value) if type(value) is str else value  # a Markup of ours stays as it is


def _asset(name: str) -> str:
    return resources.files("launchopt.report").joinpath("assets", name).read_text(encoding="utf-8")


def _page(source: Source, figures: Figures) -> Page:
    from launchopt.report import sections
    from launchopt.report.figures.speedup import modes_figure, streams_figure

    found, traced = glances(source.tables), [table for table in source.tables if table["traced"]]
    is_alone = len(found) == 1
    first = modes_figure(source.strategies[0]) if is_alone else streams_figure(found) if found else None
    first_figures = figures.add([first], found[0].name if is_alone else "all streams") if first else []
    parts = [
        sections.section(index, one, strategy, source, figures, is_alone=is_alone)
        for index, (one, strategy) in enumerate(zip(found, source.strategies, strict=True), 1)
    ]
    traced_names = stream_names([table.lines[0].rows[0] for table in traced])
    cautions = warnings(source)
    machine_figures = _machine(source, figures)
    shown = [sections.traced(table, name, source, figures) for table, name in zip(traced, traced_names, strict=True)]
    return Page(
        title=title(source),
        subtitle=subtitle(source),
        first_figures=first_figures,
        sentences=verdict_sentences(found, source.diagnoses),
        warnings=cautions,
        counted=severities(cautions),
        tiles=tiles(source),
        glance=glance_grid(found, [part.anchor for part in parts]),
        sections=parts,
        machine_figures=machine_figures,
        traced=shown,
        absent=figures.absent_grid(),
        environment=environment(source),
        legends=_legends(source, figures),
    )


def _machine(source: Source, figures: Figures) -> list[Numbered]:
    """Return a roofline per device, and the stages of a launch that the doctor measured."""
    from launchopt.report.figures.roofline import roofline_figure
    from launchopt.report.figures.stages import stages_figure

    by_device: dict[str, list[Table]] = {}
    for table in source.tables:
        if not table["traced"]:
            by_device.setdefault(str(table["gpu"] or table["device"].upper()), []).append(table)
    rooflines = [roofline_figure(device, members) for device, members in by_device.items()]
    return figures.add([*rooflines, *map(stages_figure, source.calibrations)], "all streams")


def _legends(source: Source, figures: Figures) -> list[tuple[str, str]]:
    """Return how to read tables and figures, each once. A sentence on a GPU is left out if there is none."""
    texts = [("Tables of modes", MODES_LEGEND), ("Predicted times", VERDICT_LEGEND)]
    texts += [("Tokens", TOKENS_LEGEND)] if any(table.has_tokens for table in source.tables) else []
    texts += figures.readings()
    has_gpu = any(table["device"] == "cuda" for table in source.tables)
    return [(name, text.replace("`", "") if has_gpu else _without_gpu(text)) for name, text in texts]


def _without_gpu(text: str) -> str:
    sentences = text.replace("`", "").split(". ")
    kept = [sentence for sentence in sentences if "GPU" not in sentence and "CUPTI" not in sentence]
    return ". ".join(kept).rstrip(".") + "."

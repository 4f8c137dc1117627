"""Turns the Parquet of runs into tables that a person can read.

    launchopt report DIR...                     tables here; Markdown in DIR/report.md
    launchopt report DIR... --plot speedup.svg  and a picture
    launchopt report DIR... --frontier --slo-p99-us 500     which bucket size, which timeout? (--plot: a picture)
    launchopt report DIR... --strategies        all modes on each workload: gains, costs, break-even (and --plot)
    launchopt report DIR... --waterfall         what each choice of a stack brings (and --plot, --json)
    launchopt report DIR... --html              one self-contained page in DIR/report.html, or --html FILE.html
    launchopt report DIR... --json              the rows of the tables as JSON, or --json FILE.json beside the tables
    launchopt report DIR... --pr                Markdown for a pull request: verdict, one table, environment
    launchopt report RUN --timeline FILE.json   the recorded launches of one run, for ui.perfetto.dev (.json.gz too)
    launchopt report --readme README.md         refresh the tables inside a README (--check: only check them)

In: every summary.parquet (--frontier: and histograms.parquet; --strategies, --waterfall: and manifest.json) at or below
the folders. Out: on a terminal tables about 140 characters wide, elsewhere Markdown, whose tables have up to 8 columns;
Markdown with all columns in `report.md`, `frontier.md`, `strategies.md` or `waterfall.md` in the first folder, or in
--output. An objective is saved beside frontier.md in `frontier.json`, and holds until another is given. In a README,
the text between `<!-- report:FOLDER -->` and `<!-- /report:FOLDER -->` is replaced: by the waterfalls if FOLDER has
runs with some; by the frontier if it has a frontier.json; by the strategies if it has a strategies.md, or comes from
an experiment that compares them; else by the tables. FOLDER is relative to the folder of the README. It may be a file:
advice.json, advised.json, goals.json, step_goals.json, two_gpus.json, weight_goals.json, which_strategy.json (modules
of runner/report) or a calibration.
Between `<!-- matrix -->` and `<!-- /matrix -->` the output of `launchopt matrix` is put.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote

from launchopt.analysis.frontier.markdown import frontier_markdown
from launchopt.analysis.frontier.points import HISTOGRAMS_USED, Frontier, build_frontiers
from launchopt.analysis.tables.as_json import tables_json
from launchopt.analysis.tables.markdown import report_markdown, sync_blocks
from launchopt.analysis.tables.rows import build_tables
from launchopt.analysis.tables.strategies import StrategyTable, build_strategies
from launchopt.analysis.tables.strategies_markdown import strategies_markdown
from launchopt.analysis.verdict.calibration import calibration_markdown, read_calibration
from launchopt.errors import DataError
from launchopt.files import read_json, save_text
from launchopt.recording import results
from runner.bench import account, figures
from runner.config.renamed import current_word, current_words
from runner.ending import end
from runner.profiles import ncu
from runner.reading import (
    STDOUT,
    CommandParser,
    add_json,
    exit_code,
    file_named,
    page_code,
    positive,
    put_json,
    read_page,
    save_page,
    whole_number,
)
from runner.report import (
    advice,
    advised,
    goals,
    profilers,
    provenance,
    step_goals,
    two_gpus,
    waterfall,
    weight_goals,
    which_strategy,
)
from runner.report.page import html, publish, pull_request, require_own, timeline
from runner.report.pictures import FORMATS, draw_frontiers, draw_speedups, draw_strategies
from runner.report.screen import print_frontiers, print_strategies, print_tables

FRONTIER_FILE = "frontier.json"
STRATEGIES_FILE = "strategies.md"
KINDS = ("frontier", "strategies", "waterfall", "html", "pr", "timeline")
FILES: Mapping[str, Callable[[Path], str]] = {
    each.FILE: each.markdown for each in (advice, advised, goals, step_goals, two_gpus, weight_goals, which_strategy)
}
STRATEGIES_EXPERIMENTS = {"experiment=strategies", "experiment=qkv"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    parser = _parser()
    options = parser.parsed(current_words(sys.argv[1:] if argv is None else argv))
    if not options.folders and options.readme is None:
        parser.error("name a folder with results, or a README with --readme")
    if options.check and (options.readme is None or options.folders):
        parser.error("--check goes with --readme alone")
    kinds = [name for name in KINDS if getattr(options, name) not in (None, False)]
    if not options.folders and (options.output or options.plot or kinds):
        parser.error(f"--output, --plot, {_flags(KINDS[:-1])} and --{KINDS[-1]} need a folder with results")
    if len(kinds) > 1:
        parser.error(f"{_flags(kinds[:-1])} and --{kinds[-1]} are {len(kinds)} reports: ask for one")
    if options.slo_p99_us is not None and not {"frontier", "html"} & set(kinds):
        parser.error("--slo-p99-us goes with --frontier or --html")
    if {"html", "pr", "timeline"} & set(kinds) and (options.output or options.plot):
        parser.error(f"--output and --plot do not go with --{kinds[0]}")
    if options.json is not None and (kinds not in ([], ["waterfall"]) or not options.folders):
        parser.error("--json goes with DIR, for the rows of the tables, or with --waterfall")
    if options.timeline_limit is not None and options.timeline is None:
        parser.error("--timeline-limit goes with --timeline")
    return exit_code(lambda: _report(kinds[0] if kinds else "", options))


def _report(kind: str, options: argparse.Namespace) -> int:
    _make(kind, options)
    page: Path | None = options.readme
    if page is None:
        return 0
    return page_code(page, sync_readme(page, check=options.check), f"report --readme {quote(str(page))}")


def _make(kind: str, options: argparse.Namespace) -> None:
    """Make the report of a kind; without a kind the tables."""
    folders: list[Path] = options.folders
    if folders and not options.force and not options.output:
        require_own(_folder(folders[0]), kind, options.html)
    if kind == "frontier":
        frontier(folders, options.slo_p99_us, options.output, options.plot)
    elif kind == "strategies":
        strategies(folders, options.output, options.plot)
    elif kind == "waterfall":
        waterfall.waterfall(folders, options.output, options.plot, options.json)
    elif kind == "html":
        folder = _folder(folders[0])
        slo_p99_us = options.slo_p99_us or _kept_slo(folder / FRONTIER_FILE)
        html(folders, folder / "report.html" if options.html == Path() else options.html, slo_p99_us)
    elif kind == "pr":
        pull_request(folders)
    elif kind == "timeline":
        timeline(folders, options.timeline, options.timeline_limit)
    elif folders:
        report(folders, options.output, options.plot, options.json)


def report(
    folders: Sequence[Path], output: Path | None = None, plot: Path | None = None, as_json: Path | None = None
) -> None:
    """Print the tables of `folders`, write their Markdown, and a plot and JSON where asked for.

    as_json: STDOUT prints JSON instead of the tables. Raises DataError for folders that cannot be read and files that
    cannot be written.
    """
    tables = build_tables(results.read_summaries(folders))
    if as_json != STDOUT:
        shown, piped = (report_markdown(tables, kind) for kind in ("full", "piped"))
        path = output or _folder(folders[0]) / "report.md"
        publish(shown, path, lambda screen: print_tables(tables, screen), piped)
    put_json(as_json, tables_json(tables))
    if plot is not None:
        draw_speedups(tables, plot)


def frontier(
    folders: Sequence[Path], slo_p99_us: float | None = None, output: Path | None = None, plot: Path | None = None
) -> None:
    """Print the frontiers of `folders`; write their Markdown, the objective, and a plot where asked for.

    Without an objective, that of the first folder's frontier.json holds. A new one is saved there, unless `output`
    keeps the folder unchanged. Raises DataError as `report` does.
    """
    kept = _folder(folders[0]) / FRONTIER_FILE
    slo_p99_us = slo_p99_us or _kept_slo(kept)
    frontiers = _frontiers(folders, slo_p99_us)
    shown = f"{frontier_markdown(frontiers, 'full')}\n{provenance.line(folders)}"
    publish(shown, output or kept.with_name("frontier.md"), lambda screen: print_frontiers(frontiers, screen))
    if slo_p99_us is not None and output is None:
        save_text(kept, json.dumps({"slo_p99_us": slo_p99_us}) + "\n")
    if plot is not None:
        draw_frontiers(frontiers, plot)


def strategies(folders: Sequence[Path], output: Path | None = None, plot: Path | None = None) -> None:
    """Print a table of all modes per workload of `folders`; write their Markdown, and a plot where asked for.

    Raises DataError as `report` does.
    """
    tables = _strategies(folders)
    shown = f"{strategies_markdown(tables, 'full')}\n{provenance.line(folders)}"
    publish(shown, output or _folder(folders[0]) / STRATEGIES_FILE, lambda screen: print_strategies(tables, screen))
    if plot is not None:
        draw_strategies(tables, plot)


def _strategies(folders: Sequence[Path]) -> list[StrategyTable]:
    refusals = {str(each.get("run_id")): each.get("refused") or {} for each in results.read_manifests(folders)}
    tables = build_strategies(results.read_summaries(folders), refusals)
    if not tables:
        raise DataError(folders[0], None, "no untraced run: the times of a traced one decide nothing")
    return tables


def _compares_strategies(folder: Path) -> bool:
    """Return whether a folder has a report of all modes, or comes from an experiment that compares them."""
    if any((folder / name).is_file() for name in (STRATEGIES_FILE, "remedies.md")):  # the second: of version 0.1
        return True
    overrides = (map(current_word, each.get("overrides", [])) for each in results.read_manifests([folder]))
    return any(STRATEGIES_EXPERIMENTS & set(each) for each in overrides)


def _frontiers(folders: Sequence[Path], slo_p99_us: float | None) -> list[Frontier]:
    rows, histograms = results.read_summaries(folders), results.read_histograms(folders, HISTOGRAMS_USED)
    frontiers = build_frontiers(rows, histograms, slo_p99_us)
    if not frontiers:
        raise DataError(folders[0], None, "no untraced run: the times of a traced one decide nothing")
    return frontiers


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _kept_slo(path: Path) -> float | None:
    return _read_slo(path) if path.is_file() else None


def _read_slo(path: Path) -> float | None:
    try:
        slo_p99_us = read_json(path)["slo_p99_us"]
        return None if slo_p99_us is None else positive(str(slo_p99_us))
    except (OSError, ValueError, TypeError, KeyError, argparse.ArgumentTypeError) as error:
        raise DataError(path, None, f'not an objective like {{"slo_p99_us": 500}} ({error})') from None


def sync_readme(readme: Path, *, check: bool = False) -> bool:
    """Refresh the tables inside `readme`, or only compare with `check`. Return whether they are current afterwards.

    Raises DataError for a README or a folder that cannot be read, and for markers that do not pair up.
    """
    old = read_page(readme)
    from runner.matrix import MARKS, sync_matrix  # imports Hydra and the workloads, which other reports do not need

    new = sync_matrix(old, readme)
    if MARKS[0] not in old or "<!-- report:" in old:
        new = sync_blocks(new, readme, lambda name: _measured_block(readme.parent / name))
    return save_page(readme, old, new, check=check)


def _measured_block(folder: Path) -> str:
    """Return the Markdown of `folder`, and below it the sentence that says where it comes from."""
    block = _block(folder).rstrip()  # first: it names a folder that does not exist
    where = provenance.short_line(folder) if folder.name == advice.FILE else provenance.line([folder])
    return f"{block}\n\n{where}"


def _block(folder: Path) -> str:
    """Return the Markdown of `folder`, or of a file: advice, goals, fastest modes by requests, a calibration."""
    if (named := FILES.get(folder.name)) is not None:
        return named(folder)
    if folder.is_file():
        return calibration_markdown(read_calibration(folder))
    if any(folder.rglob(profilers.AGREEMENTS)):
        return profilers.markdown(folder)
    if (folder / account.FILE).is_file():
        return account.markdown(folder)
    if ncu.profiles(folder):
        return ncu.markdown(folder)
    if (folder / "bench.parquet").is_file():
        return figures.markdown(folder)
    if waterfall.is_waterfall(folder):
        return waterfall.compact(folder)
    if (folder / FRONTIER_FILE).is_file():
        return frontier_markdown(_frontiers([folder], _read_slo(folder / FRONTIER_FILE)), "compact")
    if _compares_strategies(folder):
        return strategies_markdown(_strategies([folder]), "compact")
    return report_markdown(build_tables(results.read_summaries([folder])), "compact")


def _flags(names: Sequence[str]) -> str:
    return ", ".join(f"--{name}" for name in names)


def _parser() -> CommandParser:
    parser = CommandParser("report", __doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="DIR", help="folder with results, at any depth")
    parser.add_argument("--output", type=file_named(".md"), metavar="FILE.md", help="where the Markdown goes")
    parser.add_argument("--plot", type=file_named(*FORMATS), metavar="FILE.svg", help="the same as a picture")
    parser.add_argument("--frontier", action="store_true", help="throughput against tail latency, instead of speed-ups")
    parser.add_argument("--strategies", action="store_true", help="all modes side by side: gains, costs, break-even")
    parser.add_argument("--waterfall", action="store_true", help="what each choice of a stack brings")
    parser.add_argument(
        "--slo-p99-us", type=positive, metavar="X", help="recommend a point whose p99 latency keeps this"
    )
    page = file_named(".html", is_optional=True)
    parser.add_argument("--html", nargs="?", const=Path(), type=page, metavar="FILE.html", help="one page")
    parser.add_argument("--pr", action="store_true", help="print Markdown for a pull request")
    parser.add_argument(
        "--timeline",
        type=file_named(".json", ".json.gz"),
        metavar="FILE.json[.gz]",
        help="a recorded run for ui.perfetto.dev",
    )
    parser.add_argument(
        "--timeline-limit", type=whole_number(1), metavar="N", help="rows that a timeline may show (300,000)"
    )
    add_json(parser)
    parser.add_argument("--force", action="store_true", help="replace a report in DIR that launchopt did not make")
    parser.add_argument("--readme", type=Path, metavar="FILE.md", help="refresh the tables inside this file")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the README is out of date")
    return parser


if __name__ == "__main__":
    end(main)

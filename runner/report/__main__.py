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
advice.json, advised.json, goals.json, kernel_times.json, several_gpus.json, step_goals.json, weight_goals.json,
which_strategy.json (modules of runner/report) or a calibration.
Between `<!-- matrix -->` and `<!-- /matrix -->` the output of `launchopt matrix` is put.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from launchopt.messages import print_error
from runner.config.typed.renamed import current_words
from runner.ending import end
from runner.output_names import STDOUT, file_named
from runner.reading import CommandParser, add_json, exit_code, page_code, positive, whole_number
from runner.report import waterfall
from runner.report.blocks import sync_readme
from runner.report.page import html, pull_request, require_own, timeline
from runner.report.pictures import FORMATS
from runner.report.tables import FRONTIER_FILE, folder_of, frontier, kept_slo, report, strategies, unfinished

KINDS = ("frontier", "strategies", "waterfall", "html", "pr", "timeline")


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
    for line in unfinished(folders):
        print_error(line, "note")
    writes_page = bool(folders) and not options.output and options.json != STDOUT  # JSON alone writes no Markdown
    if writes_page and not options.force:
        require_own(folder_of(folders[0]), kind, options.html)
    if kind == "frontier":
        frontier(folders, options.slo_p99_us, options.output, options.plot)
    elif kind == "strategies":
        strategies(folders, options.output, options.plot)
    elif kind == "waterfall":
        waterfall.waterfall(folders, options.output, options.plot, options.json)
    elif kind == "html":
        folder = folder_of(folders[0])
        slo_p99_us = options.slo_p99_us or kept_slo(folder / FRONTIER_FILE)
        html(folders, folder / "report.html" if options.html == Path() else options.html, slo_p99_us)
    elif kind == "pr":
        pull_request(folders)
    elif kind == "timeline":
        timeline(folders, options.timeline, options.timeline_limit)
    elif folders:
        report(folders, options.output, options.plot, options.json)


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

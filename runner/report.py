"""Turns the Parquet of runs into tables that a person can read.

    python -m runner.report DIR...                     tables here; Markdown in DIR/report.md
    python -m runner.report DIR... --plot speedup.svg  and a picture
    python -m runner.report DIR... --frontier --slo-p99-us 500     which bucket size, which timeout? (--plot: a picture)
    python -m runner.report --readme README.md         refresh the tables inside a README (--check: are they?)

In: every summary.parquet (--frontier: and histograms.parquet) at or below the folders. Out: on a terminal tables
about 140 characters wide, elsewhere the Markdown itself; the Markdown in `report.md` (--frontier: `frontier.md`)
inside the first folder, or in --output. An objective is kept beside frontier.md in `frontier.json`, and holds until
another is given. In a README what stands between `<!-- report:FOLDER -->` and `<!-- /report:FOLDER -->` is replaced,
by the frontier where FOLDER has a frontier.json; FOLDER is relative to the folder of the README.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table as RichTable

from launchopt import results
from launchopt.analysis.frontier import HISTOGRAMS_USED, Frontier, build_frontiers
from launchopt.analysis.frontier_markdown import frontier_answer, frontier_grid, frontier_markdown, frontier_title
from launchopt.analysis.frontier_plot import draw_frontiers
from launchopt.analysis.markdown import (
    Column,
    T,
    grid,
    report_markdown,
    sync_blocks,
    tokens_grid,
)
from launchopt.analysis.plot import draw_speedups
from launchopt.analysis.tables import Table, build_tables, stream_subtitle
from launchopt.errors import DataError, LaunchoptError
from runner.bench import figures

FRONTIER_FILE = "frontier.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    if not options.folders and options.readme is None:
        parser.error("name a folder with results, or a README with --readme")
    if options.check and (options.readme is None or options.folders):
        parser.error("--check goes with --readme alone")
    if not options.folders and (options.output or options.plot or options.frontier):
        parser.error("--output, --plot and --frontier need a folder with results")
    if options.slo_p99_us is not None and not options.frontier:
        parser.error("--slo-p99-us goes with --frontier")
    try:
        if options.folders and options.frontier:
            frontier(options.folders, options.slo_p99_us, options.output, options.plot)
        elif options.folders:
            report(options.folders, options.output, options.plot)
        is_current = options.readme is None or sync_readme(options.readme, check=options.check)
    except LaunchoptError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if not is_current:
        print(
            f"{options.readme}: out of date: run python -m runner.report --readme {options.readme}",
            file=sys.stderr,
        )
    return 0 if is_current else 1


def report(folders: Sequence[Path], output: Path | None = None, plot: Path | None = None) -> None:
    """Print the tables of `folders` and write their Markdown, and a plot where asked for.

    Raises DataError for folders that cannot be read and files that cannot be written.
    """
    tables = build_tables(results.read_summaries(folders))
    markdown = report_markdown(tables, "full")
    if sys.stdout.isatty():
        _print_tables(tables, Console())
    else:
        print(markdown, end="")
    # Written after it was printed: a folder that is read-only still shows its tables.
    _write(output or _folder(folders[0]) / "report.md", markdown)
    if plot is not None:
        try:
            draw_speedups(tables, plot)
        except OSError as error:
            raise DataError(plot, None, f"cannot be written ({error.strerror})") from None


def frontier(
    folders: Sequence[Path], slo_p99_us: float | None = None, output: Path | None = None, plot: Path | None = None
) -> None:
    """Print the frontiers of `folders` and write their Markdown, the objective, and a plot where asked for.

    Without an objective that of the first folder's frontier.json holds. One that is given is kept there, unless
    `output` says that nothing is to be left in the folder. Raises DataError as `report` does.
    """
    kept = _folder(folders[0]) / FRONTIER_FILE
    if slo_p99_us is None and kept.is_file():
        slo_p99_us = _read_slo(kept)
    frontiers = _frontiers(folders, slo_p99_us)
    markdown = frontier_markdown(frontiers, "full")
    if sys.stdout.isatty():
        _print_frontiers(frontiers, Console())
    else:
        print(markdown, end="")
    _write(output or kept.with_name("frontier.md"), markdown)
    if slo_p99_us is not None and output is None:
        _write(kept, json.dumps({"slo_p99_us": slo_p99_us}) + "\n")
    if plot is not None:
        try:
            draw_frontiers(frontiers, plot)
        except OSError as error:
            raise DataError(plot, None, f"cannot be written ({error.strerror})") from None


def _frontiers(folders: Sequence[Path], slo_p99_us: float | None) -> list[Frontier]:
    rows, histograms = results.read_summaries(folders), results.read_histograms(folders, HISTOGRAMS_USED)
    frontiers = build_frontiers(rows, histograms, slo_p99_us)
    if not frontiers:
        raise DataError(folders[0], None, "no untraced run: the times of a traced one decide nothing")
    return frontiers


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _read_slo(path: Path) -> float | None:
    try:
        slo_p99_us = json.loads(path.read_text(encoding="utf-8"))["slo_p99_us"]
        return None if slo_p99_us is None else positive(slo_p99_us)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(path, None, f'not an objective like {{"slo_p99_us": 500}} ({error})') from None


def positive(text: str) -> float:
    """A number above 0; ValueError for what is not one."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{value:g} is not above 0")
    return value


def sync_readme(readme: Path, *, check: bool = False) -> bool:
    """Bring the tables inside `readme` up to date, or only look with `check`; whether they are so now.

    Raises DataError for a README or a folder that cannot be read, and for markers that do not pair up.
    """
    try:
        old = readme.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise DataError(readme, None, f"cannot be read ({error})") from None

    def render(name: str) -> str:
        if (readme.parent / name / "bench.parquet").is_file():
            return figures.markdown(readme.parent / name)
        if (readme.parent / name / FRONTIER_FILE).is_file():
            slo_p99_us = _read_slo(readme.parent / name / FRONTIER_FILE)
            return frontier_markdown(_frontiers([readme.parent / name], slo_p99_us), "compact")
        return report_markdown(build_tables(results.read_summaries([readme.parent / name])), "compact")

    new = sync_blocks(old, readme, render)
    if new == old:
        return True
    if not check:
        _write(readme, new)
    return not check


def _parser() -> argparse.ArgumentParser:
    summary, _, details = (__doc__ or "").partition("\n\n")
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("runner.report", None, summary, details, formatter_class=formatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="DIR", help="folder with results, at any depth")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="where the Markdown goes")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="speed-ups (or the frontier) as a picture")
    parser.add_argument("--frontier", action="store_true", help="throughput against tail latency, instead of speed-ups")
    parser.add_argument(
        "--slo-p99-us", type=positive, metavar="X", help="recommend a point whose p99 latency keeps this"
    )
    parser.add_argument("--readme", type=Path, metavar="FILE.md", help="refresh the tables inside this file")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the README is out of date")
    return parser


def _print_tables(tables: Sequence[Table], console: Console) -> None:
    for table in tables:
        columns, cells, notes = grid(table, "terminal")
        _print_table(console, table.title, table.subtitle, columns, cells)
        numbered = [f"({index}) {note}" for index, note in enumerate(notes, 1)]
        for note in [*numbered, *([str(table.peer)] if table.peer else [])]:
            console.print(f"  {escape(note)}", style="dim")
        if table.has_tokens:
            _print_table(console, "tokens", table.subtitle, *tokens_grid(table, "terminal"))


def _print_frontiers(frontiers: Sequence[Frontier], console: Console) -> None:
    for one in frontiers:
        _print_table(console, frontier_title(one), stream_subtitle(one.stream), *frontier_grid(one, "terminal"))
        for answer in frontier_answer(one):
            console.print(f"  {escape(answer)}")


def _print_table(
    console: Console, title: str, caption: str, columns: Sequence[Column[T]], cells: Sequence[Sequence[str]]
) -> None:
    # Texts of others (a status, a path) may hold brackets, which are markup to rich.
    view = RichTable(title=escape(title), caption=escape(caption), box=box.SIMPLE_HEAD)
    view.title_justify = view.caption_justify = "left"
    for column in columns:
        side: JustifyMethod = "left" if column.is_text else "right"
        heading = column.heading.replace(" ", "\n", 1)
        view.add_column(heading, justify=side, no_wrap=not column.is_text, overflow="fold")
    for line in cells:
        view.add_row(*map(escape, line))
    console.print(view)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    raise SystemExit(main())

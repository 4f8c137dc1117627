"""Turns the Parquet of runs into tables that a person can read.

    python -m runner.report DIR...                     tables here; Markdown in DIR/report.md
    python -m runner.report DIR... --plot speedup.svg  and a picture
    python -m runner.report --readme README.md         refresh the tables inside a README (--check: are they?)

In: every summary.parquet at or below the folders. Out: on a terminal tables about 140 characters wide,
elsewhere the Markdown itself; the Markdown in `report.md` inside the first folder, or in --output. In a
README what stands between `<!-- report:FOLDER -->` and `<!-- /report:FOLDER -->` is replaced; FOLDER is
relative to the folder of the README.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table as RichTable

from launchopt import results
from launchopt.analysis.markdown import grid, report_markdown, sync_blocks
from launchopt.analysis.plot import draw_speedups
from launchopt.analysis.tables import Table, build_tables
from launchopt.errors import DataError, LaunchoptError
from runner.bench import figures


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    if not options.folders and options.readme is None:
        parser.error("name a folder with results, or a README with --readme")
    if options.check and (options.readme is None or options.folders):
        parser.error("--check goes with --readme alone")
    if not options.folders and (options.output or options.plot):
        parser.error("--output and --plot need a folder with results")
    try:
        if options.folders:
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
    first = folders[0] if folders[0].is_dir() else folders[0].parent
    _write(output or first / "report.md", markdown)
    if plot is not None:
        try:
            draw_speedups(tables, plot)
        except OSError as error:
            raise DataError(plot, None, f"cannot be written ({error.strerror})") from None


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
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="speed-ups as a picture (needs matplotlib)")
    parser.add_argument("--readme", type=Path, metavar="FILE.md", help="refresh the tables inside this file")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the README is out of date")
    return parser


def _print_tables(tables: Sequence[Table], console: Console) -> None:
    for table in tables:
        columns, cells, notes = grid(table, "terminal")
        # Texts of others (a status, a path) may hold brackets, which are markup to rich.
        view = RichTable(title=escape(table.title), caption=escape(table.subtitle), box=box.SIMPLE_HEAD)
        view.title_justify = view.caption_justify = "left"
        for column in columns:
            side: JustifyMethod = "left" if column.is_text else "right"
            heading = column.heading.replace(" ", "\n", 1)
            view.add_column(heading, justify=side, no_wrap=not column.is_text, overflow="fold")
        for line in cells:
            view.add_row(*map(escape, line))
        console.print(view)
        numbered = [f"({index}) {note}" for index, note in enumerate(notes, 1)]
        for note in [*numbered, *([str(table.peer)] if table.peer else [])]:
            console.print(f"  {escape(note)}", style="dim")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    raise SystemExit(main())

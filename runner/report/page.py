"""Files that `python -m runner.report` writes for others: the HTML page, Markdown for a pull request, a timeline.

In: folders with runs. Out: files, under a temporary name until they are whole, and a line about each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from launchopt.errors import DataError, one_line
from launchopt.files import save_text
from launchopt.messages import say
from launchopt.reading.ownership import foreign
from launchopt.report.perfetto import DEFAULT_LIMIT, write_timeline
from launchopt.report.source import read_source
from runner.screen.pager import console

DEFAULT_FILES = {
    "": "report.md",
    "frontier": "frontier.md",
    "strategies": "strategies.md",
    "waterfall": "waterfall.md",
    "html": "report.html",
}


def publish(markdown: str, path: Path, show: Callable[[Console], None], piped: str | None = None) -> None:
    """Show the report on a terminal, else print its Markdown; write the Markdown to `path`.

    piped: shorter Markdown to print instead.
    """
    is_terminal = sys.stdout.isatty()
    if is_terminal:
        show(console())
    else:
        print(markdown if piped is None else piped, end="")
    # Print before writing, so that the tables of a read-only folder still appear.
    save_text(path, markdown)
    if is_terminal:
        print(f"all columns: {one_line(path)}")
    elif piped is not None:
        print(f"all columns: {one_line(path)}", file=sys.stderr)


def require_own(folder: Path, kind: str, page: Path | None) -> None:
    """Raise DataError if the report of a kind would replace a file in `folder` that this program did not make.

    page: the file that the user named for an HTML page; the current folder for none.
    """
    name = DEFAULT_FILES.get(kind)
    if name is None or page not in (None, Path()):
        return
    if (path := foreign(folder, (name,))) is not None:
        raise DataError(path, None, "was not made by launchopt; --force replaces it")


def html(folders: Sequence[Path], path: Path, slo_p99_us: float | None = None) -> None:
    """Write the page of `folders` to `path`, and print its size.

    Raises PackageError without the report extra, DataError for files that cannot be read or written.
    """
    from launchopt.report.page import page_html

    text = page_html(read_source(folders, slo_p99_us))
    save_text(path, text)
    say(f"wrote {path}: {len(text.encode()) / 1e6:.1f} MB, {text.count('<figure ')} figures")


def pull_request(folders: Sequence[Path]) -> None:
    """Print Markdown for a pull request."""
    from launchopt.report.pull_request import pull_request_markdown

    print(pull_request_markdown(read_source(folders)), end="")


def timeline(folders: Sequence[Path], path: Path, limit: int | None = None) -> None:
    """Write the recordings of one run as a timeline, and print the number of rows cut."""
    limit = limit or DEFAULT_LIMIT
    done = write_timeline(folders, path, limit)
    if done.shown < done.recorded:
        cut = f"{done.shown:,} of {done.recorded:,} recorded rows are shown: the first launches of every repeat"
        print(f"cut: {cut} (--timeline-limit {limit})", file=sys.stderr)
    say(f"wrote {path}: {done.shown:,} rows of {done.repeats} repeats; open it at https://ui.perfetto.dev")

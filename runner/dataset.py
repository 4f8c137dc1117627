"""Merges all runs below some folders into one Parquet file, whatever version wrote them, or prints what columns mean.

    launchopt dataset outputs --output all.parquet                      summaries of every run
    launchopt dataset outputs --table kernels --output kernels.parquet
    launchopt dataset s3://bucket/runs outputs --output all.parquet     needs the extra s3
    launchopt dataset --columns                                         every column of every table, as Markdown

In: every TABLE.parquet at or below the folders. Out: one file in today's schema with the columns `folder` and `machine`
before the others. Rows stay in path order. A few runs are in memory at a time. A copy of a run is left out.

It refuses runs of the same work that must not be compared: of another machine, GPU driver or CUDA library, with another
seed or other settings of the work, and traced beside untraced runs. --force merges them all the same; `machine` tells
machines apart, `traced` traced runs. Failed and throttled repeats stay in the file: see `status` and `throttled`.

--page FILE.md refreshes the columns between `<!-- columns -->` and `<!-- /columns -->` of that page; with --check it
only checks them.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.analysis.comparison.mixture import KEY_COLUMNS, Mixture
from launchopt.analysis.stream_rows import counted
from launchopt.errors import DataError, one_line
from launchopt.files import write_atomically
from launchopt.reading.run_files import Place, place_of
from launchopt.recording.dataset import TABLES, runs, schema_of
from launchopt.recording.manifest import SCHEMA_VERSION
from runner.ending import end
from runner.output_names import file_named
from runner.reading import CommandParser, exit_code, page_code, sync_block

GROUP_ROWS, GROUP_BYTES = 1 << 14, 32 << 20  # a row group of the file has at least one of these


class Gathered(NamedTuple):
    """What a dataset was made of."""

    rows: int
    runs: int
    copies: int  # runs that were found twice


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    parser = _parser()
    options = parser.parsed(argv)
    if not (options.folders or options.columns or options.page):
        parser.error("name a folder with results, or ask for --columns or a --page")
    if options.folders and options.output is None:
        parser.error("missing: --output FILE.parquet, where the rows go")
    return exit_code(lambda: _dataset(options))


def _dataset(options: argparse.Namespace) -> int:
    if options.columns:
        print(columns_markdown(), end="")
    if options.folders:
        places = [place_of(text) for text in options.folders]
        found = gather(places, options.table, options.output, force=options.force)
        word = "copy" if found.copies == 1 else "copies"
        copies = f", {found.copies:,} {word} left out" if found.copies else ""
        print(f"{found.rows:,} rows of {counted(found.runs, 'run')}{copies}: {one_line(options.output)}")
    if options.page is None:
        return 0
    is_current = sync_block(options.page, "columns", columns_markdown(), check=options.check)
    return page_code(options.page, is_current, f"dataset --page {quote(str(options.page))}")


def gather(places: Sequence[Place], table: str, output: Path, *, force: bool = False) -> Gathered:
    """Write all rows of a table below `places` to `output`. Return what was found.

    Raises DataError if there are none, if one cannot be read, if `output` cannot be written, and for runs that must not
    be mixed, unless `force`.
    """
    schema, mixture, rows = schema_of(table), Mixture(force=force), 0
    if not output.parent.is_dir():
        raise DataError(output.parent, None, "no such folder")

    def write(temporary: Path) -> None:
        nonlocal rows
        # pyarrow itself opens no path that is not UTF-8
        with temporary.open("wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for part in _row_groups(_taken(places, table, mixture)):
                writer.write_table(pa.Table.from_batches(part, schema))
                rows += sum(map(len, part))
        if not mixture.runs:
            raise DataError(places[0], None, f"no {table}.parquet here or below")

    try:
        write_atomically(output, write)
    except OSError as error:
        raise DataError(output, None, f"cannot be written ({error.strerror})") from None
    return Gathered(rows, mixture.runs, mixture.copies)


def _taken(places: Sequence[Place], table: str, mixture: Mixture) -> Iterator[pa.RecordBatch]:
    for run in runs(places, table, KEY_COLUMNS):
        if not run.is_usable or (table == "summary" and not run.rows):
            deque(run.batches, 0)  # the file has no rows, or the run cannot be read: reading it says so
        elif mixture.takes(run.folder, run.rows, run.manifest):
            yield from run.batches


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yield the batches in groups, each large enough for a row group of a file."""
    part, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        part.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield part
            part, rows, size = [], 0, 0
    if part:
        yield part


def columns_markdown() -> str:
    """Return every column of every table: its name, type and meaning."""
    lines = [f"Schema version {SCHEMA_VERSION}. A null means: not measured, or there is none; never zero."]
    for name, schema in TABLES.items():
        lines += ["", f"## {name}.parquet", "", "| column | type | what it is |", "| --- | --- | --- |"]
        lines += [f"| `{field.name}` | {_type(field)} | {_doc(field)} |" for field in schema]
    return "\n".join(lines) + "\n"


def _type(field: pa.Field) -> str:
    return str(field.type).replace("double", "float64")


def _doc(field: pa.Field) -> str:
    return str(field.metadata[b"doc"].decode()).replace("|", "\\|")


def _parser() -> CommandParser:
    parser = CommandParser("dataset", __doc__)
    places = "folder with results, at any depth, or s3://BUCKET/FOLDER"
    parser.add_argument("folders", nargs="*", metavar="DIR", help=places)
    parser.add_argument("--table", default="summary", metavar="NAME", help=f"of {', '.join(TABLES)} (default summary)")
    parser.add_argument("--output", type=file_named(".parquet"), metavar="FILE.parquet", help="where the rows go")
    parser.add_argument("--force", action="store_true", help="also merge runs that must not be compared")
    parser.add_argument("--columns", action="store_true", help="what every column means, as Markdown")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="refresh the columns inside this file")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is out of date")
    return parser


if __name__ == "__main__":
    end(main)

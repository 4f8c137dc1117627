"""Puts all runs below some folders into one Parquet file, whatever version wrote them, or prints what its columns mean.

    launchopt dataset outputs --output all.parquet                      summaries of every run
    launchopt dataset outputs --table kernels --output kernels.parquet
    launchopt dataset --columns                                         every column of every table, as Markdown

In: every TABLE.parquet at or below the folders. Out: one file in today's schema with a column `folder` before the
others; rows stay in path order, and one batch is in memory at a time. --page FILE.md refreshes the columns between
`<!-- columns -->` and `<!-- /columns -->` of that page; with --check it only checks them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.errors import DataError, one_line
from launchopt.files import write_atomically
from launchopt.recording.dataset import TABLES, batches, files, schema_of
from launchopt.recording.manifest import SCHEMA_VERSION
from runner.ending import end
from runner.reading import CommandParser, exit_code, file_named, page_code, sync_block


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
        rows, found = gather(options.folders, options.table, options.output)
        print(f"{rows:,} rows of {found:,} files: {one_line(options.output)}")
    if options.page is None:
        return 0
    is_current = sync_block(options.page, "columns", columns_markdown(), check=options.check)
    return page_code(options.page, is_current, f"dataset --page {quote(str(options.page))}")


def gather(folders: Sequence[Path], table: str, output: Path) -> tuple[int, int]:
    """Write all rows of a table below `folders` to `output`. Return the number of rows and of files.

    Raises DataError if there are none, if one cannot be read, or if `output` cannot be written.
    """
    schema, found, rows = schema_of(table), files(folders, table), 0
    if not found:
        raise DataError(folders[0], None, f"no {table}.parquet here or below")
    if not output.parent.is_dir():
        raise DataError(output.parent, None, "no such folder")

    def write(temporary: Path) -> None:
        nonlocal rows
        # pyarrow itself opens no path that is not UTF-8
        with temporary.open("wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for batch in batches(folders, table):
                writer.write_batch(batch)
                rows += len(batch)

    try:
        write_atomically(output, write)
    except OSError as error:
        raise DataError(output, None, f"cannot be written ({error.strerror})") from None
    return rows, len(found)


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
    parser.add_argument("folders", nargs="*", type=Path, metavar="DIR", help="folder with results, at any depth")
    parser.add_argument("--table", default="summary", metavar="NAME", help=f"of {', '.join(TABLES)} (default summary)")
    parser.add_argument("--output", type=file_named(".parquet"), metavar="FILE.parquet", help="where the rows go")
    parser.add_argument("--columns", action="store_true", help="what every column means, as Markdown")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="refresh the columns inside this file")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is out of date")
    return parser


if __name__ == "__main__":
    end(main)

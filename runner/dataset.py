"""All runs below some folders in one Parquet file, whatever version wrote them; and what its columns mean.

    python -m runner.dataset outputs --output all.parquet                      summaries of every run
    python -m runner.dataset outputs --table kernels --output kernels.parquet
    python -m runner.dataset --columns                                         every column of every table, as Markdown

In: every TABLE.parquet at or below the folders. Out: one file in today's schema with a column `folder` before the
others; rows stay in path order, a batch is in memory at a time. Between `<!-- columns -->` and `<!-- /columns -->` of
the page that is named with --page the columns are refreshed (--check: are they as they should be?).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.errors import DataError, LaunchoptError
from launchopt.files import save_text, write_atomically
from launchopt.recording.dataset import TABLES, batches, files, schema_of
from launchopt.recording.manifest import SCHEMA_VERSION
from runner.pager import until_closed

BLOCK = re.compile(r"(<!-- columns -->\n).*?(<!-- /columns -->)", re.DOTALL)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    if not (options.folders or options.columns or options.page):
        parser.error("name a folder with results, or ask for --columns or a --page")
    if options.folders and options.output is None:
        parser.error("--output says where the rows go")
    try:
        if options.columns:
            print(columns_markdown(), end="")
        if options.folders:
            rows, found = gather(options.folders, options.table, options.output)
            print(f"{rows:,} rows of {found:,} files: {options.output}")
        is_current = options.page is None or sync_page(options.page, check=options.check)
    except LaunchoptError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if not is_current:
        print(f"{options.page}: out of date: run python -m runner.dataset --page {options.page}", file=sys.stderr)
    return 0 if is_current else 1


def gather(folders: Sequence[Path], table: str, output: Path) -> tuple[int, int]:
    """Write all rows of a table below `folders` to `output`; how many, and of how many files.

    Raises DataError where there are none, where one cannot be read, and where `output` cannot be written.
    """
    schema, found, rows = schema_of(table), files(folders, table), 0
    if not found:
        raise DataError(folders[0], None, f"no {table}.parquet here or below")
    if not output.parent.is_dir():
        raise DataError(output.parent, None, "no such folder")

    def write(temporary: Path) -> None:
        nonlocal rows
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for batch in batches(folders, table):
                writer.write_batch(batch)
                rows += len(batch)

    try:
        write_atomically(output, write)
    except OSError as error:
        raise DataError(output, None, f"cannot be written ({error.strerror})") from None
    return rows, len(found)


def columns_markdown() -> str:
    """Every column of every table: its name, type and meaning."""
    lines = [f"Schema version {SCHEMA_VERSION}. A null means: not measured, or there is none; never zero."]
    for name, schema in TABLES.items():
        lines += ["", f"## {name}.parquet", "", "| column | type | what it is |", "| --- | --- | --- |"]
        lines += [f"| `{field.name}` | {_type(field)} | {_doc(field)} |" for field in schema]
    return "\n".join(lines) + "\n"


def _type(field: pa.Field) -> str:
    return str(field.type).replace("double", "float64")


def _doc(field: pa.Field) -> str:
    return str(field.metadata[b"doc"].decode()).replace("|", "\\|")


def sync_page(page: Path, *, check: bool = False) -> bool:
    """Refresh the columns inside `page`, or only look with `check`; whether they are as they should be now."""
    try:
        old = page.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise DataError(page, None, f"cannot be read ({error})") from None
    if not BLOCK.search(old):
        raise DataError(page, None, "has no <!-- columns --> with a <!-- /columns --> after it")
    text = columns_markdown()
    new = BLOCK.sub(lambda match: match[1] + text + match[2], old)
    if new != old and not check:
        save_text(page, new)
    return new == old or not check


def _parser() -> argparse.ArgumentParser:
    summary, _, details = (__doc__ or "").partition("\n\n")
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("runner.dataset", None, summary, details, formatter_class=formatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="DIR", help="folder with results, at any depth")
    parser.add_argument("--table", default="summary", metavar="NAME", help=f"of {', '.join(TABLES)} (default summary)")
    parser.add_argument("--output", type=Path, metavar="FILE.parquet", help="where the rows go")
    parser.add_argument("--columns", action="store_true", help="what every column means, as Markdown")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="refresh the columns inside this file")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is out of date")
    return parser


if __name__ == "__main__":
    raise SystemExit(until_closed(main))

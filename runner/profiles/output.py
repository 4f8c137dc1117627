"""What the commands that read profiles have in common (`nsys`, `nsys_compare`, `nsys_agree`, `ncu`): tables, files.

Enters: rows. Leaves: a table on stdout, plain when piped; a Parquet file, whole or not at all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from launchopt.errors import DataError
from launchopt.files import write_atomically
from runner.pager import PIPED_COLUMNS, console

Cell = str | int | float | bool | None


def cell(value: Cell) -> str:
    """As shown: `-` for what there is none of, three decimals, thousands apart."""
    if isinstance(value, str):
        return value
    if value is None:
        return "-"
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], total: Sequence[str] = ()) -> None:
    """The first column is text, the others are numbers; a heading's line breaks are for a terminal only."""
    piped = not sys.stdout.isatty()
    out = console()
    # Rich drops columns that do not fit, a line the terminal wraps loses nothing; a pipe has no width at all.
    out.width = max(out.width, PIPED_COLUMNS)
    table = Table(box=None if piped else box.SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        heading = heading.replace("\n", " ") if piped else heading
        table.add_column(heading, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    if total:
        table.add_section()
        table.add_row(*total)
    out.print(table, markup=False)


def print_notes(notes: Iterable[str]) -> None:
    """Sentences below a table."""
    for note in notes:
        console().print(note, soft_wrap=True, markup=False)


def write_parquet(kind: type[Any], rows: Sequence[Mapping[str, Any]], path: Path, first: Sequence[str] = ()) -> None:
    """Rows with the fields of the dataclass `kind`, after text columns `first`; DataError where that fails."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"str": pa.string(), "int": pa.int64(), "bool": pa.bool_()}
    columns = [(name, pa.string()) for name in first]
    for field in fields(kind):
        name = str(field.type).removesuffix(" | None")
        columns.append((field.name, kinds.get(name, pa.float64())))
    table = pa.Table.from_pylist(list(rows), schema=pa.schema(columns))
    try:
        write_atomically(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({error.strerror or error})") from None

"""Tables and Parquet files of the commands that read profiles: `nsys`, `nsys_compare`, `nsys_agree`, `ncu`, `trace`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len

from launchopt.errors import DataError, printable
from launchopt.files import write_atomically
from runner.screen.fitted import Heading, in_groups
from runner.screen.pager import PIPED_COLUMNS, console

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

GAP = "  "  # between two columns in a pipe

Cell = str | int | float | bool | None


def cell(value: Cell) -> str:
    """Return the text of a cell: three decimals, commas between thousands, `-` for None."""
    if isinstance(value, str):
        return value
    if value is None:
        return "-"
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], total: Sequence[str] = (), is_split: bool = True
) -> None:
    """Print a table: the first column is text, the others are numbers.

    In a pipe each row is one line if PIPED_COLUMNS columns hold it. Otherwise, and on a terminal, a table that is too
    wide becomes several with the same first column, unless `is_split` is false.
    """
    lines, names = [*rows, *([total] if total else [])], [heading.replace("\n", " ") for heading in headings]
    cells = [[printable(each) for each in line] for line in [names, *lines]]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    is_wide = len(GAP.join(" " * wide for wide in widths)) > PIPED_COLUMNS
    if sys.stdout.isatty() or (is_split and is_wide):
        screen = console()
        for table in in_groups(Heading(names[0], is_text=True), list(map(Heading, names[1:])), lines, screen.width):
            screen.print(table)
        return
    for first, *others in cells:
        numbers = (f"{' ' * (wide - cell_len(each))}{each}" for each, wide in zip(others, widths[1:], strict=True))
        print(GAP.join([first + " " * (widths[0] - cell_len(first)), *numbers]))


def print_notes(notes: Iterable[str]) -> None:
    """Print sentences below a table."""
    for note in notes:
        console().print(note, soft_wrap=True, markup=False)


def write_parquet(
    kind: type[DataclassInstance], rows: Sequence[Mapping[str, object]], path: Path, first: Sequence[str] = ()
) -> None:
    """Write rows with the text columns `first` and the fields of the dataclass `kind`; DataError if that fails."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"str": pa.string(), "int": pa.int64(), "bool": pa.bool_()}
    columns = [(name, pa.string()) for name in first]
    for field in fields(kind):
        name = str(field.type).removesuffix(" | None")
        columns.append((field.name, kinds.get(name, pa.float64())))
    table = pa.Table.from_pylist(list(rows), schema=pa.schema(columns))

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # pyarrow itself opens no path that is not UTF-8
            pq.write_table(table, file, compression="zstd")

    try:
        write_atomically(path, write)
    except OSError as error:
        raise DataError(path, None, f"cannot be written ({error.strerror or error})") from None

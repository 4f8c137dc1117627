"""Read a list of GEMMs that a user wrote, as CSV or JSON.

A CSV has a header and a row per GEMM. The columns may stand in any order:

    m, n, k   sizes of C[m, n] = A[m, k] @ B[k, n]: output features, columns (tokens), input features
    count     number of commands; default 1
    op        only gemm, the default
    dtype     fp32, fp16 or bf16; default: that of the other rows
    weight    a name of any kind; commands with the same name read one weight. Default: each takes one in turn
    group     a name of any kind; commands of a group are independent, and groups follow one another in order
    input     a name of any kind; rows of a group with the same input have one k, and can be merged. Default: none

Cells are separated by commas, semicolons or tabs, as the header has them. Names of columns may have capitals. Blank
lines and lines that begin with # are skipped. A JSON file holds a list of objects with the same names, or an object a
line. The format is chosen by the first characters. Each may be compressed by gzip. A wrong file raises a `DataError`
with the line, or the row of a JSON list.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from launchopt.arrivals.lines import BOM, shown, unreadable
from launchopt.command import Dtype
from launchopt.errors import DataError, explained, nearest
from launchopt.files import JSON_BYTES_MAX, RepeatedKeyError, json_of, read_bytes
from launchopt.options import LARGEST
from launchopt.traces.json_stream import GZIP_MAGIC

COLUMNS = ("op", "m", "n", "k", "dtype", "count", "weight", "group", "input")
REQUIRED_COLUMNS = ("m", "n", "k")
OTHER_NAMES = {"weight id": "weight", "weight_id": "weight"}
DTYPES = {
    **{dtype.name: dtype for dtype in Dtype},
    "float32": Dtype.fp32,
    "float16": Dtype.fp16,
    "bfloat16": Dtype.bf16,
}
MOST_ROWS = 100_000
MOST_SHAPES = 1_000  # a mode plans each shape for every size of a batch
EXAMPLE = '[{"m": 4096, "n": 1, "k": 4096}]'

_SIZE = re.compile(r"[0-9]{1,10}")  # int() alone would also take "1_000", " 7" and other scripts' digits


@dataclass(frozen=True, slots=True)
class ListedGemm:
    """One row. weight, group, input: names; empty if the row has none. dtype: None if the row has none."""

    m: int
    n: int
    k: int
    count: int
    dtype: Dtype | None
    weight: str
    group: str
    input: str = ""


class _Row(NamedTuple):
    """The cells of a row by column. line: of a CSV, from 1. number: of a row in a JSON list, from 1; 0 in a CSV."""

    cells: Mapping[str, object]
    line: int | None
    number: int = 0

    def error(self, path: Path, problem: object) -> DataError:
        return DataError(path, self.line, f"row {self.number}: {problem}" if self.number else str(problem))


def read_gemm_list(path: Path) -> tuple[ListedGemm, ...]:
    """Return the rows of the list at `path`. DataError for anything that is not a list of GEMMs."""
    try:
        content = _content(path)
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise DataError(path, None, str(error)) from None
    begins = content.removeprefix(BOM).lstrip()[:1]
    if not begins:
        raise DataError(path, None, f"the file is empty; expected a header such as m,n,k,count, or JSON: {EXAMPLE}")
    if begins == b"[":
        rows = _json_rows(path, content)
    else:
        rows = (_json_lines if begins == b"{" else _csv_rows)(path, _text(path, content))
    found = _checked(path, rows)
    if not found:
        raise DataError(path, None, "no GEMMs: the list is empty" if begins == b"[" else "no GEMMs: only a header")
    return found


def begins_list(head: bytes) -> bool:
    """Return whether a file that begins like this is no JSON object but for an object a line, each of them a GEMM."""
    text = head.removeprefix(BOM).lstrip()
    if not text.startswith(b"{"):
        return True
    try:
        first = json.loads(text.splitlines()[0])
    except (ValueError, RecursionError):
        return False
    return any(each.lower() in REQUIRED_COLUMNS for each in first)


def _content(path: Path) -> bytes:
    """Return the content of a file, without its compression; ValueError if it is too large or damaged."""
    content = read_bytes(path)
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            unpacked = file.read(JSON_BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error):
        raise ValueError("damaged gzip, or cut short") from None
    if len(unpacked) > JSON_BYTES_MAX:
        raise ValueError(f"over {JSON_BYTES_MAX >> 20} MiB, unpacked")
    return unpacked


def _text(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(path, line, "not UTF-8; save the file as CSV UTF-8") from None


def _csv_rows(path: Path, text: str) -> Iterator[_Row]:
    names: list[str] = []
    delimiter = ","
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        delimiter = delimiter if names else next((each for each in ",;\t" if each in line), ",")
        try:
            given = next(csv.reader([line.removesuffix("\n")], delimiter=delimiter, skipinitialspace=True, strict=True))
        except csv.Error as error:
            raise DataError(path, number, f"not CSV: {error}") from None
        cells = [cell.strip() for cell in given]
        while len(cells) > len(names) and not cells[-1]:
            cells.pop()  # a spreadsheet writes empty cells behind the last column
        if not names:
            names = _header(path, number, cells)
        elif any(cells):
            if len(cells) != len(names):
                raise DataError(path, number, f"expected {len(names)} cells, got {len(cells)}")
            yield _Row(dict(zip(names, cells, strict=True)), number)


def _header(path: Path, line: int, cells: Sequence[str]) -> list[str]:
    try:
        return _columns(cells)
    except ValueError as error:
        raise DataError(path, line, str(error)) from None


def _json_rows(path: Path, text: bytes) -> Iterator[_Row]:
    try:
        content = json_of(text)
    except RepeatedKeyError as error:
        raise DataError(path, None, str(error)) from None
    except ValueError as error:
        raise DataError(path, None, f"not JSON: {error}") from None
    for number, each in enumerate(content, 1):
        yield _json_row(path, each, None, number)


def _json_lines(path: Path, text: str) -> Iterator[_Row]:
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if line.strip():
            try:
                found = json_of(line.encode())
            except RepeatedKeyError as error:
                raise DataError(path, number, str(error)) from None
            except ValueError as error:
                raise DataError(path, number, f"not JSON: {error}") from None
            yield _json_row(path, found, number, 0)


def _json_row(path: Path, found: object, line: int | None, number: int) -> _Row:
    """Return the row of an object. line, number: where it is, as in `_Row`."""
    row = _Row({}, line, number)
    if not isinstance(found, dict):
        raise row.error(path, f"expected an object such as {EXAMPLE[1:-1]}")
    try:
        names = _columns(list(found))
    except ValueError as error:
        raise row.error(path, error) from None
    return row._replace(cells=dict(zip(names, found.values(), strict=True)))


def _columns(given: Sequence[str]) -> list[str]:
    """Return the names of columns as in COLUMNS; ValueError if one is unknown, comes twice or is missing."""
    names = []
    for each in given:
        name = OTHER_NAMES.get(each.strip().lower(), each.strip().lower())
        if name not in COLUMNS:
            raise ValueError(explained(f"no such column: {shown(each)}", ", ".join(COLUMNS), nearest(each, COLUMNS)))
        if name in names:
            raise ValueError(f"the column {name} comes twice")
        names.append(name)
    if missing := [name for name in REQUIRED_COLUMNS if name not in names]:
        raise ValueError(f"the column {missing[0]} is missing; needed: {', '.join(REQUIRED_COLUMNS)}")
    return names


def _checked(path: Path, rows: Iterable[_Row]) -> tuple[ListedGemm, ...]:
    """Return the rows as GEMMs; DataError with the first row that is wrong, alone or beside the rows before it."""
    found: list[ListedGemm] = []
    sizes: dict[str, tuple[int, int]] = {}  # of each named weight
    inputs: dict[str, int] = {}  # k of each named input of the group
    groups: set[str] = set()
    shapes: set[tuple[int, int, int]] = set()
    for row in rows:
        try:
            gemm = _gemm(row.cells)
            if len(found) == MOST_ROWS:
                raise ValueError(f"over {MOST_ROWS:,} rows; equal rows can be one row with a count")
            shapes.add((gemm.m, gemm.n, gemm.k))
            if len(shapes) > MOST_SHAPES:
                raise ValueError(f"over {MOST_SHAPES:,} different sizes")
            if gemm.weight:
                _check_weight(gemm, sizes.setdefault(gemm.weight, (gemm.m, gemm.k)))
            if found and gemm.group != found[-1].group:
                _check_group(gemm.group, found[-1].group, groups)
                inputs.clear()
            groups.add(gemm.group)
            if gemm.input:
                _check_input(gemm, inputs.setdefault(gemm.input, gemm.k))
        except ValueError as error:
            raise row.error(path, error) from None
        found.append(gemm)
    return tuple(found)


def _check_weight(gemm: ListedGemm, size: tuple[int, int]) -> None:
    if size != (gemm.m, gemm.k):
        own, other = (f"{m} x {k}" for m, k in ((gemm.m, gemm.k), size))
        raise ValueError(f"weight {shown(gemm.weight)} is {own} here and {other} before: give it another name")


def _check_input(gemm: ListedGemm, k: int) -> None:
    if gemm.k != k:
        raise ValueError(f"input {shown(gemm.input)} has k={gemm.k} here and k={k} before: give it another name")


def _check_group(group: str, before: str, groups: set[str]) -> None:
    if not group or not before:
        raise ValueError("some rows have a group and some have none: give every row a group")
    if group in groups:
        raise ValueError(f"group {shown(group)} comes again behind another one: put its rows together, or rename it")


def _gemm(cells: Mapping[str, object]) -> ListedGemm:
    op, dtype = _name("op", cells), _name("dtype", cells).lower()
    if op.lower() not in ("", "gemm"):
        raise ValueError(f"op is {shown(op)}; allowed: gemm")
    if dtype and dtype not in DTYPES:
        raise ValueError(f"dtype is {shown(dtype)}; allowed: {', '.join(each.name for each in Dtype)}")
    m, n, k = (_size(name, cells[name]) for name in REQUIRED_COLUMNS)
    count = 1 if cells.get("count") in ("", None) else _size("count", cells["count"])
    return ListedGemm(m, n, k, count, DTYPES.get(dtype), *(_name(each, cells) for each in COLUMNS[-3:]))


def _size(column: str, value: object) -> int:
    if isinstance(value, str) and _SIZE.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        text = value if isinstance(value, str) else str(value)
        raise ValueError(f"{column} is {shown(text)}; allowed: whole numbers from 1 to {LARGEST}")
    return value


def _name(column: str, cells: Mapping[str, object]) -> str:
    """Return a text; that of a whole number in JSON. Empty if the row has none."""
    value = cells.get(column)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{column} is {shown(str(value))}; allowed: texts and whole numbers")
    return str(value).strip()

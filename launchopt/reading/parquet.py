"""Read Parquet files that another program may have made or damaged.

    for batch in checked(path, Rules(schema, required=("run_id", "wall_ms"))): ...

A file is refused (DataError) if it is not regular, not Parquet, too large, or lacks a required column. Otherwise its
columns are returned in today's types. A value that cannot be used becomes null, and a row that lacks a value of `known`
is left out. One line on standard error names them, after the last batch. A file without a usable row is refused, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from launchopt.errors import DataError
from launchopt.files import open_regular
from launchopt.reading.unusable import name_unusable

NUMBER_MAX = 10**18  # a larger count, time or rate is no measurement
NUMBER_MIN = 1e-30  # nor is one that is smaller, but not 0
TEXT_CHARACTERS_MAX = 10_000
TABLE_BYTES_MAX = 64 << 20  # limit of a table that is kept in memory; Python objects take up to ten times that
BATCH_TEXT_BYTES_MAX = 64 << 20  # limit of the texts of one column in a batch
COLUMN_BYTES_MAX = 1 << 28  # limit of one column of a row group, decompressed; each batch is smaller
BATCH_ROWS = 1 << 16
SMALL_BYTES = 4 << 20  # a smaller file is read at once, which takes less time
_COLUMNS_NAMED = 6  # maximum columns that a warning names; it only counts the others


class Rules(NamedTuple):
    """What a table must hold.

    renamed: today's names of columns of older files. current: returns today's values of a column.
    """

    schema: pa.Schema
    required: Sequence[str]  # a file without one of these columns is not of this project
    known: Sequence[str] = ()  # a row in which one of these is null is left out
    unbounded: Sequence[str] = ()  # numbers that may be infinite, NaN or negative
    is_signed: bool = False  # whether numbers may be negative
    renamed: Mapping[str, str] = {}
    current: Callable[[str, pa.Array], pa.Array] = lambda _, values: values
    choices: Mapping[str, Sequence[str]] = {}  # the values that a column of texts may have
    most_rows: int | None = None  # more rows, or bytes than 1 GiB, are refused: the caller keeps them all in memory
    what: str = "a table"


@contextmanager
def opened(path: Path, texts: Sequence[str] = (), name: str | None = None) -> Iterator[pq.ParquetFile]:
    """Open a regular Parquet file; DataError for anything else, and for damage that shows while the block reads it.

    texts: columns that are read as dictionaries, so that a long text that occurs in every row takes little memory.
    name: of the file in messages, if it is not `path`.
    """
    try:
        with open_regular(path) as opened_file:
            is_small = os.fstat(opened_file.fileno()).st_size <= SMALL_BYTES
            file = pa.BufferReader(opened_file.read(SMALL_BYTES)) if is_small else opened_file
            about = pq.read_metadata(file)
            paths = [about.schema.column(column).path for column in range(about.num_columns)]
            for group in map(about.row_group, range(about.num_row_groups)):
                if any(group.column(i).total_uncompressed_size > COLUMN_BYTES_MAX for i in range(len(paths))):
                    raise DataError(name or path, None, "a column of a row group is larger than any run writes")
            coded = [name for name in texts if paths.count(name) == 1]
            with pq.ParquetFile(file, metadata=about, read_dictionary=coded) as parquet:
                yield parquet
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:  # ValueError: names that are not UTF-8
        raise DataError(name or path, None, f"cannot be read as Parquet ({_short(error)})") from None


def read_all(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table of a small file; DataError if it cannot be read."""
    with opened(path) as file:
        _require_small(path, file.metadata, 1_000_000)
        if missing := [name for name in columns or () if name not in file.schema_arrow.names]:
            raise DataError(path, None, f"lacks {', '.join(missing)}")
        return file.read(columns=None if columns is None else list(columns))


Window = Mapping[str, tuple[Any, Any]]  # column -> its smallest and its largest value


def checked(
    path: Path, rules: Rules, window: Window | None = None, name: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that can be used, in `rules.schema`; DataError if the file cannot be read. See the module.

    window: only these rows. Row groups without such a row are not read. name: as in `opened`.
    """
    shown = name or path
    lost, window = _Lost(), window or {}
    texts = [field.name for field in rules.schema if pa.types.is_string(field.type)]
    kept_bytes = 0
    with opened(path, texts, name) as file:
        if rules.most_rows is not None:
            _require_small(shown, file.metadata, rules.most_rows)
        names = _columns(shown, file.schema_arrow, rules, lost)
        groups = [group for group in range(file.num_row_groups) if _may_hold(file.metadata.row_group(group), window)]
        is_large = file.metadata.num_rows > BATCH_ROWS  # for a smaller one, several threads take more time than one
        columns = list(names.values())
        for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns, use_threads=is_large):
            usable = _usable(batch, names, rules, lost)
            for name, (low, high) in window.items():
                of = usable.column(name)
                usable = usable.filter(pc.and_(pc.greater_equal(of, low), pc.less_equal(of, high)))
            kept_bytes += usable.nbytes
            if rules.most_rows is not None and kept_bytes > TABLE_BYTES_MAX:
                raise DataError(shown, None, f"over {TABLE_BYTES_MAX >> 20} MiB: more than any run writes")
            yield usable
    problem = lost.problem()
    if lost.rows and lost.rows == lost.of:
        raise DataError(shown, None, f"no row can be used: {problem}")
    if problem:
        name_unusable(DataError(shown, None, f"shown without what cannot be used: {problem}"))


class _Lost:
    """Counts the values and rows of one file that cannot be used."""

    def __init__(self) -> None:
        self.columns: dict[str, str] = {}  # column -> why no value of it can be used
        self.values: Counter[str] = Counter()  # column -> number of values
        self.lacking: Counter[str] = Counter()  # column -> number of rows that are left out for lack of its value
        self.rows = self.of = 0

    def problem(self) -> str:
        """Return what cannot be used; empty if all can."""
        parts = [f"{name} {why}" for name, why in self.columns.items()]
        parts += [f"{name} has {count:,} impossible values" for name, count in self.values.items()]
        parts += [f"{name} is missing in {count:,} of {self.of:,} rows" for name, count in self.lacking.items()]
        if len(parts) > _COLUMNS_NAMED:
            parts = [*parts[:_COLUMNS_NAMED], f"and {len(parts) - _COLUMNS_NAMED} more"]
        return "; ".join(parts)


def _require_small(path: Path | str, about: pq.FileMetaData, most_rows: int) -> None:
    """Raise DataError for more rows than any run writes: a few kilobytes of Parquet can hold billions of rows."""
    size = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    if about.num_rows > most_rows or size > 1 << 30:
        raise DataError(path, None, f"{about.num_rows:,} rows of {size:,} bytes: more than any run writes")


def _columns(path: Path | str, found: pa.Schema, rules: Rules, lost: _Lost) -> dict[str, str]:
    """Return the usable columns, today's name -> the file's name; DataError if a required one is not among them."""
    names: dict[str, str] = {}
    wanted = {field.name: field.type for field in rules.schema}
    for field in found:
        name = rules.renamed.get(field.name, field.name)
        if name not in wanted:
            continue
        if name in names:
            lost.columns[name] = "is the name of two columns"
        elif not _is_plain(field.type, wanted[name]):
            lost.columns[name] = f"holds no {wanted[name]}"
        names[name] = field.name
    if missing := [name for name in rules.required if name not in names]:
        raise DataError(path, None, f"not {rules.what} of this project: lacks {', '.join(missing)}")
    needed = rules.known or rules.required
    if bad := [f"{name} {lost.columns[name]}" for name in needed if name in lost.columns]:
        raise DataError(path, None, "; ".join(bad))
    return {name: name_there for name, name_there in names.items() if name not in lost.columns}


def _may_hold(group: pq.RowGroupMetaData, window: Window) -> bool:
    """Return whether the statistics of a row group allow a row within `window`."""
    if not window:
        return True
    for index in range(group.num_columns):
        column = group.column(index)
        if (bounds := window.get(column.path_in_schema)) is None or not column.is_stats_set:
            continue
        found = column.statistics
        if not found.has_min_max or not type(found.min) is type(found.max) is type(bounds[0]):
            continue
        if found.max < bounds[0] or found.min > bounds[1]:
            return False
    return True


def _is_plain(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of a type are numbers, texts or truth values; lists of them where a list is wanted."""
    if kind == wanted:
        return True
    if pa.types.is_list(kind) and pa.types.is_list(wanted):
        return _is_plain(kind.value_type, wanted.value_type)
    if pa.types.is_dictionary(kind):
        return _is_plain(kind.value_type, wanted)
    simple = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null, pa.types.is_decimal)
    return any(is_kind(kind) for is_kind in (*simple, pa.types.is_string, pa.types.is_large_string))


def _usable(batch: pa.RecordBatch, names: Mapping[str, str], rules: Rules, lost: _Lost) -> pa.RecordBatch:
    """Return a batch in today's schema, without the values and rows that cannot be used."""
    columns = []
    for field in rules.schema:
        if field.name not in names or field.name in lost.columns:
            columns.append(pa.nulls(len(batch), field.type))
            continue
        columns.append(_values(batch.column(names[field.name]), field, rules, lost))
    result = pa.RecordBatch.from_arrays(columns, schema=rules.schema)
    lost.of += len(result)
    for name in rules.known:
        if count := result.column(name).null_count:
            lost.lacking[name] += count
            result = result.filter(pc.is_valid(result.column(name)))
    lost.rows += len(batch) - len(result)
    return result


def _values(values: pa.Array, field: pa.Field, rules: Rules, lost: _Lost) -> pa.Array:
    """Return one column in its type, with null for values that cannot be used."""
    try:
        values.validate(full=True)
        if pa.types.is_dictionary(values.type):
            _require_short(values)
        values = rules.current(field.name, values if values.type == field.type else values.cast(field.type))
    except (pa.ArrowException, ValueError):
        lost.columns[field.name] = f"holds no {field.type}"
        return pa.nulls(len(values), field.type)
    if pa.types.is_list(field.type):
        return _finite_lists(values, field, lost)
    if field.name in rules.unbounded or pa.types.is_boolean(field.type) or values.null_count == len(values):
        return values
    if field.name not in rules.choices and _are_usual(values, rules):
        return values
    if pa.types.is_string(field.type):
        is_good = pc.less_equal(pc.utf8_length(values), TEXT_CHARACTERS_MAX)
        if field.name in rules.choices:
            is_good = pc.is_in(values, pa.array(rules.choices[field.name]))
    else:
        most = (
            float(NUMBER_MAX)
            if pa.types.is_floating(field.type)
            else min(NUMBER_MAX, 2 ** (field.type.bit_width - 1) - 1)
        )
        high, low = pa.scalar(most, field.type), pa.scalar(-most if rules.is_signed else type(most)(), field.type)
        is_good = pc.and_(pc.less_equal(values, high), pc.greater_equal(values, low))
        if pa.types.is_floating(field.type):
            is_good = pc.and_(is_good, pc.or_(pc.equal(values, 0.0), pc.greater_equal(pc.abs(values), NUMBER_MIN)))
    is_bad = pc.and_(pc.is_valid(values), pc.invert(pc.fill_null(is_good, False)))
    if count := pc.sum(is_bad).as_py():
        lost.values[field.name] += count
        return pc.if_else(is_bad, pa.scalar(None, field.type), values)
    return values


def _are_usual(values: pa.Array, rules: Rules) -> bool:
    """Return whether all texts or numbers of a column can be used: in a moment. False: perhaps one cannot."""
    if pa.types.is_string(values.type):
        return bool(values.nbytes <= TEXT_CHARACTERS_MAX)
    known = (values.drop_null() if values.null_count else values).to_numpy()
    sizes = np.abs(known[known != 0])
    if len(sizes) == 0:
        return True
    is_usual = sizes.min() >= NUMBER_MIN and sizes.max() <= NUMBER_MAX  # False with a NaN
    return bool(is_usual and (rules.is_signed or known.min() >= 0))


def _finite_lists(values: pa.Array, field: pa.Field, lost: _Lost) -> pa.Array:
    """Return lists of numbers, with null for an empty one, and for one that holds something else."""
    is_good = []
    for one in values.to_pylist():
        is_good.append(one != [] and all(each is not None and abs(each) <= NUMBER_MAX for each in one or ()))
    if all(is_good):
        return values
    lost.values[field.name] += is_good.count(False)
    return pc.if_else(pa.array(is_good), values, pa.scalar(None, field.type))


def _require_short(values: pa.DictionaryArray) -> None:
    """Raise ValueError for texts that would be too large when every row holds its own."""
    if pa.types.is_string(values.dictionary.type) and len(values.dictionary):
        sizes = pc.take(pc.binary_length(values.dictionary), values.indices)
        if (pc.sum(sizes).as_py() or 0) > BATCH_TEXT_BYTES_MAX:
            raise ValueError("too long")


def _short(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]

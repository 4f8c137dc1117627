"""Hostile files, made from the good ones of tests/corpus by a seeded generator, and the readers of such files.

`complaint` lets a reader read a file within limits. The only error that a reader may raise is a LaunchoptError of one
short line.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import sqlite3
import tempfile
import traceback
import unicodedata
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.analysis.profiles.launch_pairs import pair
from launchopt.analysis.profiles.launch_rows import launch_rows
from launchopt.analysis.profiles.launch_stats import launch_stats
from launchopt.analysis.verdict.calibration import read_calibration
from launchopt.arrivals.replay import read_requests
from launchopt.errors import LaunchoptError
from launchopt.huggingface.config_json import read_model
from launchopt.recording.dataset import batches
from launchopt.recording.results import read_histograms, read_manifest, read_summaries
from launchopt.traces.events import Trace
from launchopt.traces.execution_trace import read_execution_trace
from launchopt.traces.gemm_list import read_gemm_list
from launchopt.traces.gemms import read_gemms
from launchopt.traces.kineto import read_kineto
from launchopt.traces.nsys_sqlite import read_nsys
from support.paths import TESTS
from support.processes.limits import TooMuchTime, limited

CORPUS = TESTS / "corpus"
CPU_S = 10.0
MORE_BYTES = 2 << 30

INTEGERS = (0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400)
TEXTS = ("", "\0", "x" * 70_000, "<script>alert(1)</script>", "\x1b[2J", "\ud800", "../../x", "$(touch x)", "nan", "٣")
CONTROLS = ("\u202etxt.exe", "\u2066x", "\x9b2J", "\x1b]0;x\x07")
VALUES: tuple[Any, ...] = (
    *INTEGERS,
    *TEXTS,
    *CONTROLS,
    None,
    True,
    0.5,
    -0.5,
    1e308,
    float("nan"),
    float("inf"),
    [],
    {},
    [[]],
)
TOKENS = (
    *(b"\0", b"\n", b"\r\n", b",", b'"', b"\\", b"{", b"}", b"[", b"]", b":", b"-", b"\xff\xfe", b"\xef\xbb\xbf"),
    *(b"NaN", b"Infinity", b"null", b"1e999999999", b"1E-999999999", b"-0", b"9" * 25, b"9" * 5000, b"\\ud800"),
    *(b"[" * 200, b"[" * 200_000, b'{"a":' * 200, b"x" * 5000),
)


@dataclass(frozen=True)
class Reader:
    """A reader of files: `read` takes a path, `seeds` are files of the corpus. A mutant keeps the name of its seed."""

    read: Callable[[Path], object]
    seeds: tuple[str, ...]


def _launches(read: Callable[[Path], Trace]) -> Callable[[Path], object]:
    def of(path: Path) -> object:
        trace = read(path)
        pairs = pair(trace)
        return launch_stats(trace, pairs), launch_rows(str(path), trace, pairs)

    return of


KINETO_FAULTS = tuple(f"traces/{name}.json" for name in ("c16_external_id", "c17_merged_ranks", "c18_begin_end"))
NSYS_FAULTS = tuple(f"traces/{name}.sqlite" for name in ("n02_one_row_without_pid", "n05_only_osrt"))
REQUESTS = ("azure.csv", "mooncake.jsonl", "requests.csv", "after.csv")
READERS = {
    "azure": Reader(lambda path: read_requests(path, "azure", None), REQUESTS),
    "mooncake": Reader(lambda path: read_requests(path, "mooncake", None), REQUESTS),
    "csv": Reader(lambda path: read_requests(path, "csv", None), REQUESTS),
    "auto": Reader(lambda path: read_requests(path, "auto", 2), REQUESTS),
    "kineto": Reader(_launches(read_kineto), ("kineto.json", "list.json", "kineto.json.gz", *KINETO_FAULTS)),
    "gemms": Reader(read_gemms, ("kineto.json", "list.json", "kineto.json.gz")),
    "gemm_list": Reader(read_gemm_list, ("shapes.csv", "shapes.json", "requests.csv", "list.json")),
    "execution_trace": Reader(read_execution_trace, ("execution_trace.json.gz", "execution_trace.json")),
    "cut_trace": Reader(lambda path: read_execution_trace(path, may_end_early=True), ("execution_trace.json",)),
    "nsys": Reader(_launches(read_nsys), ("nsys.sqlite", *NSYS_FAULTS)),
    "manifest": Reader(lambda path: read_manifest(path.parent), ("manifest.json",)),
    "summary": Reader(lambda path: read_summaries([path]), ("summary.parquet",)),
    "histograms": Reader(lambda path: read_histograms([path]), ("histograms.parquet",)),
    "dataset": Reader(lambda path: list(batches([path.parent], "summary")), ("summary.parquet",)),
    "calibration": Reader(read_calibration, ("calibration.json",)),
    "model": Reader(read_model, ("model.json", "mixture.json")),
}


def raw_controls(text: str) -> str:
    """Return the characters of an output that could move a terminal's cursor or turn its text around."""
    return "".join(c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t")


def complaint(reader: Reader, path: Path) -> str | None:
    """Return the rule that the reader broke, or None."""
    try:
        with limited(CPU_S, MORE_BYTES):
            reader.read(path)
    except LaunchoptError as error:
        text = str(error).replace(str(path), "PATH")
        if "\n" in text or error.exit_code != 2:  # the length is cut where it is printed
            return f"not one short line: exit {error.exit_code}, {text[:1000]!r}"
    except TooMuchTime:
        return f"over {CPU_S:g} processor seconds"
    except KeyboardInterrupt:
        raise
    except BaseException:
        return traceback.format_exc()
    return None


def mutant(seed_file: Path, generator: random.Random) -> bytes:
    """Return the file's bytes after one to four changes of its bytes or of its values."""
    content = seed_file.read_bytes()
    changes = [changed_text]
    if seed_file.suffix in (".json", ".gz", ".jsonl"):
        changes = [changed_text, changed_json, changed_json]
    if seed_file.suffix == ".sqlite":
        changes = [changed_text, _sqlite_changed, _sqlite_changed, _sqlite_changed]
    if seed_file.suffix == ".parquet":
        changes = [changed_text, changed_parquet, changed_parquet]
    change = generator.choice(changes)
    for _ in range(generator.randint(1, 4)):
        content = change(content, generator)
    return content


def mutated_text(content: bytes, generator: random.Random) -> bytes:
    """Return a text after one to four changes."""
    for _ in range(generator.randint(1, 4)):
        content = changed_text(content, generator)
    return content


def changed_text(content: bytes, generator: random.Random) -> bytes:
    at = generator.randint(0, len(content))
    to = min(len(content), at + generator.choice((1, 1, 2, 8, 64, 1000)))
    kind = generator.randint(0, 6)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + content[to:]
    if kind == 2:
        return content[:at] + generator.choice(TOKENS) + content[at:]
    if kind == 3:
        return content[:at] + generator.choice(TOKENS) + content[to:]
    if kind == 4:
        return content[:to] + content[at:]
    if kind == 5:
        return content[:at] + generator.randbytes(to - at) + content[to:]
    digits = [i for i, byte in enumerate(content) if 48 <= byte <= 57] or [0]
    at = generator.choice(digits)
    return content[:at] + str(generator.choice(INTEGERS)).encode() + content[at + 1 :]


def changed_json(content: bytes, generator: random.Random) -> bytes:
    """Change one value; in JSON lines, a value of one line. Content that is no JSON stays unchanged."""
    is_gzip = content.startswith(b"\x1f\x8b")
    try:
        lines = (gzip.decompress(content) if is_gzip else content).splitlines()
        at = generator.randrange(len(lines)) if len(lines) > 1 and lines[0].endswith(b"}") else None
        document = json.loads(lines[at] if at is not None else b"\n".join(lines))
    except (ValueError, RecursionError, OSError, EOFError):
        return content
    changed = json.dumps(_value_changed(document, generator)).encode()
    if at is not None:
        changed = b"\n".join([*lines[:at], changed, *lines[at + 1 :]])
    return gzip.compress(changed) if is_gzip else changed


def _value_changed(document: Any, generator: random.Random) -> Any:
    places: list[tuple[Any, Any]] = []

    def look(node: Any) -> None:
        inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in inner:
            places.append((node, key))
            look(value)

    look(document)
    if not places:
        return generator.choice(VALUES)
    node, key = generator.choice(places)
    if isinstance(node, dict) and generator.random() < 0.2:
        node.pop(key)
    else:
        node[key] = generator.choice(VALUES)
    return document


def _sqlite_changed(content: bytes, generator: random.Random) -> bytes:
    """Change a value, a column or a table by SQL: the database stays valid, its content does not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mutant.sqlite")
        path.write_bytes(content)
        try:
            with closing(sqlite3.connect(path)) as database:
                _execute_change(database, generator)
                database.commit()
        except sqlite3.Error:
            return content
        return path.read_bytes()


def _execute_change(database: sqlite3.Connection, generator: random.Random) -> None:
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    table = generator.choice(tables)
    column = generator.choice([row[1] for row in database.execute(f'PRAGMA table_info("{table}")')])
    kind = generator.randint(0, 5)
    if kind == 0:
        database.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO other_{generator.randint(0, 9)}')
    elif kind == 1:
        database.execute(f'ALTER TABLE "{table}" RENAME TO other_{generator.randint(0, 9)}')
    elif kind == 2:
        database.execute(f'DELETE FROM "{table}"')
    else:
        value = generator.choice([*(n for n in INTEGERS if abs(n) < 2**63), *TEXTS[:5], None, 0.5, 1e308, b"\xff\0"])
        database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE random() % 2', (value,))


def changed_parquet(content: bytes, generator: random.Random) -> bytes:
    """Drop a column, change its type, or change the metadata: the file stays valid, its content does not."""
    table = pq.ParquetFile(io.BytesIO(content)).read()
    at, kind = generator.randrange(table.num_columns), generator.randint(0, 5)
    name = table.column_names[at]
    other = pa.array([generator.choice(TEXTS[:5])] * table.num_rows)
    if kind == 0:
        table = table.remove_column(at)
    elif kind == 1:
        table = table.set_column(at, name, other)
    elif kind == 2:
        table = table.set_column(at, name, pa.nulls(table.num_rows))
    elif kind == 3:
        table = table.set_column(at, name, pa.array([[1]] * table.num_rows))
    elif kind == 4:
        table = table.append_column(name, other)  # two columns of one name
    else:
        key = generator.choice([b"launchopt.schema_version", b"launchopt.config", b"pandas"])
        table = table.replace_schema_metadata({key: generator.choice(TOKENS)})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()

"""Folders of results in which some files lie, for `hostile_commands`.

`good` writes a folder with a file of every kind that a command reads. `made` copies it, with one to five files changed:
bytes, values, types, or no regular file at all.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.recording import results
from runner.bench.figures import BENCH, Figure
from scripts.kill_campaign import save
from scripts.kills import plan
from support.paths import TESTS
from support.results.mutations import VALUES, changed_json, changed_parquet, changed_text
from support.results.recorded_runs import write_run

CORPUS = TESTS / "corpus"
DECODE = {"workload": "decode", "model": "tiny", "layers": 2, "tokens": 8, "requests": 1}
TOOLS, PAGE = "tools", "page.md"
# A stand-in: the folder says what nsys counts.
NSYS = "#!/bin/sh\ntimeout 5 head -c 1000000 nsys.csv\n"
NSYS_CSV = "Time (%),Total Time (ns),Instances,Name\n100.0,30,3,gemv\n"
NCU_CSV = """==PROF== Connected to process 41
"ID","Process ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum","dram__bytes.sum.per_second"
"","","","","","ns","byte/second"
"0","41","void gemv<float, (int)1>(Params<float>)","(128, 1, 1)","(64, 1, 512)","245,312","4,203,000,000,000.5"
"1","41","splitKreduce_kernel","(64, 1, 1)","(8, 5, 1)","2,080","n/a"
"""
HOST = {"platform": "Linux", "python": "3.11.7", "cores": 2, "git_revision": "a" * 40, "git_dirty": False}
_HELD = {"first_bytes": 1, "last_bytes": 1, "peak_bytes": 1}
SOAK = {
    **{"started_utc": "2026-01-01", "records": 9, "lost": 0, "seconds": 1.0, "records_per_s": 9.0, "batches": 1},
    **{"memory": {"consumer": _HELD, "producer": _HELD}, "processor": "one", "environment": HOST},
}
_MADE = {"schema_version": 4, "started_utc": "2026-01-01", "processor": "one", "environment": HOST}
FUZZ = {
    **_MADE,
    **{"seed": 0, "next": 2, "tried": {"folders": 2}, "started": {"ncu": 2}, "counts": {"escape": 1}},
    "findings": [{"what": "folders", "number": 1, "kind": "escape", "text": "x"}],
}
_ROW = {"limit": "disk", "value": "1 MiB", "command": "run", "exit_code": 2, "last_line": "error: x", "seconds": 0.1}
LIMITS = {**_MADE, "rows": [{**_ROW, "traceback": False, "not_tried": ""}]}


def good(folder: Path) -> Path:
    """Write two runs with all tables, a calibration, sweeps, profiles, a campaign, a killed run, and a page."""
    for name in ("a", "b"):
        write_run(folder / name, name, **(DECODE if name == "b" else {}))
        bench = [Figure("ring", "p50", "us", [1.9, 2.1, 1.95]).row(), Figure("ring", "p99", "us", [3.0]).row()]
        results.write_rows(folder / name / "bench.parquet", BENCH, bench, {})
    about, stream = results.read_manifests([folder / "b"])[0], {"shapes": {"64x1x64": 8}}
    results.write_manifest(folder / "b", {**about, "stream": stream})  # a work for the table of mode=auto
    shutil.copy(CORPUS / "manifest.json", folder / "a")
    shutil.copy(CORPUS / "calibration.json", folder)
    for name in ("kineto.json", "nsys.sqlite", "requests.csv"):
        shutil.copy(CORPUS / name, folder)
    jobs = [{"job": n, "folder": each, "status": "ok", "overrides": [], "same_as": None} for n, each in enumerate("ab")]
    (folder / "sweep.json").write_text(json.dumps({"schema_version": 1, "status": "ok", "jobs": jobs, "overrides": []}))
    (folder / "frontier.json").write_text('{"slo_p99_us": 500}')
    (folder / "nsys.csv").write_text(NSYS_CSV)
    (folder / "ncu.csv").write_text(NCU_CSV)
    (folder / PAGE).write_text("".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in ("reliability", "columns")))
    _write_campaign(folder / "campaign")
    _write_killed(folder / "outputs")
    (folder / TOOLS).mkdir()
    (folder / TOOLS / "nsys").write_text(NSYS)
    (folder / TOOLS / "nsys").chmod(0o755)
    return folder


def _write_campaign(folder: Path) -> None:
    folder.mkdir()
    save(folder, plan(20, 0), {"environment": HOST})
    for name, content in (("soak", SOAK), ("fuzz", FUZZ), ("limits", LIMITS)):
        (folder / f"{name}.json").write_text(json.dumps(content))


def _write_killed(outputs: Path) -> None:
    """Write what a killed run and a killed sweep leave, where the doctor looks for them."""
    about = json.loads((CORPUS / "manifest.json").read_text()) | {"status": "running"}
    for place, name, content in (
        ("run/x", "manifest.json", about),
        ("sweep/x", "sweep.json", {"status": "running", "jobs": []}),
    ):
        (outputs / place).mkdir(parents=True)
        (outputs / place / name).write_text(json.dumps(content))


def made(source: Path, folder: Path, generator: random.Random) -> Path:
    """Copy the good folder `source` to `folder`, and change one to five of its files."""
    shutil.copytree(source, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.parent.name != TOOLS)
    results_of_runs = [path for path in files if path.name in ("summary.parquet", "manifest.json")]
    chosen = generator.sample(files, generator.choice((1, 1, 2, 3)))
    for path in dict.fromkeys([*chosen, *generator.sample(results_of_runs, generator.choice((0, 1, 1, 2)))]):
        _change(path, generator)
    return folder


def _change(path: Path, generator: random.Random) -> None:
    if generator.random() < 0.12:
        path.unlink()
        generator.choice(_OTHER)(path)
        return
    content = path.read_bytes()
    for _ in range(generator.randint(1, 3)):
        content = _CHANGES.get(path.suffix, changed_text)(content, generator)
    path.write_bytes(content)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"{")
        file.truncate(1 << 34)


_OTHER: tuple[Callable[[Path], object], ...] = (
    os.mkfifo,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to(path.name),
    Path.mkdir,
    Path.touch,
    _sparse,
    lambda path: path.write_bytes(b" " * (9 << 20)),
    lambda path: path.write_bytes(b"[]," * (2 << 20)),
    lambda path: path.write_text("[" * 1000 + "]" * 1000),
    lambda path: path.write_text(random.Random(0).choice(("[]", "null", "3", '"x"', "{}"))),
)


def _changed_table(content: bytes, generator: random.Random) -> bytes:
    """Change a table: as `changed_parquet`, or some values to extreme ones."""
    if generator.random() < 0.4:
        return changed_parquet(content, generator)
    try:
        table = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError):
        return content
    at = generator.randrange(table.num_columns)
    kind = table.schema.field(at).type
    fits = [value for value in VALUES if _fits(value, kind)]
    if fits and table.num_rows:
        values = table.column(at).to_pylist()
        for index in generator.sample(range(len(values)), generator.randint(1, len(values))):
            values[index] = generator.choice(fits)
        table = table.set_column(at, table.schema.field(at), pa.array(values, kind))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return False
    return True


_CHANGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".parquet": _changed_table,
    ".json": lambda content, chosen: chosen.choice((changed_json, changed_json, changed_text))(content, chosen),
}

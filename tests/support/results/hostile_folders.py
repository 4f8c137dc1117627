"""Folders of results in which some files lie, and the reading commands that are tried on each.

`made` writes a folder from a good one, with one to five files changed: bytes, values, types, or no regular file at
all. `tried` runs every command in a forked process, and returns the rules that were broken.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from launchopt.recording import results
from runner.bench.figures import BENCH, Figure
from runner.commands import SUBCOMMANDS, dispatch
from support.paths import TESTS
from support.results.mutations import VALUES, changed_json, changed_parquet, changed_text
from support.results.recorded_runs import write_run

CORPUS = TESTS / "corpus"
WALL_S = 60.0  # limit of one command, on a busy machine
MORE_BYTES = 300 << 20  # limit of the memory that all commands of a folder take beyond the process that forks them
DECODE = {"workload": "decode", "model": "tiny", "layers": 2, "tokens": 8, "requests": 1}
CODES = (0, 1, 2, 3)
LINE_CHARACTERS = 700  # of a line on standard error, without paths


_LATE = (  # modules that commands import when they need them
    *("launchopt.analysis.comparison.text", "launchopt.analysis.verdict.diagnosis", "launchopt.report.page"),
    *("launchopt.analysis.profiles.launch_stats", "launchopt.traces.kineto", "launchopt.traces.nsys_sqlite"),
    *("launchopt.analysis.comparison.compare", "launchopt.analysis.verdict.budget", "launchopt.report.pull_request"),
    *("launchopt.analysis.verdict.markdown", "runner.profiles.trace_screen", "pyarrow.dataset", "pyarrow.compute"),
)


class Finding(NamedTuple):
    """A broken rule: `traceback`, `hang`, `memory`, `outside` (a file changed outside the folder) or `message`."""

    kind: str
    text: str


def good(folder: Path) -> Path:
    """Write two runs with all tables, a calibration, a sweep, a profile, and files of the other commands."""
    for name in ("a", "b"):
        write_run(folder / name, name, **(DECODE if name == "b" else {}))
        bench = [Figure("ring", "p50", "us", [1.9, 2.1, 1.95]).row(), Figure("ring", "p99", "us", [3.0]).row()]
        results.write_rows(folder / name / "bench.parquet", BENCH, bench, {})
    shutil.copy(CORPUS / "manifest.json", folder / "a")
    shutil.copy(CORPUS / "calibration.json", folder)
    for name in ("kineto.json", "nsys.sqlite", "requests.csv"):
        shutil.copy(CORPUS / name, folder)
    jobs = [{"job": n, "folder": each, "status": "ok", "overrides": [], "same_as": None} for n, each in enumerate("ab")]
    (folder / "sweep.json").write_text(json.dumps({"schema_version": 1, "status": "ok", "jobs": jobs, "overrides": []}))
    (folder / "frontier.json").write_text('{"slo_p99_us": 500}')
    return folder


def made(source: Path, folder: Path, generator: random.Random) -> Path:
    """Copy the good folder `source` to `folder`, and change one to five of its files."""
    shutil.copytree(source, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
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


def commands(folder: Path, beside: Path, generator: random.Random) -> list[list[str]]:
    """Return the words of the commands to try on `folder`; `beside` is a good one."""
    one, other = str(folder), str(beside)
    table = generator.choice(("summary", "histograms", "launches", "commands", "kernels"))
    words = [
        ["report", one],
        ["report", one, *generator.choice((["--strategies"], ["--frontier"], ["--pr"], ["--json"]))],
        ["report", f"{one}/a", "--timeline", f"{one}/timeline.json"],
        ["verdict", one],
        ["compare", f"{one}:baseline", f"{other}:batched", "--force"],
        ["compare", f"{one}/a:baseline", f"{one}/b:batched", "--json"],
        ["budget", "tokens_per_day=1e6", f"from={one}"],
        ["dataset", one, "--table", table, "--output", f"{one}/all.parquet"],
        ["trace", f"{one}/kineto.json"],
        ["trace", f"{one}/nsys.sqlite"],
        ["nsys", f"{one}/nsys.sqlite"],
        ["ncu", f"{one}/requests.csv"],
        ["verdict", one, "--calibration", f"{one}/calibration.json"],
        ["reliability", one],
        ["bench", "--compare", f"{one}/a", f"{other}/a"],
    ]
    return [*words, ["report", one, "--html"]] if generator.random() < 0.15 else words


def warm_up() -> None:
    """Import what the commands need, so that a forked process does not."""
    for name in {each.module for each in SUBCOMMANDS.values()} | set(_LATE):
        import_module(name)


def tried(words: list[list[str]], folder: Path) -> list[Finding]:
    """Run commands in a forked process with its own `folder` as current folder. Return the broken rules."""
    before = _listed(folder.parent, folder)
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        os.close(reading)
        _run_all(words, folder, writing)
    os.close(writing)
    lines, is_hung = _answers(reading, pid, len(words))
    os.close(reading)
    found = [Finding(*each["finding"]) for each in lines if each["finding"]]
    if is_hung:
        found.append(Finding("hang", f"{words[len(lines)]}: over {WALL_S:g} s"))
    elif len(lines) < len(words):
        found.append(Finding("traceback", f"{words[len(lines)]}: the process was killed"))
    if _listed(folder.parent, folder) != before:
        found.append(Finding("outside", f"files beside {folder} changed"))
    return found


def _answers(reading: int, pid: int, count: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the child's line for each command, and whether it hung; the child has ended."""
    text, is_hung = b"", False
    waiting = select.poll()
    waiting.register(reading, select.POLLIN)
    while True:
        if not waiting.poll(WALL_S * 1000):
            is_hung = True
            os.kill(pid, signal.SIGKILL)
            break
        if not (block := os.read(reading, 1 << 16)):
            break
        text += block
    os.waitpid(pid, 0)
    return [json.loads(line) for line in text.splitlines()], is_hung


def _listed(parent: Path, but: Path) -> dict[str, int]:
    """Return the files beside the folder, with their time of change."""
    found = (path for path in parent.rglob("*") if not path.is_relative_to(but))
    return {str(path): path.lstat().st_mtime_ns for path in found}


def _run_all(words: list[list[str]], folder: Path, writing: int) -> None:
    """Run the commands in this forked process, which ends."""
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    start_bytes = _peak_bytes()
    try:
        for each in words:
            finding = _run(each, folder)
            if finding is None and (more := _peak_bytes() - start_bytes) > MORE_BYTES:
                finding = Finding("memory", f"{each}: {more >> 20} MiB more")
                start_bytes += more
            os.write(writing, json.dumps({"finding": finding}).encode() + b"\n")
    finally:
        os._exit(0)


def _run(words: list[str], folder: Path) -> Finding | None:
    out = os.open("/dev/null", os.O_WRONLY)
    shown = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    os.dup2(out, 1)
    os.dup2(shown, 2)
    os.close(out)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    text = ""
    try:
        code = _code(words)
    except BaseException:
        code, text = None, traceback.format_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    errors = os.pread(shown, 1 << 20, 0).decode(errors="replace")
    os.close(shown)
    if text or "Traceback" in errors:
        return Finding("traceback", f"{words}\n{text}{errors[-3000:]}")
    lines = [line.replace(str(folder), "DIR") for line in errors.splitlines()]
    if code not in CODES or any(len(line) > LINE_CHARACTERS for line in lines):
        return Finding("message", f"{words}: exit code {code}\n{errors[:2000]}")
    if code == 2 and not any(line.startswith("error: ") for line in lines):
        return Finding("message", f"{words}: exit code 2 without an error\n{errors[:2000]}")
    return None


def _code(words: list[str]) -> object:
    try:
        return dispatch(words)
    except SystemExit as ended:
        return ended.code or 0


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

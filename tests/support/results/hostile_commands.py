"""The reading commands, tried on a folder of results in which some files lie (`hostile_folders`).

`tried` runs commands in a forked process, and returns the rules that were broken.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import select
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from runner.commands import SUBCOMMANDS, dispatch
from runner.worker.lifeline import end_with
from support.results.hostile_folders import PAGE, TOOLS
from support.results.mutations import raw_controls

KINDS = ("traceback", "hang", "memory", "outside", "escape", "code", "message")
WALL_S = 60.0  # limit of one command, on a busy machine
MORE_BYTES = 300 << 20  # limit of the memory that one command takes
CODES = (0, 1, 2, 3)
LINE_CHARACTERS = 700  # of a line on standard error, without paths

_LATE = (  # modules that commands import when they need them
    *("launchopt.analysis.comparison.text", "launchopt.analysis.verdict.diagnosis", "launchopt.report.page"),
    *("launchopt.analysis.profiles.launch_stats", "launchopt.traces.kineto", "launchopt.traces.nsys_sqlite"),
    *("launchopt.analysis.comparison.compare", "launchopt.analysis.verdict.budget", "launchopt.report.pull_request"),
    *("launchopt.analysis.verdict.markdown", "runner.profiles.trace_screen", "pyarrow.dataset", "pyarrow.compute"),
)


class Finding(NamedTuple):
    """A broken rule.

    kind: `traceback`, `hang`, `memory`, `outside` (a file changed outside the folder), `escape` (a raw control or
    bidirectional character in the output), `code` (an exit code that the output contradicts), or `message` (too long).
    """

    kind: str
    text: str


def commands(folder: Path, beside: Path, generator: random.Random) -> list[list[str]]:
    """Return the words of the commands to try on `folder`; `beside` is a good one."""
    one, other = str(folder), str(beside)
    table = generator.choice(("summary", "histograms", "launches", "commands", "kernels"))
    words = [
        ["report", one],
        ["report", one, *generator.choice((["--strategies"], ["--frontier"], ["--pr"], ["--json"]))],
        ["report", f"{one}/a", "--timeline", f"{one}/timeline.json"],
        ["verdict", one],
        ["verdict", one, "--calibration", f"{one}/calibration.json"],
        ["tune", one, "--check"],
        ["compare", f"{one}:baseline", f"{other}:batched", "--force"],
        ["compare", f"{one}/a:baseline", f"{one}/b:batched", "--json"],
        ["budget", "tokens_per_day=1e6", f"from={one}"],
        ["dataset", one, "--table", table, "--output", f"{one}/all.parquet"],
        ["dataset", "--columns", "--page", f"{one}/{PAGE}"],
        ["trace", f"{one}/kineto.json"],
        ["trace", f"{one}/nsys.sqlite"],
        ["nsys", f"{one}/nsys.sqlite"],
        ["nsys_compare", f"batched={one}/nsys.sqlite", f"graph={other}/nsys.sqlite"],
        ["nsys_agree", f"{one}/nsys.sqlite", "--run", f"{one}/a"],
        ["ncu", f"{one}/ncu.csv"],
        ["reliability", f"{one}/campaign"],
        ["reliability", f"{other}/campaign", "--readme", f"{one}/{PAGE}"],
        ["bench", "--compare", f"{one}/a", f"{other}/a"],
    ]
    # These take a second each.
    slow = [["report", one, "--html"], ["doctor", "--device", "cpu", "--no-floors"], ["matrix"]]
    return [*words, *(each for each in slow if generator.random() < 0.15)]


def warm_up() -> None:
    """Import what the commands need, so that a forked process does not."""
    for name in {each.module for each in SUBCOMMANDS.values()} | set(_LATE):
        import_module(name)


def tried(words: list[list[str]], folder: Path) -> list[Finding]:
    """Run commands in a forked process with its own `folder` as current folder. Return the broken rules."""
    before = _listed(folder.parent, folder)
    reading, writing = os.pipe()
    parent = os.getpid()
    if not (pid := os.fork()):
        end_with(parent)
        os.close(reading)
        _run_all(words, folder, writing)
    os.close(writing)
    try:
        lines, is_hung = _answers(reading, pid, len(words))
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
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
    os.environ["PATH"] = f"{folder / TOOLS}:{os.environ.get('PATH', os.defpath)}"
    gc.freeze()  # keeps the parent's garbage: memory freed during a command would hide what the command takes
    try:
        for each in words:
            start_bytes = _reset_peak_bytes()
            finding = _run(each, folder)
            if finding is None and (more := _peak_bytes() - start_bytes) > MORE_BYTES:
                finding = Finding("memory", f"{each}: {more >> 20} MiB more")
            os.write(writing, json.dumps({"finding": finding}).encode() + b"\n")
    finally:
        os._exit(0)


def _run(words: list[str], folder: Path) -> Finding | None:
    printed = [os.open(folder, os.O_TMPFILE | os.O_RDWR) for _ in (1, 2)]
    for number, file in enumerate(printed, 1):
        os.dup2(file, number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    raised = ""
    try:
        code = _code(words)
    except BaseException:
        code, raised = None, traceback.format_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    out, errors = (os.pread(file, 4 << 20, 0).decode(errors="replace") for file in printed)
    for file in printed:
        os.close(file)
    if raised or "Traceback" in errors:
        return Finding("traceback", f"{words}\n{raised}{errors[-3000:]}")
    kind = _broken_rule(code, out, errors.replace(str(folder), "DIR"))
    if not kind:
        return None
    return Finding(kind, f"{words}: exit code {code}\n{errors[:2000]}{raw_controls(out)[:200]!r}")


def _broken_rule(code: object, out: str, errors: str) -> str:
    """Return the kind of a finding; empty without one."""
    lines = errors.splitlines()
    has_error = any(line.startswith("error: ") for line in lines)
    if code not in CODES or (code == 0 and has_error) or (code == 2 and not has_error):
        return "code"
    if raw_controls(out + errors):
        return "escape"
    return "message" if any(len(line) > LINE_CHARACTERS for line in lines) else ""


def _code(words: list[str]) -> object:
    try:
        return dispatch(words)
    except SystemExit as ended:
        return ended.code or 0


def _reset_peak_bytes() -> int:
    """Begin a new peak of this process's memory, and return the memory in use.

    Memory that the parent freed is given back before. A command that gives it back would hide what it takes.
    """
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) << 10

"""Runs commands below limits of the system, and writes how each ends as JSON.

    python scripts/limits.py                             every limit, about three minutes on two cores
    python scripts/limits.py "open files" --json F.json  one of them, saved

The limits: open files, address space, data, processes, /dev/shm, the disk of the current folder, home, and standard
output. The commands: a run, a report, and the doctor. A row has the limit, its value, the command, the exit code, the
last line on standard error, the seconds, and whether there was a traceback. `launchopt reliability` makes a table of
the file.

Needs Linux, bash, and rights to mount (root, or user namespaces); without them a row says `not tried`. Root ignores
some limits, so the commands of these run as a user without a name, who may read every file.

Exit code: 1 after a traceback, a hang (120 s), or an end by a signal; 2 if an option is wrong; else 0.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from support.paths import TESTS
from support.processes.own_mounts import own_mounts
from support.processes.own_process import environ_of, without_progress

from launchopt.devices.cpu.info import cpu_info
from launchopt.errors import DataError, last_line, printable
from launchopt.files import save_json
from launchopt.recording.environment import environment
from launchopt.recording.manifest import SCHEMA_VERSION
from runner.output_names import file_named
from runner.reading import CommandParser, exit_code

PATIENCE_S = 120
LINE_CHARACTERS = 240
NO_RIGHTS = "this system does not allow it"
USER = "64321"  # has no name, no home and no other processes
_READ_ALL = "-all,+dac_read_search"  # the interpreter may be in root's home
AS_USER = ("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", f"--inh-caps={_READ_ALL}")
WORK = "workload=gemv_micro workload.m=16 workload.k=64 workload.cache=hot workload.commands=2000 mode=batched"
COMMANDS = {
    "run": f"run {WORK} against=[] repeats=1 device=cpu",
    "report": "report ../results --json report.json",
    "doctor": "doctor --device cpu --no-floors --json doctor.json",
}


class Limit(NamedTuple):
    """A limit and its value; `before` and `after`: shell around the command, in which `.` is the current folder."""

    name: str
    value: str
    before: str = ""
    after: str = ""
    mounts: str = ""
    as_user: bool = False


def _tmpfs(options: str, place: str) -> str:
    return f"mount -t tmpfs -o {options} tmpfs {place}"


LIMITS = (
    Limit("open files", "16", "ulimit -n 16"),
    Limit("open files", "64", "ulimit -n 64"),
    Limit("address space", "300,000 KiB", "ulimit -v 300000"),
    Limit("data", "300,000 KiB", "ulimit -d 300000"),
    Limit("processes", "4", "ulimit -u 4", as_user=True),
    Limit("/dev/shm", "64 KiB", mounts=_tmpfs("size=64k", "/dev/shm")),
    Limit("disk", "1 MiB", mounts=_tmpfs("size=1m", "cwd")),
    Limit("disk", "read-only", mounts=_tmpfs("ro", "cwd")),
    Limit("disk", "files of 4 KiB", "ulimit -f 4"),
    Limit("home", "does not exist", "export HOME=/nonexistent XDG_CACHE_HOME=", as_user=True),
    Limit("home", "unset, no name", "unset HOME XDG_CACHE_HOME", as_user=True),
    Limit("standard output", "pipe without a reader", after="| true"),
    Limit("standard output", "closed", after=">&-"),
    Limit("standard output", "full disk", after=">/dev/full"),
)
NAMES = tuple(dict.fromkeys(limit.name for limit in LIMITS))


@dataclass(frozen=True, slots=True)
class Row:
    """How a command ended below a limit."""

    limit: str
    value: str
    command: str
    exit_code: int | None  # None: it hung, or was not tried
    last_line: str  # on standard error
    seconds: float
    traceback: bool
    not_tried: str = ""  # why not

    @property
    def is_bad(self) -> bool:
        """Whether there was a traceback, a hang, or an end by a signal."""
        return self.traceback or (not self.not_tried and (self.exit_code is None or self.exit_code < 0))


def tried(limit: Limit, command: str, folder: Path) -> Row:
    """Run a command in an empty folder below the limit."""
    cwd = folder / "cwd"
    for each in (cwd, folder / "tmp"):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir()
        each.chmod(0o777)
    if not (call := _call(limit, command)):
        return Row(limit.name, limit.value, command, None, "", 0.0, traceback=False, not_tried=NO_RIGHTS)
    environ = environ_of() | {"LAUNCHOPT_CPU_CACHE_MIB": "32", "TMPDIR": str(folder / "tmp")}
    began_s, code = time.monotonic(), None
    with (folder / "stderr").open("w+") as errors:
        process = subprocess.Popen(
            call, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        seconds = round(time.monotonic() - began_s, 2)
        errors.seek(0)
        text = without_progress(errors.read())
    last = printable(last_line(text).replace(str(folder), "FOLDER"))[:LINE_CHARACTERS]
    return Row(limit.name, limit.value, command, _ended(code), last, seconds, bool(re.search("Traceback", text)))


def _ended(code: int | None) -> int | None:
    """Return the command's exit code: bash makes 139 of an end by signal 11, and 141 is what launchopt says itself."""
    return 128 - code if code is not None and code in (132, 134, 135, 136, 137, 139) else code


def _call(limit: Limit, command: str) -> list[str]:
    """Return the words that run a command below a limit; empty if this system does not allow that."""
    words = f"{sys.executable} -m runner {COMMANDS[command]} {limit.after}; exit ${{PIPESTATUS[0]}}"
    call = ["bash", "-c", f"cd cwd && {limit.before or 'true'} && {words}"]
    if limit.as_user and os.getuid() == 0:
        call = [*AS_USER, f"--ambient-caps={_READ_ALL}", *call] if shutil.which("setpriv") else []
    if limit.mounts:
        way = own_mounts()
        call = [*way, "bash", "-c", f'{limit.mounts} && exec "$@"', "bash", *call] if way else []
    return call


def _main(names: Sequence[str], target: Path | None) -> int:
    if target is not None and not target.parent.is_dir():  # an error now, not after minutes
        raise DataError(target, None, f"{target.parent} is no folder")
    rows, began = [], datetime.now(UTC).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory(prefix="launchopt-limits-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "results").mkdir()
        (folder / "results").chmod(0o777)
        shutil.copy(TESTS / "corpus" / "summary.parquet", folder / "results")
        for limit in LIMITS:
            for command in COMMANDS if limit.name in names else ():
                rows.append(row := tried(limit, command, folder))
                ending = row.not_tried or ("hung" if row.exit_code is None else f"{row.exit_code} in {row.seconds} s")
                print(f"{limit.name} {limit.value}: {command}: {ending}: {row.last_line}", flush=True)
    if target is not None:
        about = {"schema_version": SCHEMA_VERSION, "started_utc": began, "commands": COMMANDS}
        facts = {"environment": environment(), "processor": cpu_info().name}
        save_json(target, {**about, "rows": [asdict(row) for row in rows], **facts})
    return 1 if any(row.is_bad for row in rows) else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Try every limit and return the exit code."""
    parser = CommandParser("limits", __doc__)
    parser.add_argument("limits", nargs="*", choices=[*NAMES, []], metavar="LIMIT", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--json", type=file_named(".json"), metavar="FILE.json", help="save the rows here")
    options = parser.parsed(argv, needs_words=False)
    return exit_code(lambda: _main(options.limits or NAMES, options.json))


if __name__ == "__main__":
    sys.exit(main())

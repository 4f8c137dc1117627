"""Measures the reference results again, in parts of a few minutes each; none twice by one revision.

    python scripts/reference.py --list                        the parts, and what is left of each
    python scripts/reference.py --check                       compose every command; run none
    python scripts/reference.py --output outputs/new          every part that this machine can run
    python scripts/reference.py --only readme                 what the README shows: 4 minutes on an H100
    python scripts/reference.py --only gpu/strategies/layer   one part; a prefix such as gpu/strategies names several
    python scripts/reference.py --only goals --minutes 9      as many of them as fit; the next start goes on

reference_parts.py declares the parts. The code must be a revision without uncommitted changes; `--dirty` measures
others and marks them. A copy without a history needs LAUNCHOPT_GIT_REVISION. Each manifest gets an entry `part`: the
commands, and machine, driver and clocks before and after them. With `--gpus 4` four parts run at a time, each with a
GPU and an equal share of the cores of its own, and the entry says so. The state of all parts is in `parts.json` of the
output folder. Compare figures of one part only, since each part has one machine. `--traces` names the folder, at any
depth, with the recorded files; a part whose file is not there is skipped, and says where to get it.

scripts/readme_figures.py and scripts/goal_pages.py make the pages; scripts/reproduced.py compares with the committed.

Exit code 0: every chosen part is done or skipped. 1: a part failed or ran out of time, and its last line is shown; the
next start measures it again. 2: bad input, or code with uncommitted changes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from launchopt.devices import find_device
from launchopt.errors import ConfigError, explained, last_line, nearest
from launchopt.files import JsonObject, absent, read_json, reason, save_json
from launchopt.recording.environment import environment
from runner.ending import end
from runner.provenance.origins import carriers, origin
from runner.reading import CommandParser, exit_code, positive, whole_number
from scripts.reference_check import check
from scripts.reference_machine import Place, machine, name_of, place_for, places, shortage
from scripts.reference_part import Part, words_of
from scripts.reference_parts import PARTS, TRACES
from scripts.reference_running import Running
from scripts.reference_states import DONE, begin, check_folders, held, save_state, state_of

ROOT = Path(__file__).parents[1]
REVISION = re.compile(r"[0-9a-f]{7,40}")
NAMED = "LAUNCHOPT_GIT_REVISION"


class Session(NamedTuple):
    """What holds for all parts of a start."""

    output: Path
    traces: Path
    revision: object
    is_dirty: bool
    runs_gpu: bool
    ends: float  # of the monotonic clock: no part goes on after it
    running: Running
    code_sha1: object = None  # of a copy without a history
    place: Place = Place()


def measure_on(gpus: int, parts: Sequence[Part], session: Session) -> int:
    """Measure what is left of `parts`, as many at a time as have GPUs of their own; return how many failed.

    The longest of them begin first, so that all GPUs are done at about the same time.
    """
    if gpus == 1:
        return measure(parts, session)
    left = sorted(parts, key=lambda part: part.needed_s, reverse=True)
    return sum(
        _side_by_side(places(gpus, each) or [session.place], [part for part in left if part.gpus == each], session)
        for each in sorted({part.gpus for part in parts})
    )


def _side_by_side(found: Sequence[Place], parts: Sequence[Part], session: Session) -> int:
    left = iter(parts)  # that of a list hands each part to one thread
    with ThreadPoolExecutor(len(found)) as pool:
        try:
            return sum(pool.map(lambda place: measure(left, session._replace(place=place)), found))
        except BaseException:
            list(left)  # after Ctrl-C no other part begins
            session.running.stop()
            raise


def measure(parts: Iterable[Part], session: Session) -> int:
    """Measure what is left of `parts`, one after the other; return the number of parts that failed."""
    failed = 0
    for part in parts:
        if state_of(part, session.output, session.revision)["state"] == DONE:
            print(f"{part.folder}: done before")
            continue
        if lack := _lack(part, session):
            print(f"{part.folder}: skipped, needs {lack}")
            continue
        if part.needed_s > (left_s := session.ends - time.monotonic()):
            print(f"{part.folder}: left, takes about {part.needed_s:.0f} s, and {max(left_s, 0):.0f} s are left")
            continue
        print(
            f"{part.folder}: {part.commands[0]}{f' and {n} more' if (n := len(part.commands) - 1) else ''}", flush=True
        )
        begin(part, session.output, session.revision)
        found = _measured(part, session._replace(place=place_for(part.gpus, session.place)))
        if session.running.is_over:
            break
        save_state(part, session.output, found)
        about = f"{found['state']} after {found['seconds']:.0f} s on {found['machine']}{_why(found)}"
        print(f"{part.folder}: {about}", flush=True)
        failed += found["state"] != DONE
    return failed


def _lack(part: Part, session: Session) -> str:
    """Return what this machine lacks for a part, or nothing."""
    if part.device == "cuda" and not session.runs_gpu:
        return "a GPU"
    if part.gpus > 1 and (there := len(machine(part.device, session.place).get("gpus", []))) < part.gpus:
        return f"{part.gpus} GPUs, and there {'is' if there == 1 else 'are'} {there}"
    if part.program and not shutil.which(part.program):
        return f"{part.program} on the PATH"
    if part.needs and _trace(part, session) is None:
        return f"{part.needs} below --traces {session.traces} ({TRACES[part.needs]})"
    return ""


def _trace(part: Part, session: Session) -> Path | None:
    found = sorted(path for path in session.traces.rglob(part.needs) if path.is_file()) if part.needs else []
    return found[0] if found else None


def _why(found: Mapping[str, object]) -> str:
    return f": {found['why']}" if found.get("why") else ""


def _measured(part: Part, session: Session) -> JsonObject:
    """Run a part, add its entry to the manifests, and return its state."""
    folder = session.output / part.folder
    before, started = machine(part.device, session.place), time.monotonic()
    code, last = _ended(part, folder, session)
    about: JsonObject = {
        "commands": [*part.commands],
        "seconds": round(time.monotonic() - started, 1),
        "exit_code": code,
        "dirty": session.is_dirty,
    }
    after = machine(part.device, session.place)
    unread = _described(folder, about | {"before": before, "after": after})
    why = (unread or _fault(folder, session)) if code == 0 else last
    state = DONE if not why else "out of time" if code is None else "failed"
    return about | {"state": state, "why": why, "revision": session.revision, "machine": name_of(before)}


def _described(folder: Path, about: JsonObject) -> str:
    """Add the entry of a part to its manifests; return which one cannot be read, or nothing."""
    for path in carriers(folder):
        try:
            save_json(path, {**read_json(path), "part": about})
        except (OSError, ValueError, TypeError) as error:
            why = reason(error) if isinstance(error, OSError | ValueError) else "not an object"
            return f"{path.relative_to(folder)} cannot be read as JSON ({why})"
    return ""


def _ended(part: Part, folder: Path, session: Session) -> tuple[int | None, str]:
    """Return the first exit code that is not 0, and the last line on standard error; None if the time is over."""
    limit_s = min(60 * part.minutes, session.ends - time.monotonic())
    ends = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory() as scratch:
        found = {"folder": str(folder), "scratch": scratch, "trace": str(_trace(part, session))}
        for command in part.commands:
            code, text = session.running.ran(words_of(command, found), ends - time.monotonic(), session.place)
            if code is None:
                return None, f"longer than {limit_s / 60:.3g} minutes: {command}"
            if code:
                return code, last_line(text) or f"exit code {code}: {command}"
    return 0, ""


def _fault(folder: Path, session: Session) -> str:
    """Return why results of a part that ended well cannot be committed, or nothing."""
    found = [origin(path) for path in carriers(folder)]
    if not found:
        return "no manifest"
    if any(each.revision is None for each in found):
        return "no revision in the manifest"
    codes = {session.code_sha1, *(each.code_sha1 for each in found)} - {None}
    is_same = len(codes) <= 1 and all(each.revision == session.revision and not each.dirty for each in found)
    return "" if is_same or session.is_dirty else "the code was changed meanwhile"


def chosen(parts: Sequence[Part], wanted: Sequence[str]) -> list[Part]:
    """Return the parts whose folder is, or is below, one that is wanted; ConfigError for a name that fits none."""
    for name in wanted:
        if not any(_is_below(part, name) for part in parts):
            folders = [part.folder for part in parts]
            raise ConfigError("--only", name, explained("no such part", "see --list", nearest(name, folders)))
    return [part for part in parts if not wanted or any(_is_below(part, name) for name in wanted)]


def _is_below(part: Part, name: str) -> bool:
    return f"{part.folder}/".startswith(f"{name.rstrip('/')}/")


def list_parts(parts: Sequence[Part], output: Path, revision: object) -> None:
    """Print every part: state, device, about how long it takes or the most minutes, folder, machine, commands."""
    for part in parts:
        state = state_of(part, output, revision)
        on = f" (on {state['machine']})" if "machine" in state else ""
        takes = f"{part.seconds:>3} s" if part.seconds else f"{part.minutes:>3g} min"
        about = f"{state['state']:<11} {part.device:<4} {takes:<7}  {part.folder}{on}"
        print(f"{about}: {'; '.join(part.commands)}{_why(state)}")


def main(argv: Sequence[str] | None = None, parts: Sequence[Part] = PARTS) -> int:
    """Run the command; `argv` without the program's name. Returns the exit code."""
    options = _parser().parsed(argv, needs_words=False)
    return exit_code(lambda: _main(options, parts))


def _main(options: argparse.Namespace, parts: Sequence[Part]) -> int:
    wanted, about = chosen(parts, options.only), environment()
    if options.check:
        return 1 if check(wanted) else 0
    revision, is_dirty = about.get("git_revision"), bool(about.get("git_dirty"))
    if options.output.exists() and not options.output.is_dir():
        raise ConfigError("--output", str(options.output), absent(options.output))
    if options.list:
        list_parts(wanted, options.output, revision)
        return 0
    _check_revision(revision, is_dirty, options.dirty)
    if options.traces is not None and not options.traces.is_dir():
        raise ConfigError("--traces", str(options.traces), absent(options.traces))
    runs_gpu = find_device("auto", 0)[0].kind == "cuda"
    if why := shortage(options.gpus, runs_gpu):
        raise ConfigError("--gpus", options.gpus, why)
    traces = (options.traces or ROOT / "traces").absolute()
    ends = time.monotonic() + 60 * (options.minutes or float("inf"))
    output = options.output.absolute()
    check_folders(wanted, output)
    running, code_sha1 = Running(), about.get("code_sha1")
    with held(output):
        session = Session(output, traces, revision, is_dirty, runs_gpu, ends, running, code_sha1)
        return 1 if measure_on(options.gpus, wanted, session) else 0


def _check_revision(revision: object, is_dirty: bool, may_be_dirty: bool) -> None:
    """Raise ConfigError for code without a clean revision."""
    if (named := os.environ.get(NAMED)) and not REVISION.fullmatch(named):
        raise ConfigError(NAMED, named, "must be the revision of this code, 7 to 40 hexadecimal digits")
    if revision is None or (is_dirty and not may_be_dirty):
        why = "has uncommitted changes" if is_dirty else f"has no history, and {NAMED} is not set"
        what = "commit first, or give --dirty, which marks them" if is_dirty else "set it"
        raise ConfigError("code", str(ROOT), f"{why}; results must name a clean revision: {what}")


def _parser() -> CommandParser:
    parser = CommandParser("reference", __doc__)
    parser.add_argument("--list", action="store_true", help="print the parts and their state")
    parser.add_argument("--check", action="store_true", help="compose every command, and run none")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="folders of parts, or of groups of parts")
    parser.add_argument("--output", type=Path, default=Path("outputs/new"), metavar="DIR", help="default: outputs/new")
    parser.add_argument("--minutes", type=positive, metavar="N", help="begin no part that is not over by then")
    parser.add_argument("--gpus", type=whole_number(1), default=1, metavar="N", help="parts at a time, a GPU for each")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="folder with recorded files; default: traces")
    parser.add_argument("--dirty", action="store_true", help="measure code with uncommitted changes, and mark it")
    return parser


if __name__ == "__main__":
    end(main)

"""Benchmarks in several processes, and their figures as one.

    for rows in measured(["ring", "modes"], device="cuda", repeats=5, processes=3, folder=folder): ...

Samples of one process are alike and say little of the next one. So the parts are measured in turn, each in a new
process, and that as often as `processes` says.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from launchopt.errors import RunError, last_line
from launchopt.recording.results import Row
from launchopt.scratch import scratch
from runner.bench import account
from runner.bench.figures import FILE, Figure, read
from runner.worker.lifeline import run_bound

_MOST_SHOWN = 300  # characters of the last line of a process that failed

_Found = dict[tuple[str, str, str], list[Row]]  # part, case and unit -> the row of each process


def measured(suites: Sequence[str], device: str, repeats: int, processes: int, folder: Path) -> Iterator[list[Row]]:
    """Yield the figures of all processes so far as rows, behind each part of each process, also one that failed.

    The account of the megakernel goes to `folder`, from the first process. RunError: a process failed.
    """
    found: _Found = {}
    with scratch() as root:
        for process in range(processes):
            for suite in suites:
                place = root / f"{suite}_{process}"
                print(f"process {process + 1} of {processes}: {suite}", file=sys.stderr)
                words = [suite, "--repeats", str(repeats), "--device", device, "--output", str(place)]
                try:
                    _run(words, process, suite)
                except BaseException:  # also Ctrl-C: it has saved the figures before that
                    yield _with_those_of(place, found)
                    raise
                if (place / account.FILE).is_file() and process == 0:
                    shutil.copyfile(place / account.FILE, folder / account.FILE)
                yield _with_those_of(place, found)


def _with_those_of(place: Path, found: _Found) -> list[Row]:
    """Add the figures of a process to those of earlier ones; return all as rows."""
    for row in read(place) if (place / FILE).is_file() else ():  # none: it does not run on this device
        found.setdefault((row["suite"], row["case"], row["unit"]), []).append(row)
    return [_merged(rows) for rows in found.values()]


def _run(words: Sequence[str], process: int, suite: str) -> None:
    done = run_bound(["bench", *words])
    if done.returncode:
        is_signal = done.returncode < 0
        how = f"ended by signal {-done.returncode}; its last line" if is_signal else f"exit code {done.returncode}"
        said = (last_line(done.stderr) or "none")[-_MOST_SHOWN:]
        raise RunError(f"{suite} in process {process + 1}: {how}: {said}")


def _merged(rows: Sequence[Row]) -> Row:
    """Return the figure of several processes, of the row of each."""
    first = rows[0]
    return Figure(
        first["suite"],
        first["case"],
        first["unit"],
        [sample for row in rows for sample in row["samples"]],
        first["goal"],
        higher_is_better=first["higher_is_better"],
        samples_of=[len(row["samples"]) for row in rows],
    ).row()

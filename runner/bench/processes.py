"""Benchmarks in several processes, and their figures as one.

    for rows in measured(["ring", "modes"], device="cuda", repeats=5, processes=3, folder=folder): ...

Samples of one process are alike and say little of the next one: memory lies elsewhere, and other work on the host's
cores comes and goes within seconds. So every process measures each part in turn, one after the other.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from launchopt.errors import RunError
from launchopt.recording.results import Row
from launchopt.scratch import scratch
from runner.bench import account
from runner.bench.figures import FILE, Figure, read
from runner.worker.lifeline import run_bound

_MOST_SHOWN = 300  # characters of what a process that failed said last


def measured(suites: Sequence[str], device: str, repeats: int, processes: int, folder: Path) -> Iterator[list[Row]]:
    """Yield the figures of all processes so far as rows, behind each part of each process.

    The account of the megakernel goes to `folder`, from the first process. RunError: a process failed.
    """
    found: dict[tuple[str, str, str], list[Row]] = {}
    with scratch() as root:
        for process in range(processes):
            for suite in suites:
                place = root / f"{suite}_{process}"
                print(f"process {process + 1} of {processes}: {suite}", file=sys.stderr)
                _run([suite, "--repeats", str(repeats), "--device", device, "--output", str(place)], process, suite)
                if (place / account.FILE).is_file() and process == 0:
                    shutil.copyfile(place / account.FILE, folder / account.FILE)
                for row in read(place) if (place / FILE).is_file() else ():  # none: it does not run on this device
                    found.setdefault((row["suite"], row["case"], row["unit"]), []).append(row)
                yield [_merged(rows) for rows in found.values()]


def _run(words: Sequence[str], process: int, suite: str) -> None:
    done = run_bound(["bench", *words])
    if done.returncode:
        said = done.stderr.strip()[-_MOST_SHOWN:]
        raise RunError(f"{suite} in process {process + 1}: exit code {done.returncode}: {said}")


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

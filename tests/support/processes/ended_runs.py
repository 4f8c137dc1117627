"""Runs whose results several tests read: `ended_runs` makes each of them once.

A run in a process of its own takes 3 s of processor time, most of it to load libraries and compiled loops. Here one
process makes all runs one after another (keeping.py), 1 s each. `typed` names the runs that get a process of their own,
since tests examine the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from launchopt.recording import results
from support.paths import ROOT, TESTS
from support.processes.own_process import alone, environ_of, without_progress

PATIENCE_S = 300.0


@dataclass(frozen=True)
class Ran:
    """A run that has ended."""

    exit_code: int
    stdout: str
    stderr: str
    folder: Path  # where it ran

    @property
    def written(self) -> Path:
        """The folder of its results, below outputs/run."""
        (folder,) = self.folder.glob("outputs/run/*")
        return folder

    @property
    def row(self) -> results.Row:
        """The only row of its summary."""
        (row,) = results.read_summaries([self.written])
        return row

    @property
    def rows(self) -> dict[tuple[str, int], results.Row]:
        """The rows of its summary, by mode and repeat."""
        return {(row["mode"], row["repeat"]): row for row in results.read_summaries([self.written])}

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.written / f"{name}.parquet")

    def job_folders(self) -> list[Path]:
        """The folders of a sweep, in order."""
        return sorted(self.folder.glob("outputs/sweep/*/[0-9]*"), key=lambda path: int(path.name))

    def jobs(self) -> list[tuple[results.Row, Path]]:
        """Row and folder of each job of a sweep."""
        return [(row, folder) for folder in self.job_folders() for row in results.read_summaries([folder])]


class Keeper:
    """A process that makes one run after another, and keeps its children."""

    def __init__(self, log: Path, root: Path = ROOT) -> None:
        """Start the process with the packages in `root`. It and its children write to `log`, outside of runs."""
        self._log = log
        call, environ = [sys.executable, "-m", "support.processes.keeping"], environ_of(root, TESTS)
        with log.open("w") as stderr:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                call, cwd=root, env=environ, stdin=pipe, stdout=pipe, stderr=stderr, text=True
            )

    def run(self, arguments: str, folder: Path) -> Ran:
        """Make a run in an existing folder."""
        assert self._process.stdin
        assert self._process.stdout
        files = [folder.with_name(f"{folder.name}.{name}") for name in ("stdout", "stderr")]
        out, err = map(str, files)
        run = {"words": arguments.split(), "folder": str(folder), "stdout": out, "stderr": err}
        print(json.dumps(run), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, self._log.read_text()
        stdout, stderr = (path.read_text() for path in files)
        return Ran(json.loads(answer), stdout, without_progress(stderr), folder)

    def close(self) -> None:
        """End the process, and check that it wrote no warning."""
        try:
            self._process.communicate(timeout=PATIENCE_S)
        finally:
            self._process.kill()
        assert (self._process.returncode, self._log.read_text()) == (0, "")


def typed_run(arguments: str, folder: Path) -> Ran:
    """Make a run by a process of its own, as a user does."""
    call = [sys.executable, "-m", "runner", *arguments.split()]
    done = subprocess.run(call, cwd=folder, env=environ_of(), capture_output=True, text=True, timeout=PATIENCE_S)
    return Ran(done.returncode, done.stdout, without_progress(done.stderr), folder)


def assert_ended_well(run: Ran) -> None:
    """Check that every row of a run, or of its jobs, is verified, and that the run wrote no warning."""
    assert (run.exit_code, run.stderr) == (0, "")
    for row in results.read_summaries([run.folder]):
        assert (row["status"], row["verified"], row["ordering"]) == ("ok", True, "per_request")
        assert 0 < row["max_rel_error"] < row["tolerance"]


@contextmanager
def ended_runs(
    base: Path, runs: Mapping[str, str], inputs: Mapping[str, str], typed: Collection[str] = ()
) -> Iterator[Callable[[str], Ran]]:
    """Make `runs`, each in a folder of its own with the files `inputs`; yield a function that waits for one by name.

    A single run has no base beside it, unless it names one.
    """
    with ThreadPoolExecutor(1) as apart, ThreadPoolExecutor(1) as together:
        keeper = Keeper(base / "kept.stderr")
        try:
            ended = {}
            for number, (name, arguments) in enumerate(runs.items()):
                folder = base / str(number)
                folder.mkdir()
                for file, text in inputs.items():
                    (folder / file).write_text(text)
                where, how = (apart, typed_run) if name in typed else (together, keeper.run)
                ended[name] = where.submit(how, " ".join(alone(arguments.split())), folder)
            yield lambda name: ended[name].result()
        finally:
            for pool in (apart, together):
                pool.shutdown(cancel_futures=True)
            keeper.close()

"""Runs that must be refused: their messages, exit codes, processor seconds, and the files that they leave.

Such a run costs little but loading libraries, so it is forked from a process that has loaded them (forked.py).
`typed_outcome` starts a process, as a user does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from support.paths import ROOT, TESTS
from support.processes.own_process import environ_of

HYDRAS_NOISE = ("Traceback", "HYDRA_FULL_ERROR", "full_key", "search path", "append", "use +")
BAD_INPUT = 2  # exit code
LIMIT_S = 4.0  # processor time of a refusal on a slow machine, with all libraries loaded; a run takes longer
MOST_CHARACTERS = 6 * 80  # six lines of a narrow terminal
PATIENCE_S = 120.0  # a run that takes longer hangs, however busy this machine is
AT_ONCE = 2
FORKED = "support.processes.forked"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run."""

    exit_code: int
    stdout: str
    stderr: str
    cpu_s: float  # processor seconds of the run and of processes that it waited for
    left: list[str]


def assert_refused(outcome: Outcome, words: str) -> None:
    """Check that a run ended at once with exit code 2 and one short line of ours, which contains `words`."""
    assert outcome.exit_code == BAD_INPUT
    assert outcome.stderr.startswith("error: ")
    assert outcome.stderr.count("\n") == 1
    assert len(outcome.stderr) <= MOST_CHARACTERS
    assert [word for word in HYDRAS_NOISE if word in outcome.stderr] == []
    assert [word for word in words.split(" ") if word not in outcome.stderr] == []
    assert outcome.stdout == ""
    assert outcome.left == []
    assert outcome.cpu_s < LIMIT_S


def words_of(case: str) -> list[str]:
    """Return the words after `python -m runner`, with device=cpu if the case names no device."""
    words = case.split(" ")
    return words if any(word.startswith("device=") for word in words) else [*words, "device=cpu"]


def forked_outcomes(cases: Collection[str], inputs: Mapping[str, str], base: Path) -> dict[str, Outcome]:
    """Return the outcome of each case, by a forked process. Each run has its own folder below `base`, with `inputs`."""
    servers: SimpleQueue[_Server] = SimpleQueue()

    def outcome(number: int, case: str) -> Outcome:
        folder, server = _folder(base / str(number), inputs), servers.get()
        try:
            return server.outcome(words_of(case), folder, inputs)
        finally:
            servers.put(server)

    with _Server.started(AT_ONCE) as started, ThreadPoolExecutor(AT_ONCE) as pool:
        for server in started:
            servers.put(server)
        return dict(zip(cases, pool.map(outcome, range(len(cases)), cases), strict=True))


def typed_outcome(case: str, inputs: Mapping[str, str], folder: Path) -> Outcome:
    """Return the outcome of a case in a new process, in a new `folder`."""
    _folder(folder, inputs)
    call = [sys.executable, "-m", "runner", *words_of(case)]
    ended = subprocess.run(call, cwd=folder, env=environ_of(), capture_output=True, text=True, timeout=PATIENCE_S)
    return Outcome(ended.returncode, ended.stdout, ended.stderr, 0.0, _left(folder, inputs))


class _Server:
    """A process that forks runs, one at a time."""

    def __init__(self) -> None:
        call, environ = [sys.executable, "-m", FORKED], environ_of(ROOT, TESTS)
        self._process = subprocess.Popen(call, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @classmethod
    @contextmanager
    def started(cls, count: int) -> Iterator[Sequence[_Server]]:
        """Start `count` processes; they end with the block."""
        servers = [cls() for _ in range(count)]
        try:
            yield servers
        finally:
            for server in servers:
                server._process.kill()
                server._process.communicate()

    def outcome(self, words: Sequence[str], folder: Path, inputs: Collection[str]) -> Outcome:
        """Return the outcome of a run in `folder`. After a run that hangs, all later runs fail."""
        assert self._process.stdin
        assert self._process.stdout
        outputs = [folder.with_suffix(f".{name}") for name in ("stdout", "stderr")]
        run = {"words": words, "folder": str(folder), "stdout": str(outputs[0]), "stderr": str(outputs[1])}
        print(json.dumps(run), file=self._process.stdin, flush=True)
        hang = threading.Timer(PATIENCE_S, self._process.kill)
        hang.start()
        try:
            pid, status, cpu_s = json.loads(self._process.stdout.readline())
        finally:
            hang.cancel()
        left = [*_left(folder, inputs), *(path.name for path in Path("/dev/shm").glob(f"launchopt_{pid}_*"))]
        stdout, stderr = (path.read_text() for path in outputs)
        return Outcome(os.waitstatus_to_exitcode(status), stdout, stderr, cpu_s, left)


def _folder(folder: Path, inputs: Mapping[str, str]) -> Path:
    folder.mkdir()
    for name, text in inputs.items():
        (folder / name).write_text(text)
    return folder


def _left(folder: Path, inputs: Collection[str]) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in inputs)

"""Compiles the loops of producer and consumer before the trials, which would measure the compiler otherwise.

A short run does it, once for each version of launchopt and form of work: of a tiny model, or on a GPU of the model that
is asked about, whose kernels are compiled, too. Beside it other runs compile the kernels of the stacks of OWN, where
there are cores for that. A mark beside the compiled code says that it is done. The budget begins afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from launchopt.caches import compiled_folder
from launchopt.errors import Interrupted, LaunchoptError, RunError
from runner.advise.question import Question
from runner.calling.caller import call
from runner.calling.words import words_of

MOST_S = 600.0
SHORT = {"workload.layers": 1, "workload.tokens": 2, "mode": "engine", "against": ["baseline"]}
OWN = ("engine+silu+epilogue+graph+own+pdl", "megakernel")  # stacks whose kernels take long to compile
CORES_OF_RUN, GRACE_S = 4, 5.0
UNRECORDED = {"record.launches": "none"}
# By whether the work has steps: a short run that enters each compiled loop.
WORK: dict[bool, dict[str, object]] = {
    True: {"workload": "layer", "model": "tiny", "workload.requests": 2} | SHORT,
    False: {"workload": "gemv_256", "workload.commands": 64, "mode": "batched", "against": ["baseline"]},
}


def compile_loops(question: Question, kind: str, folder: Path) -> float:
    """Compile what is not compiled yet, and return the seconds of that.

    RunError if it takes over MOST_S; finished parts are kept. kind: of the device. folder: for the results, which are
    removed.
    """
    mark = _mark(question, kind)
    if mark is None or mark.exists():
        return 0.0
    print("compiling, once for this version on this machine; --budget-s begins after it ...", file=sys.stderr)
    began_s = time.monotonic()
    of_model = kind == "cuda" and bool(question.requests)
    settings = _settings(question, of_model) | {"job_timeout_s": MOST_S}
    place, has_cores = folder / "compiling", (os.cpu_count() or 1) >= CORES_OF_RUN * (1 + len(OWN))
    labels = OWN if of_model and has_cores else ()
    others = [words_of(settings | {"mode": label, "against": []}, place / label) for label in labels]
    try:
        with _beside(others, began_s + MOST_S):
            call(words_of(settings, place / "engine"), is_quiet=True)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except Interrupted:
        raise
    except (LaunchoptError, OSError):  # the trials meet the same error, or compile
        pass
    finally:
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
    took_s = time.monotonic() - began_s
    if took_s > MOST_S:
        raise RunError(f"compiling took over {MOST_S:.0f} s. What it compiled is kept: type the same again")
    print(f"compiled in {took_s:.0f} s; the next advice does without", file=sys.stderr)
    return took_s


@contextlib.contextmanager
def _beside(calls: Sequence[Sequence[str]], until_s: float) -> Iterator[None]:
    """Run the words of each call in a process of its own during the block, and behind it until `until_s` at most."""
    quiet = subprocess.DEVNULL
    running = [
        subprocess.Popen([sys.executable, "-m", "runner", "run", *words], stdin=quiet, stdout=quiet, stderr=quiet)
        for words in calls
    ]
    try:
        yield
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until_s - time.monotonic()))
    finally:
        for process in running:
            process.terminate()
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            process.kill()
            process.wait()


def _settings(question: Question, of_model: bool) -> dict[str, object]:
    """Return the settings of the short run, without its limit. of_model: it runs the model that is asked about."""
    own = {key: value for key, value in question.settings.items() if key != "workload.weights"}  # its modes take none
    work = {**own, **SHORT} if of_model else WORK[bool(question.requests)]
    return work | {"device": question.settings["device"], "workload.cache": "hot", "repeats": 1} | UNRECORDED


def _mark(question: Question, kind: str) -> Path | None:
    """Return the file that says that this is done; None if compiled code cannot be kept."""
    folder = compiled_folder()
    form = "steps" if question.requests else "commands"
    return None if folder is None else Path(folder, f"advised-{kind}-{form}-{sys.implementation.cache_tag}")

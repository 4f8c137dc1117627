"""Compiles the loops of producer and consumer before the trials, which would measure the compiler otherwise.

A short run does it, once for each version of launchopt and form of work: of a tiny model, or on a GPU of the model that
is asked about, whose kernels are compiled, too. A mark beside the compiled code says that it is done.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from pathlib import Path

from launchopt.caches import compiled_folder
from launchopt.errors import Interrupted, LaunchoptError, RunError
from runner.advise.question import Question
from runner.calling.caller import call
from runner.calling.words import words_of

ENDING_S = 4.0  # beyond the reserve for the page: a process that compiles answers late
SHORT = {"workload.layers": 1, "workload.tokens": 2, "mode": "engine", "against": ["baseline"]}
UNRECORDED = {"record.launches": "none"}
# By whether the work has steps: a short run that enters each compiled loop.
WORK: dict[bool, dict[str, object]] = {
    True: {"workload": "layer", "model": "tiny", "workload.requests": 2} | SHORT,
    False: {"workload": "gemv_256", "workload.commands": 64, "mode": "batched", "against": ["baseline"]},
}


def compile_loops(question: Question, kind: str, folder: Path, most_s: float) -> None:
    """Compile what is not compiled yet. RunError if that takes over `most_s` seconds; finished parts are kept.

    kind: of the device. folder: for the results, which are removed.
    """
    mark = _mark(question, kind)
    if mark is None or mark.exists():
        return
    print("compiling, once for this version on this machine ...", file=sys.stderr)
    began_s = time.monotonic()
    settings = _settings(question, kind) | {"job_timeout_s": max(1.0, round(most_s - ENDING_S, 1))}
    try:
        call(words_of(settings, folder / "compiling"), is_quiet=True)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except Interrupted:
        raise
    except (LaunchoptError, OSError):  # the trials meet the same error, or compile
        pass
    finally:
        shutil.rmtree(folder / "compiling", ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
    took_s = time.monotonic() - began_s
    if took_s > most_s - ENDING_S:
        raise RunError(
            f"compiling, once for this version on this machine, took {took_s:.0f} s, and --budget-s ended. What it "
            "compiled is kept: type the same again"
        )
    print(f"compiled in {took_s:.0f} s; the next advice does without", file=sys.stderr)


def _settings(question: Question, kind: str) -> dict[str, object]:
    """Return the settings of the short run, without its limit."""
    work = WORK[bool(question.requests)]
    if kind == "cuda" and question.requests:
        work = {**question.settings, **SHORT}
    return work | {"device": question.settings["device"], "workload.cache": "hot", "repeats": 1} | UNRECORDED


def _mark(question: Question, kind: str) -> Path | None:
    """Return the file that says that this is done; None if compiled code cannot be kept."""
    folder = compiled_folder()
    form = "steps" if question.requests else "commands"
    return None if folder is None else Path(folder, f"advised-{kind}-{form}-{sys.implementation.cache_tag}")

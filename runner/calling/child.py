"""The process of one run of a Python program.

    python -P -c BOOT ROOT PIPE PARENT WORDS...      with BOOT of `caller`

It does what `launchopt run WORDS` does, but sends its error to the program instead of printing it. If the program ends,
the run is interrupted, and keeps its finished repeats.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from launchopt import errors
from launchopt.errors import LaunchoptError, RunError
from launchopt.messages import collect_errors
from runner.ending import outcome, stand
from runner.ending.outputs import settled
from runner.worker.lifeline import end_with

STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Ended(NamedTuple):
    """How a run ended. folder: of its results; None if it was refused before it had one, or if it ran nothing."""

    exit_code: int
    folder: Path | None
    error: LaunchoptError | None


def main() -> None:
    """Run the words of this process, and send an `Ended` to the program that started it."""
    pipe, parent, *words = sys.argv[2:]
    os.set_inheritable(int(pipe), False)
    stand()
    end_with(int(parent), signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # the program blocked them before it started this process
    found = collect_errors()
    code = settled(outcome(lambda: _run(words)))
    with Connection(int(pipe), readable=False) as program:
        program.send(Ended(code, _folder(), _worst(found)))
    gc.freeze()  # else the interpreter collects all objects as it ends
    sys.exit(code)


def _run(words: list[str]) -> int:
    from runner import commands

    return commands.call("run", words)


def _folder() -> Path | None:
    app = sys.modules.get("runner.app")
    return app.folder() if app is not None else None


def _worst(found: list[object]) -> LaunchoptError | None:
    """Return the first error with the highest exit code, as a class of `launchopt.errors`; None if there is none."""
    known = [each if isinstance(each, LaunchoptError) else RunError(str(each)) for each in found]
    return _plain(max(known, key=lambda each: each.exit_code)) if known else None


def _plain(error: LaunchoptError) -> LaunchoptError:
    """Return an error that the program can read without modules of `runner`, and without a value's class."""
    kind = next(each for each in type(error).__mro__ if each.__module__ == errors.__name__)
    plain: LaunchoptError = kind.__new__(kind, *error.args)
    values = {name: each if isinstance(each, int | str | None) else str(each) for name, each in vars(error).items()}
    vars(plain).update(values, exit_code=error.exit_code)
    return plain

"""End a command in order: after its work, after a signal (`signals`), or if nobody reads its output (`outputs`).

It ends before its work if a limit of the process is too low for it (`limits`).
"""

from __future__ import annotations

import gc
import os
import sys

from runner.ending.outputs import open_outputs, settled
from runner.ending.signals import how_stopped, signals, stop_code

TYPE_CHECKING = False  # that of `typing` takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def stand() -> None:
    """Install the handlers of signals, and outputs that outlive their readers. A second call does nothing."""
    signals.stand()
    open_outputs()


def end(program: Callable[[], int], is_loaded: bool = True) -> NoReturn:
    """Run a command, and end the process with its exit code. is_loaded: False if the command still imports modules."""
    stand()
    if is_loaded:
        signals.orderly()
    code = settled(outcome(program))
    gc.freeze()  # else the interpreter collects all objects as it ends, which takes 0.1 s
    sys.exit(code)


def outcome(program: Callable[[], int]) -> int:
    """Return the exit code of a command, however it ends."""
    if not _has_folder():
        print("error: the current folder was removed; type: cd FOLDER", file=sys.stderr)
        return 2
    try:
        try:
            code = program()
        except SystemExit as ended:  # of argparse
            code = _code_of(ended)
        except Exception as error:
            signals.check()
            from runner.ending.shortages import reported

            if not reported(error):
                raise
            code = 1
        signals.over()
    except KeyboardInterrupt as stop:
        signals.over()
        print(f"error: {how_stopped(stop)}", file=sys.stderr)
        code = stop_code(stop)
    return code


def _has_folder() -> bool:
    """Return whether the current folder exists. Libraries fail without one, and do not say why."""
    try:
        os.getcwd()  # noqa: PTH109 (pathlib takes 5 ms)
    except FileNotFoundError:
        return False
    return True


def _code_of(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    print(ended.code, file=sys.stderr)
    return 1

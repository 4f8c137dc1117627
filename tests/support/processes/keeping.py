"""A process that makes runs one after another and keeps its children, with their libraries and compiled loops.

It reads one run per line from standard input, as JSON: its words, its folder, and the files for its output. For each
run it writes a line with the exit code.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from runner import cli
from runner.run import children
from support.config.quick_hydra import quicken


def exit_code(run: dict[str, Any]) -> object:
    """Make the run in its folder and return its exit code."""
    sys.argv = ["runner"]
    with (
        Path(run["stdout"]).open("w") as out,
        Path(run["stderr"]).open("w") as err,
        contextlib.chdir(run["folder"]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            return cli.run(run["words"])
        except SystemExit as ended:
            return ended.code


def serve() -> None:
    """Answer each line until standard input ends, then dismiss the children."""
    quicken()
    dismiss = children.dismiss
    # At the end of a run they stay; between two sets of processes (processes=3) the used ones end.
    children.dismiss = lambda *, only_used=False: dismiss(only_used=True) if only_used else None
    while line := sys.stdin.readline():
        print(json.dumps(exit_code(json.loads(line))), flush=True)
    dismiss()


if __name__ == "__main__":  # not in a child, which imports this module too
    serve()

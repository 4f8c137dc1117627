"""A process that has loaded the libraries of `python -m runner`, and forks for each run.

It reads a run a line from standard input, as JSON: its words, its folder, and the files for its output. It writes a
line a run: process id, wait status, and seconds of processor time.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

# A refused run has loaded these libraries.
import runner.plan.plan  # noqa: F401
from runner.__main__ import main


def become(run: dict[str, Any]) -> None:
    """Become the run, in a process of its own; does not return."""
    os.chdir(run["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate((run["stdout"], run["stderr"]), 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["runner", *run["words"]]
    main()


def serve() -> None:
    gc.freeze()
    while line := sys.stdin.readline():
        pid = os.fork()
        if not pid:
            become(json.loads(line))
        _, status, usage = os.wait4(pid, 0)
        print(json.dumps([pid, status, usage.ru_utime + usage.ru_stime]), flush=True)


if __name__ == "__main__":
    serve()

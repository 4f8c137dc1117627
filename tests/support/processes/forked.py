"""`python -m runner`, again and again, by a process that has loaded its libraries already and forks for each run.

In, a line each on standard input: a run as JSON, its words, its folder, and the files for what it says. Out, a line
each: its wait status and the seconds of processor time that it took.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

# Whatever a run that is refused has loaded by then.
import runner.plan.plan  # noqa: F401
from runner.__main__ import main


def become(run: dict[str, Any]) -> None:
    """In a process of its own, until it ends."""
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

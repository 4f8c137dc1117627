"""A process that has loaded all that `python -m runner` loads for a refused run, and forks for each run.

It reads a run a line from standard input, as JSON: its words, its folder, and the files for its output. It writes a
line a run: process id, wait status, and seconds of processor time.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import sys
from typing import Any

import runner.plan.plan  # noqa: F401  (plans import it late)
from runner import cli
from runner.__main__ import main
from support.config.quick_hydra import quicken

REFUSED = ("workload.m=0", "workload=decode model=tiny slo.ttft_ms=0")


def become(run: dict[str, Any]) -> None:
    """Become the run, in a process of its own; does not return."""
    os.chdir(run["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate((run["stdout"], run["stderr"]), 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["runner", *run["words"]]
    main()


def warm_up() -> None:
    """Refuse runs in this process. Hydra's parser of overrides learns its grammar as it goes, which takes 0.2 s."""
    quicken()
    for words in REFUSED:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
            cli.run([*words.split(), "device=cpu"])


def serve() -> None:
    """Answer each line until standard input ends."""
    warm_up()
    gc.freeze()
    while line := sys.stdin.readline():
        pid = os.fork()
        if not pid:
            become(json.loads(line))
        _, status, usage = os.wait4(pid, 0)
        print(json.dumps([pid, status, usage.ru_utime + usage.ru_stime]), flush=True)


if __name__ == "__main__":
    serve()

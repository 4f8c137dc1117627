"""A process that has loaded all that `python -m runner` loads for a refused run, and forks for each run.

Standard input has a line of JSON per run: its words, its folder, and the files for its output. Standard output gets a
line per run: process id, wait status, and seconds of processor time.
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
    """Execute the run in this forked process; do not return."""
    os.chdir(run["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate((run["stdout"], run["stderr"]), 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["runner", *run["words"]]
    try:
        main()
    except SystemExit as ended:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(int(ended.code or 0))  # an orderly end of the interpreter takes a sixth of a refusal's time


def warm_up() -> None:
    """Refuse runs in this process. The first one takes 0.2 s more: Hydra's parser builds its tables."""
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

"""How long who types a command waits: until a bad one is refused, and until a run of a few commands is done.

`python -m runner` in processes of their own, in turn, on the cpu device: libraries, the config, the plan; of a run also
its two children, the compiled loops and the tables. In a folder of its own, which goes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from launchopt.errors import RunError
from runner.bench.figures import Figure, in_turn

REFUSED = "workload.commands=2000000000"  # more than any memory holds, which is found at the end of the plan
RUN = "workload=gemv_micro workload.m=16 workload.k=16 workload.commands=500 mode=batched repeats=1"
GOAL_S = 2.0
ROOT = Path(__file__).parents[2]


def seconds(typed: str, exit_code: int) -> float:
    """Until `python -m runner` with these words has ended; RunError where it ends with another exit code."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, "-m", "runner", *typed.split(" "), "device=cpu"]
        start_s = time.perf_counter()
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        ended = subprocess.run(call, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        took_s = time.perf_counter() - start_s
    if ended.returncode != exit_code:
        raise RunError(f"{' '.join(call[1:])} ended with {ended.returncode}, not {exit_code}: {ended.stderr[-400:]}")
    return took_s


def suite(repeats: int) -> Iterator[Figure]:
    """s of both."""
    refused, run = in_turn(repeats, lambda: seconds(REFUSED, 2), lambda: seconds(RUN, 0))
    yield Figure("starting", "a bad command is refused", "s", refused, GOAL_S)
    yield Figure("starting", "a run of 500 commands is done", "s", run)

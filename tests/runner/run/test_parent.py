"""The parent of a run plans, watches and writes down: it compiles nothing, nor loads what was, which takes a while."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.processes.own_process import environ_of

TINY = ["workload=gemv_256", "workload.commands=64", "mode=batched", "repeats=1", "device=cpu", "against=[]"]
WATCHED = """
import sys
from numba.core.dispatcher import Dispatcher

compiled = []
of = Dispatcher._compile_for_args

def noted(self, *values, **named):
    compiled.append(self.py_func.__qualname__)
    return of(self, *values, **named)

if __name__ == "__main__":
    Dispatcher._compile_for_args = noted
    from runner.cli import run
    code = run(sys.argv[1:])
    sys.exit(f"compiled: {compiled}" if compiled else code)
"""


def test_it_compiles_nothing(tmp_path: Path) -> None:
    (tmp_path / "watched.py").write_text(WATCHED)
    words = [sys.executable, "watched.py", *TINY]
    done = subprocess.run(words, cwd=tmp_path, env=environ_of(), check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.glob("outputs/run/*/summary.parquet"))

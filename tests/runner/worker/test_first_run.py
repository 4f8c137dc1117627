"""Nothing is compiled, or loaded from the cache of machine code, inside a timed run: a warm-up cannot meet all cases.

A loop that a run is the first to need would be charged to its first repeat.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.own_process import ROOT, environ_of

# In every process of a run: what is compiled or loaded, and what the children say to their parent, by time.
LISTENER = """
import os, time
from multiprocessing.connection import Connection
from pathlib import Path
from numba.core.dispatcher import Dispatcher

log = Path(os.environ["COMPILE_LOG"])

def note(text):
    with log.open("a") as file:
        file.write(f"{time.monotonic_ns():020d} {text}\\n")

def compile(self, sig, *, plain=Dispatcher.compile):
    if tuple(getattr(sig, "args", sig)) not in self.overloads:
        note(f"compile {self.py_func.__qualname__}")
    return plain(self, sig)

def send(self, message, *, plain=Connection.send):
    if isinstance(message, tuple) and message[0] in ("run", "warm-up", "armed", "consumed", "produced"):
        note(message[0])
    return plain(self, message)

Dispatcher.compile, Connection.send = compile, send
"""
GEMV = "workload=gemv_micro workload.commands=20000 workload.cache=hot mode=batched queue.capacity=4096 against=[]"
DECODE = "workload=decode model=tiny workload.tokens=20 workload.requests=4 mode=batched against=[coalesced]"
LAYER = (
    "workload=layer model=tiny workload.layers=2 workload.requests=16 workload.tokens=6 workload.prompt_tokens=3"
    " workload.replicas=1 mode=baseline against=[batched,coalesced,graph,pointer_array,graph_loop,graph_device]"
)
JOBS = {"gemv": GEMV, "decode": DECODE, "layer": LAYER}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("job", JOBS)
def test_no_loop_is_loaded_while_the_clock_runs(job: str, device: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LISTENER)
    environ = environ_of(tmp_path)
    environ["PYTHONPATH"] = f"{environ['PYTHONPATH']}:{ROOT}"
    environ["COMPILE_LOG"] = str(tmp_path / "log")
    how = [f"device={device}", "repeats=2", f"hydra.run.dir={tmp_path}/run"]
    call = [sys.executable, "-m", "runner", *JOBS[job].split(), *how]
    subprocess.run(call, cwd=tmp_path, env=environ, check=True, capture_output=True, timeout=300)
    lines = [line.split(maxsplit=1)[1] for line in sorted((tmp_path / "log").read_text().splitlines())]
    assert "compile _await_free_slots" in lines, "the listener saw what was loaded"
    running, late = False, []
    for each in lines[lines.index("run") :]:
        running = each == "armed" or (running and each != "consumed")
        if running and each.startswith("compile"):
            late.append(each)
    assert late == []

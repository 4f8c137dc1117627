"""A wall clock that steps changes nothing measured: durations are CLOCK_MONOTONIC's."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
from support.processes.own_process import ROOT, environ_of, without_progress

from launchopt.recording import results

STEPPING = """
import itertools, os, pathlib, time

steps_s = itertools.cycle((0, 3600, -7200, 86400 * 365))
wall, wall_ns = time.time, time.time_ns
time.time = lambda: wall() + next(steps_s)
time.time_ns = lambda: wall_ns() + next(steps_s) * 10**9
pathlib.Path(os.environ["STEPPED"], str(os.getpid())).touch()
"""
JOB = (
    "mode=batched workload.cache=hot workload.commands=3000 record.commands=all repeats=3 device=cpu"
    " watchdog_s=5 against=[]"
)
NAMES = ("queue_wait_max_us", "latency_max_us", "host_submit_ns_per_launch", "wall_ms", "producer_blocked_ms")


def test_a_clock_that_steps(tmp_path: Path) -> None:
    stepped, folder = tmp_path / "stepped", tmp_path / "run"
    stepped.mkdir()
    (tmp_path / "sitecustomize.py").write_text(STEPPING)
    environ = environ_of() | {"STEPPED": str(stepped)}
    environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environ["PYTHONPATH"]])
    began_s = time.monotonic()
    command = [sys.executable, "-m", "runner", *JOB.split(), f"hydra.run.dir={folder}"]
    ended = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    elapsed_us = (time.monotonic() - began_s) * 1e6
    assert (ended.returncode, without_progress(ended.stderr)) == (0, "")
    assert len(list(stepped.iterdir())) >= 3, "parent, consumer and producer all had it"
    rows = results.read_summaries([folder])
    assert [row["status"] for row in rows] == ["ok"] * 3
    for row in rows:
        assert all(row[name] >= 0 for name in NAMES)
        assert row["latency_max_us"] < row["wall_ms"] * 1e3 < elapsed_us
        assert row["queue_wait_max_us"] < row["wall_ms"] * 1e3
    for name in ("launches", "commands"):
        times = pd.read_parquet(folder / f"{name}.parquet").filter(regex="_ns$")
        assert not times.empty
        assert times.min().min() >= 0
        assert times.max().max() < elapsed_us * 1e3


def test_nobody_measures_with_the_wall_clock() -> None:
    """What compiled modules read cannot be replaced: so the reading itself is looked for."""
    readings = []
    for path in (each for folder in ("launchopt", "runner") for each in (ROOT / folder).rglob("*.py")):
        text = path.read_text()
        readings += [
            (path.name, line.strip()) for line in text.splitlines() if re.search(r"\btime\.time(_ns)?\(", line)
        ]
        labels = re.findall(r"datetime\.(?:now|utcnow|today)\(.*", text)
        readings += [(path.name, label) for label in labels if not re.search(r"UTC\)\.(isoformat|strftime)\(", label)]
    ages_and_names_of_files = [
        ("leftovers.py", "if time.time() - about.st_mtime < YOUNG_S:"),
        (
            "record_hook.py",
            'name = os.path.join(folder, f"{time.time_ns():020d}-{os.getpid()}")'
            "  # noqa: PTH118 (Python 3.8 has no other)",
        ),
        ("scratch.py", "return time.time() - about.st_mtime > YOUNG_S"),
        ("sharing.py", "self._device, self._began_s = device, time.time()"),
    ]
    assert sorted(readings) == ages_and_names_of_files

"""scripts/racecheck_rings.py: which rings are right, by our own search for races; and with a stand-in for the tool."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cuda_on_host import built_of, can_find_races, launch
from support.paths import ROOT
from support.processes.own_process import environ_of

from launchopt.kernels import source

SCRIPT = ROOT / "scripts" / "racecheck_rings.py"
CALL = "u64* w = (u64*)arguments; rings((const uint4*)w[0], (u32*)w[1], w[2])"
rings: Any = importlib.import_module("scripts.racecheck_rings")


@pytest.mark.skipif(not can_find_races(), reason="needs g++ 11")
@pytest.mark.parametrize("ring", rings.RINGS, ids=lambda ring: f"{ring.seen}-{ring.left}")
def test_rings_are_right_or_wrong_as_said(ring: Any) -> None:
    room = np.zeros(rings.words().size + 4, np.uint32)
    first = -room.ctypes.data % 16 // 4
    copied = room[first : first + rings.words().size].reshape(rings.words().shape)
    copied[:] = rings.words()
    sums = np.zeros((rings.BLOCKS, rings.WARP), np.uint32)
    kernel = built_of(source("rings"), CALL, races=True, DTYPE=0, SEEN=ring.seen, LEFT=ring.left)
    arguments = np.array([copied.ctypes.data, sums.ctypes.data, rings.FILLS], np.int64)

    def run(seed: int) -> None:
        launch(kernel, (rings.BLOCKS,), rings.THREADS, 0, arguments.ctypes.data, seed)

    for seed in range(3):
        if ring.is_right:
            run(seed)
            assert np.array_equal(sums, rings.sums_of(copied))
        else:
            with pytest.raises(RuntimeError, match=r"a race: .*shared memory"):
                run(seed)


def ran(tmp_path: Path, script: str | None) -> subprocess.CompletedProcess[str]:
    tool = tmp_path / "sanitizer"
    if script is not None:
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    environment = environ_of() | {"SANITIZER": str(tool)}
    return subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)


def said(condition: str) -> str:
    """A tool that reports a hazard where the ring's words, SEEN and LEFT, are so."""
    last_two = "while [ $# -gt 2 ]; do shift; done; n=0"
    return f'{last_two}; {condition} && n=1; echo "========= RACECHECK SUMMARY: $n hazards displayed ($n errors)"'


def test_a_line_a_ring(tmp_path: Path) -> None:
    done = ran(tmp_path, said("[ $2 = 2 ]"))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == len(rings.RINGS) == 6
    assert lines[0] == "seen by each lane; left by each lane: right; hazards by racecheck: 0"
    wrong = [line.partition(": ")[2] for line in lines if "before it reads" in line]
    assert wrong == ["wrong; hazards by racecheck: 1"] * 2


def test_a_wrong_ring_that_is_not_reported_fails(tmp_path: Path) -> None:
    done = ran(tmp_path, said('[ "$1 $2" = "0 2" ]'))
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 6


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (None, "no compute-sanitizer: it comes with the CUDA toolkit; name it with SANITIZER=..."),
        ("echo no GPU >&2; exit 3", "exit code 3: no GPU"),
        ("echo nothing", "exit code 0: nothing"),
    ],
)
def test_what_cannot_be_asked(script: str | None, told: str, tmp_path: Path) -> None:
    done = ran(tmp_path, script)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"scripts/racecheck_rings.py: {told}\n"


def test_a_ring_that_does_not_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = tmp_path / "sanitizer"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setattr(rings, "LIMIT_S", 0.2)
    with pytest.raises(SystemExit) as ended:
        rings.hazards_of(str(tool), rings.RINGS[0])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "scripts/racecheck_rings.py: a ring took more than 0.2 s\n"

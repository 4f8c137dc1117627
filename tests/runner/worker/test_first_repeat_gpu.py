"""The first repeat on a GPU takes as long as later ones: nothing that happens once is left for it.

It compares times, so it is skipped where tests in other processes share the GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.paths import ROOT
from support.processes.own_process import alone

from launchopt.recording import results

pytestmark = pytest.mark.gpu
MOST = 1.05  # times the median of later repeats
LOOPS = "experiment=goals workload.layers=4 mode=engine mode.submit=graph_loop against=[engine,graph_device]"
RUNS = {
    "many tokens a launch": LOOPS,
    "tokens of Llama 3.2 1B": "experiment=resident/llama_1",
    "layers of requests": "workload=qkv mode=fused_qkv against=[graph,torch_graph,megakernel]",
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_first_repeat_is_no_slower_than_later_ones(run: str, tmp_path: Path) -> None:
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        pytest.skip(
            f"compares times, and other tests share the GPU: type pytest -n 0 {Path(__file__).relative_to(ROOT)}"
        )
    call = [sys.executable, "-m", "runner", *alone(run.split()), "repeats=7", f"hydra.run.dir={tmp_path}"]
    done = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    times: dict[str, list[float]] = {}
    for row in sorted(results.read_summaries([tmp_path]), key=lambda row: int(row["repeat"])):
        times.setdefault(row["mode"], []).append(row["wall_ms"])
    assert len(times) >= 3
    slower = {mode: first / float(np.median(later)) for mode, (first, *later) in times.items()}
    assert all(ratio <= MOST for ratio in slower.values()), slower

"""kernels.parquet of traced runs: every launch has its kernels, every kernel its call, and the counts agree."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pandas as pd
import pytest
from support.processes.own_process import environ_of

pytestmark = pytest.mark.gpu
GEMV = "workload=gemv_micro workload.commands=2048 mode=baseline against=[batched,pointer_array,graph,kernel]"
DECODE = "workload=decode model=tiny workload.tokens=20 workload.requests=4 mode=baseline against=[graph,coalesced]"
MODES = {"gemv": ("baseline", "batched", "pointer_array", "graph", "kernel"), "decode": ("graph", "coalesced")}


@dataclass(frozen=True)
class Traced:
    summary: pd.DataFrame
    launches: pd.DataFrame
    kernels: pd.DataFrame


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Traced]:
    found = {}
    for name, job in {"gemv": GEMV, "decode": DECODE}.items():
        folder = tmp_path_factory.mktemp(name) / "run"
        how = ["device=cuda", "timing=cupti", "record.launches=all", f"hydra.run.dir={folder}"]
        call = [sys.executable, "-m", "runner", *job.split(), *how]
        subprocess.run(call, env=environ_of(), check=True, capture_output=True, timeout=300)
        found[name] = Traced(*(pd.read_parquet(folder / f"{table}.parquet") for table in Traced.__annotations__))
    return found


@pytest.mark.parametrize(("job", "mode"), [(job, mode) for job, modes in MODES.items() for mode in modes])
def test_kernels_are_those_of_the_launches(job: str, mode: str, runs: dict[str, Traced]) -> None:
    summary, launches, rows = (
        table[table["mode"] == mode] for table in (runs[job].summary, runs[job].launches, runs[job].kernels)
    )
    row, kernels = summary.iloc[0], rows[rows["kind"] == "kernel"]
    assert (row["kernels_dropped"], row["kernels"]) == (0, len(kernels))
    assert set(kernels["launch"].dropna().astype(int)) == set(launches["launch"])
    assert rows["api"].notna().all()
    ours = kernels.dropna(subset="launch").merge(launches, on="launch", suffixes=("", "_launch"))
    assert (ours["api_start_ns"] <= ours["start_ns"]).all(), "a call comes before its kernel"
    middle = (ours["api_start_ns"] + ours["api_end_ns"]) / 2
    assert middle.between(ours["submit_start_ns"], ours["submit_end_ns"]).all()
    assert (ours["batch"] == ours["batch_launch"]).all()
    assert ours["range"].str.startswith(f"{mode} ").all()
    assert (ours["graph"].notna() == (ours["strategy"] == "graph")).all()
    assert 0 <= row["launch_delay_p50_us"] <= row["launch_delay_p99_us"]


def test_a_graphs_kernels_are_all_of_its_one_call(runs: dict[str, Traced]) -> None:
    rows = runs["decode"].kernels
    graph = rows[(rows["mode"] == "graph") & rows["graph"].notna()]
    of_a_replay = graph.groupby("launch")
    assert (of_a_replay["correlation"].nunique() == 1).all()
    assert of_a_replay.size().min() > 1
    assert graph["api"].str.contains("GraphLaunch").all()

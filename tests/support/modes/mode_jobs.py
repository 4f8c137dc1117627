"""Small jobs of every workload, run in every mode that can run them.

`run_jobs(kind, folder)` runs them on a device of that kind, in one process or, on a large machine, in a few. `Ran` is
the result of one mode. Modes that need an extra (torch, Triton) have their own tests.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from launchopt.modes import MODES, mode_class
from launchopt.recording import results
from support.config.composing import planned
from support.paths import ROOT, TESTS
from support.processes.own_process import environ_of, without_progress

DTYPES = {
    "cpu": ("bf16",),
    "cuda": ("fp32", "fp16", "bf16"),
}  # tests/runner/test_matrix.py covers the others
PLAIN = tuple(name for name in MODES if not mode_class(name).packages)
MOST = 8
DECODE = "workload=decode model=tiny"
LAYER = "workload=layer model=tiny workload.layers=2"
PAGED = "workload.kv=paged workload.page_tokens=4 model.head_dim=64 model.qk_norm=true"
QKV = "workload=qkv model=tiny model.head_dim=64"
EPILOGUE, ELEMENTWISE = "workload=linear_epilogue workload.hidden=64", "workload=elementwise_chain workload.hidden=70"
EXPERTS = "workload=moe model=tiny_moe workload.steps=4"
GEMV = "workload=gemv_256 workload.commands=96"
JOBS = {
    "gemv": f"{GEMV} workload.replicas=16",
    "scattered": f"{GEMV} workload.replicas=32 workload.shuffle=true",
    "shared": f"{GEMV} workload.replicas=1",
    "listed": f"workload=list workload.path={TESTS}/corpus/shapes.csv workload.repeat=3",
    "experts_1": f"{EXPERTS} workload.tokens=1",
    "experts_16": f"{EXPERTS} workload.tokens=16",
    "decode_1": f"{DECODE} workload.tokens=6",
    "decode_6": f"{DECODE} workload.requests=6 workload.tokens=5 workload.replicas=2",
    "decode_prompts": f"{DECODE} workload.requests=6 workload.tokens=4 workload.prompt_tokens=5",
    "prefill": "workload=prefill model=tiny workload.prompts=3 workload.tokens=12",
    "layer_1": f"{LAYER} workload.tokens=5",
    "layer_6": f"{LAYER} workload.requests=6 workload.tokens=4 workload.prompt_tokens=3",
    "layer_paged": f"{LAYER} {PAGED} workload.requests=6 workload.tokens=6",
    "apart_6": f"{LAYER} model.head_dim=64 workload.merged=false workload.requests=6 workload.tokens=4",
    "qkv_1": f"{QKV} workload.tokens=4",
    "qkv_6": f"{QKV} workload.requests=6 workload.tokens=4 workload.prompt_tokens=3",
    "linear_epilogue_1": f"{EPILOGUE} workload.tokens=4 workload.layers=2",
    "linear_epilogue_6": f"{EPILOGUE} workload.requests=6 workload.tokens=4 workload.layers=2 workload.replicas=2",
    "elementwise_1": f"{ELEMENTWISE} workload.tokens=4 workload.layers=2",
    "elementwise_6": f"{ELEMENTWISE} workload.requests=6 workload.tokens=4 workload.layers=2 workload.prompt_tokens=3",
}
COMMON = f"workload.cache=hot batching.max_batch={MOST} timing.sample_every=3"
TIMEOUT_S = 540
MOST_PROCESSES, CORES_EACH = 4, 4
# One process runs the application several times. Its children stay, with everything that they have loaded and compiled.
CALLS = """
import sys
from support.config.quick_hydra import quicken
from runner import app
from runner.run import children
quicken()
dismiss, children.dismiss = children.dismiss, lambda: None
codes = [app.main(words.split()) for words in sys.argv[1:]]
dismiss()
sys.exit(max(codes))
"""


def dtypes_of(job: str, kind: str) -> list[str]:
    """Return the dtypes in which a job runs. Our own kernels for experts take no fp32."""
    return [dtype for dtype in DTYPES[kind] if dtype != "fp32" or not job.startswith("experts")]


@functools.cache
def stream_of(job: str) -> Any:
    """Return the stream of a job, in one of its dtypes; others have the same shapes."""
    return planned(*JOBS[job].split(), *COMMON.split(), f"workload.dtype={dtypes_of(job, 'cuda')[0]}").stream


def able(job: str, kind: str) -> list[str]:
    """Return the modes that run a job on a device of this kind."""
    return [name for name in PLAIN if mode_class(name).refusal(kind, stream_of(job)) is None]


@dataclass(frozen=True)
class Ran:
    """The result of one mode for a job in one dtype."""

    row: results.Row
    launches: Any  # rows of launches.parquet
    unfused: int  # commands of fused launches that were launched one by one, since operands were scattered

    @property
    def sizes(self) -> list[int]:
        found: list[int] = self.launches["batch_size"].tolist()
        return found

    @property
    def strategies(self) -> list[str]:
        found: list[str] = self.launches["strategy"].tolist()
        return found

    def commands_by(self, strategy: str) -> int:
        """Return the number of commands in launches by this strategy."""
        return sum(size for size, each in zip(self.sizes, self.strategies, strict=True) if each == strategy)


class Everything:
    """The results of `run_jobs` by job, dtype and mode, and the refusals with their reasons."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self._folder = kind, folder
        self._ran = {(job, dtype): self._read(job, dtype) for job in JOBS for dtype in dtypes_of(job, kind)}

    def _folders(self, job: str) -> list[Path]:
        folders = (path for path in (self._folder / job).iterdir() if path.is_dir())
        return sorted(folders, key=lambda path: int(path.name))

    def _read(self, job: str, dtype: str) -> dict[str, Ran]:
        folder = self._folders(job)[dtypes_of(job, self.kind).index(dtype)]
        launches = pd.read_parquet(folder / "launches.parquet")
        by_mode = dict(list(launches.groupby("mode")))
        unfused = {run["mode"]: run["unfused_commands"] for run in results.read_manifest(folder)["runs"]}
        rows = {str(row["mode"]): row for row in results.read_summaries([folder])}
        return {mode: Ran(row, by_mode[mode], unfused[mode]) for mode, row in rows.items()}

    def all(self) -> Iterator[tuple[str, str, dict[str, Ran]]]:
        """Yield the results of each job, in each dtype and each mode that runs it."""
        for (job, dtype), ran in self._ran.items():
            yield job, dtype, ran

    def of(self, mode: str, jobs: Collection[str] = tuple(JOBS)) -> Iterator[tuple[str, Ran]]:
        """Yield the results of a mode for these jobs, in each dtype. None exist only if the device lacks the mode."""
        found = [(job, ran[mode]) for job, _, ran in self.all() if mode in ran and job in jobs]
        assert bool(found) == (self.kind in mode_class(mode).devices), f"mode={mode} was to run here"
        yield from found

    def refusals(self) -> dict[str, str]:
        """Return the manifest's error by mode, for modes that were asked for and cannot run the job."""
        manifests = [results.read_manifest(folder) for folder in self._folders("refused")]
        assert {manifest["status"] for manifest in manifests} <= {"refused"}
        return {manifest["overrides"][-1].removeprefix("mode="): manifest["error"] for manifest in manifests}


def refused(kind: str) -> list[str]:
    """Return the modes that cannot run the job named gemv."""
    return [name for name in PLAIN if name not in able("gemv", kind)]


def run_jobs(kind: str, folder: Path) -> Everything:
    """Run all jobs, in one process per CORES_EACH cores, and return the results."""
    calls = []
    for job, overrides in JOBS.items():
        others = [name for name in able(job, kind) if name != "baseline"]
        dtypes = ",".join(dtypes_of(job, kind))
        how = f"-m device={kind} mode=baseline against=[{','.join(others)}] workload.dtype={dtypes}"
        calls.append(f"{how} {overrides} {COMMON} hydra.sweep.dir={folder}/{job}")
    sweep = ",".join(refused(kind))
    calls.append(f"-m device={kind} {JOBS['gemv']} {COMMON} hydra.sweep.dir={folder}/refused mode={sweep}")
    at_once = min(MOST_PROCESSES, max(1, (os.cpu_count() or 1) // CORES_EACH))
    shares = [calls[first::at_once] for first in range(at_once)]
    with ThreadPoolExecutor(at_once) as pool:
        done = list(pool.map(functools.partial(_call, folder), shares))
    lines = [
        line
        for each in done
        for line in without_progress(each.stderr).splitlines()
        if not line.startswith("error: mode=")
    ]
    assert not lines, "\n".join(["only the modes that were refused, but:", *lines[-40:]])
    assert sorted(each.returncode for each in done) == [*[0] * (at_once - 1), 2]
    return Everything(kind, folder)


def _call(folder: Path, calls: list[str]) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-c", CALLS, *calls]
    return subprocess.run(
        call, cwd=folder, env=environ_of(ROOT, TESTS), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )

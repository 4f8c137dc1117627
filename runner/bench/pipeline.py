"""Measures the whole pipeline from producer to last result, and the cost of a process around it.

Each figure comes from a `python -m runner` in its own process, and from the Parquet file that it wrote.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from launchopt.analysis.tables.bandwidth import unsteady
from launchopt.errors import RunError
from launchopt.recording import results
from launchopt.scratch import scratch
from runner.bench.figures import Figure
from runner.worker.lifeline import run_bound


class Rate(NamedTuple):
    """A stream, and the goal of its rate in commands/s."""

    workload: str
    dtype: str
    commands: int
    goal: float


RATES = (
    Rate("gemv_micro", "fp32", 500_000, 2.0e6),
    Rate("gemv_micro", "fp16", 500_000, 4.0e6),
    Rate("gemv_256", "fp32", 2_000_000, 12e6),
    Rate("gemv_256", "fp16", 2_000_000, 20e6),
)
REFUSED = "workload.commands=2000000000"  # more commands than fit any memory, which planning checks last
GOAL_HELP_S, GOAL_REFUSED_S, GOAL_RUN_S = 1.0, 2.0, 4.0
GOAL_JOB_S = {"cpu": 1.0, "cuda": 3.0}


def suite(repeats: int, device: str) -> Iterator[Figure]:
    """Yield the figures of the pipeline on `device`."""
    with scratch() as root:
        if device == "cuda":
            for wanted in RATES:
                yield from rate(root, wanted, repeats, device)
        samples = [seconds(["--help"]) for _ in range(repeats)]
        yield Figure("pipeline", "--help, whole process", "s", samples, GOAL_HELP_S)
        samples = [seconds([REFUSED, "device=cpu"], exit_code=2) for _ in range(repeats)]
        yield Figure("pipeline", "a setting that is refused, whole process", "s", samples, GOAL_REFUSED_S)
        one = ["device=cpu", "workload.commands=1000", f"hydra.run.dir={root}/one"]
        samples = [seconds(one) for _ in range(repeats)]
        yield Figure("pipeline", "1,000 commands on the cpu device, whole process", "s", samples, GOAL_RUN_S)
        samples = [_further_job_s(root / f"sweep{repeat}", device) for repeat in range(repeats)]
        yield Figure(
            "pipeline", f"each further job of a sweep ({device}), its runs taken off", "s", samples, GOAL_JOB_S[device]
        )


def _run(arguments: Sequence[str], exit_code: int = 0) -> None:
    done = run_bound(arguments)
    if done.returncode != exit_code:
        raise RunError(f"python -m runner {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()[-300:]}")


def seconds(arguments: Sequence[str], exit_code: int = 0) -> float:
    """Return the seconds that `python -m runner` takes; RunError if it ends with another exit code."""
    start_ns = time.perf_counter_ns()
    _run(arguments, exit_code)
    return (time.perf_counter_ns() - start_ns) / 1e9


def rate(root: Path, wanted: Rate, repeats: int, device: str) -> Iterator[Figure]:
    """Yield the rate of a stream in mode=batched, and the bandwidth that it reaches."""
    workload, dtype, commands, goal = wanted
    folder = root / f"{workload}_{dtype}"
    settings = [f"workload={workload}", f"workload.dtype={dtype}", f"workload.commands={commands}"]
    settings += ["mode=batched", "against=[]", "batching.max_batch=512", "timing=host", f"device={device}"]
    settings += ["record.launches=none"]
    _run([*settings, f"repeats={repeats}", f"hydra.run.dir={folder}"])
    rows = results.read_summaries([folder])
    case = f"{workload} {dtype}, batched at 512"
    rates = [row["commands_per_s"] for row in rows]
    yield Figure("pipeline", case, "commands/s", rates, goal, higher_is_better=True)
    if why := unsteady(rows):
        raise RunError(f"{folder}: {why}; run it again on an idle machine")
    shares = [row["commands_per_s"] * row["bytes_moved"] / row["commands"] / 1e9 / row["copy_gb_per_s"] for row in rows]
    yield Figure(
        "pipeline",
        f"{case}, bytes over copy bandwidth",
        "x",
        shares,
        0.95 if "micro" in workload else None,
        higher_is_better=True,
    )


def _further_job_s(folder: Path, device: str) -> float:
    """Return the seconds of each further job: a sweep of five jobs minus a sweep of one, without their runs."""
    jobs = 5
    settings = ["-m", f"device={device}", "workload=gemv_256", "workload.commands=1000", "workload.replicas=64"]
    one = seconds([*settings, "seed=0", f"hydra.sweep.dir={folder}/one"])
    seeds = ",".join(map(str, range(jobs)))
    five = seconds([*settings, f"seed={seeds}", f"hydra.sweep.dir={folder}/five"])
    work_s = [sum(row["wall_ms"] for row in results.read_summaries([folder / name])) / 1e3 for name in ("one", "five")]
    return float((five - work_s[1]) - (one - work_s[0])) / (jobs - 1)

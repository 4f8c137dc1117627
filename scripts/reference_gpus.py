"""The parts of the reference results that need two GPUs of one host: what two gain over one.

A part measures on one GPU, on two, and on one again. Steps have 16 requests a GPU, so that each GPU does the same work.
Before sweeps of jobs one more job runs, which compiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from launchopt.files import JsonObject
from launchopt.recording import results
from scripts.reference_part import Part, run_words

GPUS = "gpus"  # the folder of the parts
BEFORE, TWO, BEHIND = "one_before", "two", "one_behind"
FIRST = "first"  # a job that compiles: no page reads it
ONE = "one"  # a run on one GPU, where there is no second one behind
DECODE = (
    "workload=layer model=llama_3_2_1b workload.dtype=bf16 workload.layers=null workload.tokens=100 sampling=greedy"
    " timing=host scheduler.ahead=true mode=engine mode.submit=graph mode.kernels=own mode.pdl=true"
    " 'mode.fuse=[qkv,gate_up,norm,rope_kv,attention,silu,epilogue]' 'against=[]' batching.max_batch=64"
    " batching.timeout_us=50000 repeats=3 processes=3 record.launches=none"
)
GEMVS = (
    "workload=gemv_micro workload.commands=1000000 mode=batched 'against=[]' timing=host repeats=3 processes=3"
    " batching.max_batch=512 record.launches=none"
)
SWEPT = "jobs_joblib"  # the part of equal jobs
JOBS, SWEEP = 12, "workload=gemv_micro mode=batched 'against=[baseline]' repeats=40 record.launches=none"


class Row(NamedTuple):
    """A row of the table: the work, the rate that counts, the goal for two GPUs over one, and the part."""

    work: str
    rate: str
    goal: float
    part: Part

    @property
    def name(self) -> str:
        """Folder of its part, below GPUS."""
        return self.part.folder.partition("/")[2]


def _pair(name: str, words: str, one: str, two: str, seconds: int) -> Part:
    """Return a part that runs `words` with `one` before and behind `two`."""
    runs = ((BEFORE, one), (TWO, two), (BEHIND, one))
    commands = [run_words(f"{words} {more}", f"{{folder}}/{place}") for place, more in runs]
    return Part(f"{GPUS}/{name}", "cuda", 5, tuple(commands), seconds=seconds, gpus=2)


def _jobs() -> Part:
    sweep = f"-m hydra/launcher=joblib {SWEEP} seed={{}} hydra.launcher.n_jobs={{}}"
    seeds = ",".join(map(str, range(JOBS)))
    runs = ((FIRST, "0", 1), (BEFORE, seeds, 1), (TWO, seeds, 2))
    commands = [run_words(sweep.format(which, jobs), f"{{folder}}/{place}") for place, which, jobs in runs]
    return Part(f"{GPUS}/{SWEPT}", "cuda", 9, tuple(commands), seconds=360, gpus=2)


_ALL = "device.gpus=[0,1]"
GPU_ROWS = (
    Row(
        "Llama 3.2 1B, 16 requests a GPU",
        "tokens_per_s",
        1.95,
        _pair("decode", DECODE, "workload.requests=16", f"workload.requests=32 '{_ALL}'", 160),
    ),
    Row(
        "independent 64 x 8192 GEMVs",
        "commands_per_s",
        1.95,
        _pair("gemvs", GEMVS, "'device.gpus=[0]'", f"'{_ALL}'", 80),
    ),
    Row(f"{JOBS} jobs by joblib", "jobs/s", 1.8, _jobs()),
)
SPLIT = "split"  # folder of the parts of a model that two GPUs split, below GPUS
NCCL = "nccl"  # the run whose all-reduce is NCCL's, for the first two stacks and one request
SPLIT_S = {1: 375, 16: 300}  # time of each part, by requests
SPLIT_REQUESTS = tuple(SPLIT_S)
SPLIT_STACKS = "engine", "engine+graph", "engine+silu+graph+own+pdl"
SPLIT_REDUCED = {  # for stacks on one GPU, their likes on two that fuse the all-reduce
    "engine+graph": "engine+reduce+graph",
    "engine+silu+graph+own+pdl": "engine+silu+reduce+graph+own+pdl",
}
SPLIT_GOALS = {(1, "engine+graph"): 1.7}  # two GPUs over one, by requests and stack


def _split_run(kind: str, requests: int, others: Sequence[str], place: str, more: str = "") -> str:
    words = f"mode={SPLIT_STACKS[0]} 'against=[{','.join(others)}]' repeats=2 processes=3{more}"
    return run_words(f"table=two_gpus_{kind}_{requests} {words}", f"{{folder}}/{place}")


def _split(requests: int) -> Part:
    _, *others = SPLIT_STACKS
    commands = []
    for kind, place, stacks in (("one", ONE, others), ("split", TWO, [*others, *SPLIT_REDUCED.values()])):
        commands.append(_split_run(kind, requests, stacks, place))
    if requests == 1:
        commands.append(_split_run("split", requests, others[:1], NCCL, f" parallel.all_reduce={NCCL}"))
    return Part(f"{GPUS}/{SPLIT}/llama_3_8b_{requests}", "cuda", 9, tuple(commands), seconds=SPLIT_S[requests], gpus=2)


SPLIT_PARTS = tuple(map(_split, SPLIT_REQUESTS))
GPU_PARTS = (*(row.part for row in GPU_ROWS), *SPLIT_PARTS)


def page_rows(place: Path) -> list[JsonObject]:
    """Return what two GPUs gain over one, as `runner.report.several_gpus` reads it, of the results in `place`."""
    rows = list[JsonObject]()
    for row in GPU_ROWS:
        one = [f"{row.name}/{side}" for side in (BEFORE, BEHIND) if (place / row.name / side).is_dir()]
        if one:
            two = [f"{row.name}/{TWO}"]
            rows.append({"work": row.work, "gpus": 2, "one": one, "several": two, "of": row.rate, "goal": row.goal})
    return rows


def split_page_rows(place: Path) -> list[JsonObject]:
    """Return what each stack of a split model gains, of the results in `place`."""
    rows = list[JsonObject]()
    for requests, part in zip(SPLIT_REQUESTS, SPLIT_PARTS, strict=True):
        name, work = Path(part.folder).name, f"Llama 3 8B, {requests} request{'s' * (requests > 1)}"
        stacks = [*((mode, mode) for mode in SPLIT_STACKS), *SPLIT_REDUCED.items()]
        for run, library in ((TWO, ""), (NCCL, ", NCCL")):
            folder = place / name / run
            known = {row["mode"] for row in results.read_summaries([folder])} if folder.is_dir() else set[str]()
            for one, two in stacks:
                goal = {} if library else {"goal": SPLIT_GOALS.get((requests, two))}
                of_run = {"work": f"{work}, `{two}`{library}", "one": [f"{name}/{ONE}"], "several": [f"{name}/{run}"]}
                of_run["gpus"] = 2
                row = of_run | {"modes": [one, two], "of": "tokens_per_s"} | goal
                rows += [{key: value for key, value in row.items() if value is not None}] if two in known else []
    return rows

"""The parts of the reference results that need four or eight GPUs of one host, and the rows of their tables.

A machine with N GPUs has parts of its own, in many_gpus/four or many_gpus/eight. Each measures on 1, 2, 4 (and 8) GPUs.
Runs of a split model on fewer than N GPUs take place side by side (scripts/side_by_side.py), in one process each: so
their factors have a range, and no interval. All others run alone. Llama 3 70B has 8 of its 80 layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from launchopt.files import JsonObject
from launchopt.recording import results
from runner.report.several_gpus import JOBS as JOBS_PER_S
from scripts.reference_gpus import DECODE, GEMVS, NCCL, SPLIT, SPLIT_REDUCED, SPLIT_STACKS
from scripts.reference_part import Part, run_words

MANY = "many_gpus"
NAMES = {1: "one", 2: "two", 4: "four", 8: "eight"}  # folders of runs by GPUs, and of machines
MACHINES = (4, 8)
JOBS_A_GPU, FIRST_SIZE = 8, 448
SWEEP = "workload=gemv_micro mode=batched 'against=[baseline]' repeats=3 record.launches=none"
DATASET = "all.parquet"


class Model(NamedTuple):
    """A model that GPUs split: its name on a page, and the stacks that run besides `engine`."""

    name: str
    stacks: tuple[str, ...]
    seconds: int


_, *_OTHERS = SPLIT_STACKS
MODELS = {
    "llama_3_8b": Model("Llama 3 8B", (*_OTHERS, *SPLIT_REDUCED.values()), 135),
    "llama_3_70b": Model("Llama 3 70B, 8 layers", (*_OTHERS, *SPLIT_REDUCED.values()), 125),
}
REQUESTS = (1, 16)


def counts(machine: int) -> list[int]:
    """Return how many GPUs a machine runs on."""
    return [count for count in NAMES if count <= machine]


def place_of(machine: int) -> str:
    """Return the folder of a machine's parts."""
    return f"{MANY}/{NAMES[machine]}"


def _gpus(count: int) -> str:
    return f"'device.gpus=[{','.join(map(str, range(count)))}]'"


def _routed(machine: int, name: str, words: str, requests: int, seconds: int) -> Part:
    """Return a part with independent requests, or commands, on each count of GPUs. requests: of each GPU."""
    commands = []
    for count in counts(machine):
        asked = f" workload.requests={requests * count}" if requests else ""
        commands.append(run_words(f"{words}{asked} {_gpus(count)}", f"{{folder}}/{NAMES[count]}"))
    return Part(f"{place_of(machine)}/{name}", "cuda", 9, tuple(commands), seconds=seconds, gpus=machine)


def _split_words(model: str, requests: int, count: int, place: str, stacks: tuple[str, ...], more: str = "") -> str:
    words = f"table={MANY}_{model}_{requests} parallel.tensor={count} mode={SPLIT_STACKS[0]}"
    run = run_words(f"{words} 'against=[{','.join(stacks)}]' repeats=3{more}", f"{{folder}}/{place}")
    return f'"{count} {run}"'


def _split(machine: int, model: str) -> Part:
    runs = [
        _split_words(model, requests, count, f"{requests}_requests/{NAMES[count]}", MODELS[model].stacks)
        for count in counts(machine)
        for requests in REQUESTS
    ]
    if model == "llama_3_8b":
        more = f" parallel.all_reduce={NCCL}"
        runs.append(_split_words(model, 1, machine, f"1_requests/{NCCL}", tuple(_OTHERS[:1]), more))
    command = f"python -m scripts.side_by_side --gpus {machine} {' '.join(runs)}"
    folder = f"{place_of(machine)}/{SPLIT}/{model}"
    return Part(folder, "cuda", 9, (command,), seconds=MODELS[model].seconds, gpus=machine)


def _jobs(machine: int, launcher: str, settings: str, program: str, seconds: int) -> Part:
    """Return a part with equal jobs on one GPU, and with as many a GPU on all."""
    commands = []
    for count in (1, machine):
        folder, jobs = f"{{folder}}/{NAMES[count]}", JOBS_A_GPU * count
        swept = f"'batching.max_batch=range({FIRST_SIZE},{FIRST_SIZE + jobs})'"  # of batches: jobs do the same work
        words = f"-m hydra/launcher={launcher} {settings.format(count)} {SWEEP} {swept}"
        commands.append(run_words(words, folder))
    commands += [
        f"python -m scripts.device_use {folder}",
        f"python -m runner dataset {folder} --output {folder}/{DATASET}",
    ]
    folder = f"{place_of(machine)}/jobs_{launcher}"
    return Part(folder, "cuda", 9, tuple(commands), program=program, seconds=seconds, gpus=machine)


_JOBLIB = "hydra.launcher.n_jobs={}"
_RAY = (
    "+hydra.launcher.ray.init.num_gpus={} +hydra.launcher.ray.remote.num_gpus=1 +hydra.launcher.ray.remote.num_cpus=4"
)


def _of_machine(machine: int) -> tuple[Part, ...]:
    bench = "python -m runner bench collectives --device cuda --output {folder}"
    decode = DECODE.replace("workload.tokens=100", "workload.tokens=50").replace(" repeats=3", " repeats=2")
    gemvs = GEMVS.replace(" repeats=3", " repeats=2")
    more = (machine == 8) + 1  # one more count of GPUs
    return (
        *(_split(machine, model) for model in MODELS),
        _routed(machine, "decode", decode, 16, 80 + 30 * (more - 1)),
        _routed(machine, "gemvs", gemvs, 0, 45 + 15 * (more - 1)),
        Part(f"{place_of(machine)}/collectives", "cuda", 3, (bench,), seconds=30, gpus=machine),
        _jobs(machine, "joblib", _JOBLIB, "", 100),
        _jobs(machine, "ray", _RAY, "ray", 120),
    )


MANY_PARTS = tuple(part for machine in MACHINES for part in _of_machine(machine))
DECODE_GOALS = {2: 1.95, 8: 7.5}  # several GPUs over one
JOB_GOALS = {2: 1.8, 8: 7.0}


def _row(place: Path, work: str, one: str, several: str, gpus: int) -> JsonObject | None:
    """Return the beginning of a row; None if one of its runs is not there."""
    if not all((place / each).is_dir() for each in (one, several)):
        return None
    return {"work": work, "gpus": gpus, "one": [one], "several": [several]}


def many_page_rows(place: Path, machine: int) -> list[JsonObject]:
    """Return what several GPUs gain over one with work of their own each, of the results of a machine in `place`."""
    works = (
        ("decode", "Llama 3.2 1B, 16 requests a GPU", "tokens_per_s", DECODE_GOALS),
        ("gemvs", "independent 64 x 8192 GEMVs", "commands_per_s", {}),
        *((f"jobs_{name}", f"{JOBS_A_GPU} jobs a GPU by {name}", JOBS_PER_S, JOB_GOALS) for name in ("joblib", "ray")),
    )
    rows = list[JsonObject]()
    for name, work, of, goals in works:
        for count in counts(machine)[1:]:
            found = _row(place, work, f"{name}/{NAMES[1]}", f"{name}/{NAMES[count]}", count)
            if found:
                rows.append(found | {"of": of, "line": work} | ({"goal": goals[count]} if count in goals else {}))
    return rows


def many_split_rows(place: Path, machine: int) -> list[JsonObject]:
    """Return what each stack of a split model gains on each count of GPUs, of the results of a machine in `place`."""
    stacks = [*((mode, mode) for mode in SPLIT_STACKS), *SPLIT_REDUCED.items()]
    rows = list[JsonObject]()
    for model, about in MODELS.items():
        for requests in REQUESTS:
            name = f"{model}/{requests}_requests"
            work = f"{about.name}, {requests} request{'s' * (requests > 1)}"
            sides = [*((NAMES[count], count, "") for count in counts(machine)[1:]), (NCCL, machine, ", NCCL")]
            for one, several in stacks:
                for side, count, library in sides:
                    found = _row(place, f"{work}, `{several}`{library}", f"{name}/{NAMES[1]}", f"{name}/{side}", count)
                    known = {row["mode"] for row in results.read_summaries([place / name / side])} if found else ()
                    if found and several in known:
                        rows.append(found | {"modes": [one, several], "of": "tokens_per_s", "line": work})
    return rows

"""The parts of the reference results on quantised weights and on layers with experts, and what their tables show.

A goal is stated in us for a GPU that reads 4,400 GB/s, or as a multiple of the read floor: see
runner/report/weight_goals.py. The traced parts show where the time of a step goes: see runner/report/kernel_times.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from launchopt.files import JsonObject
from scripts.reference_part import Part, run_words

QUANTISED, EXPERTS = "quantised", "experts"  # the folders of the parts
GEMV: tuple[tuple[int, int, str, float], ...] = (  # rows and columns of a weight, its format, and the goal
    (6144, 4096, "fp8", 8.0),
    (4096, 12288, "fp8", 14.0),
    (16384, 2048, "fp8", 10.0),
    (16384, 2048, "int4", 7.0),
)
STEP, PLAIN = "step", "bf16"  # folders of a step of the model, with fp8 weights, and without
SERIAL = "engine+silu+epilogue+graph+own"
FUSED = f"{SERIAL}+pdl"
_STACK = (
    "mode=engine mode.submit=graph mode.kernels=own mode.pdl=true"
    " 'mode.fuse=[qkv,gate_up,norm,rope_kv,attention,silu,epilogue]'"
)
_MODEL = (
    "workload=layer model=llama_3_8b workload.layers=null workload.dtype=bf16 workload.tokens=50 sampling=greedy"
    f" {_STACK} 'against=[engine+own]' repeats=2 processes=3 batching.timeout_us=50000 record.launches=none"
)
_TRACED_MODEL = (
    "workload=layer model=llama_3_8b workload.layers=4 workload.dtype=bf16 workload.tokens=20"
    f" {_STACK} 'against=[{SERIAL}]' timing=cupti repeats=3"
)
STEP_OF_FLOOR = 1.25
EXPERT_SERIAL = "graph+route+activate+combine"
EXPERT_STACK = f"{EXPERT_SERIAL}+pdl"
_TRACED_EXPERTS = (
    "workload=moe model=qwen3_30b_a3b workload.dtype=bf16 workload.exponent=1.2 batching.max_batch=128 mode=graph"
    " mode.pdl=true 'mode.fuse=[route,activate,combine]' workload.steps=60 timing=cupti repeats=3 verify_budget_s=0.3"
)
EXPERT_TOKENS = (1, 4, 16, 64)
EXPERT_GOALS = {"bf16": (30.0, 75.0, 140.0, 260.0), "fp8": (20.0, 45.0, 85.0, 150.0)}
EXPERIMENTS = {"bf16": "experts", "fp8": "experts_fp8"}
EXPERT_S = {"bf16": 55, "fp8": 25}
TRACED_MODEL = (PLAIN, "fp8")  # weights
TRACED_EXPERTS = (("bf16", 1), ("fp8", 1), ("fp8", 16), ("fp8", 64))  # weights and tokens: goals that are missed
LAYER_KERNELS: tuple[JsonObject, ...] = (
    {"name": "qkv", "weight": "6144x4096"},
    {"name": "attention"},
    {"name": "o", "weight": "4096x4096"},
    {"name": "gate/up", "weight": "28672x4096"},
    {"name": "down", "weight": "4096x14336"},
)
EXPERT_KERNELS: tuple[JsonObject, ...] = (
    {"name": "router, top-k, map", "weight": "128x2048", "weights": "none"},
    {"name": "gate/up, SiLU", "weight": "1536x2048"},
    {"name": "down, weighted sum", "weight": "2048x768"},
)


class Row(NamedTuple):
    """A row of a table: the folder of a run below that of the parts, the mode, and its goal."""

    run: str
    mode: str
    goal: JsonObject


def _gemv_name(rows: int, columns: int, weights: str) -> str:
    return f"gemv_{rows}x{columns}_{weights}"


def _gemv(rows: int, columns: int, weights: str) -> Part:
    size = f"workload=gemv_micro workload.m={rows} workload.k={columns} workload.dtype=bf16"
    rivals = "triton_batched,cublaslt_fp8" if weights == "fp8" else "triton_batched"
    words = f"{size} workload.weights={weights} workload.commands=2000 mode=pdl 'against=[{rivals}]' repeats=5"
    command = run_words(f"{words} timing=host record.launches=none")
    return Part(f"{QUANTISED}/{_gemv_name(rows, columns, weights)}", "cuda", 3, (command,), seconds=22)


def _steps() -> Part:
    commands = (
        run_words(f"{_MODEL} workload.weights=fp8", f"{{folder}}/{STEP}"),
        run_words(_MODEL, f"{{folder}}/{PLAIN}"),
    )
    return Part(f"{QUANTISED}/llama_3_8b_1", "cuda", 8, commands, seconds=110)


def _experts(weights: str, tokens: int) -> Part:
    command = run_words(f"experiment={EXPERIMENTS[weights]} workload.tokens={tokens}")  # a sweep of one job
    return Part(f"{EXPERTS}/{weights}_{tokens}", "cuda", 4, (command,), seconds=EXPERT_S[weights])


def _weights(stored: str) -> str:
    return "" if stored == "bf16" else f" workload.weights={stored}"


def _traced_name(*words: object) -> str:
    return "_".join(map(str, ("traced", *words)))


def _traced_model(weights: str) -> Part:
    command = run_words(f"{_TRACED_MODEL}{_weights(weights)}")
    return Part(f"{QUANTISED}/{_traced_name('llama_3_8b', weights)}", "cuda", 3, (command,), seconds=12)


def _traced_experts(weights: str, tokens: int) -> Part:
    words = f"{_TRACED_EXPERTS} workload.tokens={tokens}{_weights(weights)} 'against=[{EXPERT_SERIAL}]'"
    return Part(f"{EXPERTS}/{_traced_name(weights, tokens)}", "cuda", 3, (run_words(words),), seconds=15)


TRACED_PARTS = (
    *(_traced_model(weights) for weights in TRACED_MODEL),
    *(_traced_experts(weights, tokens) for weights, tokens in TRACED_EXPERTS),
)
QUANTISED_PARTS = (*(_gemv(rows, columns, weights) for rows, columns, weights, _ in GEMV), _steps())
EXPERT_PARTS = tuple(_experts(weights, tokens) for weights in EXPERT_GOALS for tokens in EXPERT_TOKENS)
WEIGHT_PARTS = (*QUANTISED_PARTS, *EXPERT_PARTS, *TRACED_PARTS)
_GEMV_ROWS = [
    Row(_gemv_name(rows, columns, weights), "pdl", {"goal_us": goal}) for rows, columns, weights, goal in GEMV
]
_STEP_ROWS = [
    Row(f"llama_3_8b_1/{STEP}", FUSED, {"of_floor": STEP_OF_FLOOR}),
    Row(f"llama_3_8b_1/{PLAIN}", FUSED, {}),
]
ROWS = {
    QUANTISED: (*_GEMV_ROWS, *_STEP_ROWS),
    EXPERTS: tuple(
        Row(f"{weights}_{tokens}/0", EXPERT_STACK, {"goal_us": goal})
        for weights, goals in EXPERT_GOALS.items()
        for tokens, goal in zip(EXPERT_TOKENS, goals, strict=True)
    ),
}


def weight_rows(name: str, place: Path) -> list[JsonObject]:
    """Return the goals of a table as `weight_goals` reads them, of the results in `place`."""
    return [{"run": row.run, "mode": row.mode} | row.goal for row in ROWS[name] if (place / row.run).is_dir()]


def traces(name: str, place: Path) -> list[JsonObject]:
    """Return the traced runs of a page as `kernel_times` reads them, of the results in `place`."""
    if name == QUANTISED:
        names = [_traced_name("llama_3_8b", weights) for weights in TRACED_MODEL]
        step = {"modes": [SERIAL, FUSED], "first": [{"name": "slot map"}], "repeated": [*LAYER_KERNELS]}
    else:
        names = [_traced_name(weights, tokens) for weights, tokens in TRACED_EXPERTS]
        step = {"modes": [EXPERT_SERIAL, EXPERT_STACK], "repeated": [*EXPERT_KERNELS]}
    return [{"run": each} | step for each in names if (place / each).is_dir()]
